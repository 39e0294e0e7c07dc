"""53. 500 alerts at once: few messages a minute, the last of which sums up the rest; none is forgotten."""

from pathlib import Path

from kvlogd.outbox import NoticeState
from tests.outboxes import alert
from tests.paging import Desk
from tests.sinks import HttpSink


def test_053_engines_of_one_rule_are_one_message(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(*(alert(0, scope=f"chat/{number}") for number in range(500)))
            desk.go(60, 2)
            [request] = hook.requests
            assert "500 engines" in str(request.json["title"])
            assert "and 492 more" in str(request.json["message"])
            told = desk.live.store.cases()
            assert len(told) == 500
            assert all(case.told is not None for case in told)
        finally:
            desk.close()


def test_053_alerts_of_many_rules_are_summed_up_within_the_minute(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            events = [alert(0, rule=f"rule-{number}") for number in range(500)]
            desk.see(*events)
            desk.go(50, 1)
            assert len(hook.requests) == 10
            assert "and 483 more" in str(hook.requests[-1].json["message"])
            assert all(case.told is not None for case in desk.live.store.cases())
            assert len(desk.live.store.alert_events()) == 500
            desk.go(600, 10)
            assert len(hook.requests) == 10, "nothing is left to tell"
            assert desk.live.store.notices(NoticeState.WAITING) == []
        finally:
            desk.close()
