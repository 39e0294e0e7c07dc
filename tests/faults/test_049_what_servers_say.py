"""49. Whatever a server says, its channel is left in peace for a while; one that refuses is told of through another."""

import itertools
from pathlib import Path

import pytest

from kvlogd.line import BAD_AFTER, BAD_WAIT_S
from kvlogd.model import Fault, NoticeKind
from kvlogd.outbox import NoticeState
from kvlogd.overview import status_of
from kvlogd.status import ChannelState, Mode, from_json, status_text, to_json
from tests.outboxes import BEGIN_S, alert
from tests.paging import Desk
from tests.sinks import Answer, HttpSink


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(429, {"Retry-After": "100"}), Fault.BUSY),
        (Answer(500), Fault.FAILED),
        (Answer(403), Fault.REFUSED),
        (Answer(manner="drop"), Fault.UNREACHABLE),
    ],
)
def test_049_a_channel_that_fails_is_left_in_peace_for_a_while(tmp_path: Path, answer: Answer, fault: Fault) -> None:
    with HttpSink() as hook:
        hook.default = answer
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            times, before = [], 0
            while before < 3:
                desk.go(2, 2)
                if len(hook.requests) > before:
                    before = len(hook.requests)
                    times.append(desk.live.clock.wall - BEGIN_S)
            [notice] = desk.live.store.notices(NoticeState.WAITING)
            assert notice.fault in (fault, Fault.FAILED)
            pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert pauses[0] >= (100 if fault is Fault.BUSY else 7)
            assert pauses[1] >= (100 if fault is Fault.BUSY else 15)
        finally:
            desk.close()


def test_049_a_name_that_is_not_there_is_tried_again_like_any_other_outage(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"hook": "json://nobody.invalid/hook"})
    try:
        desk.see(alert(0))
        desk.go(12, 4)
        [notice] = desk.live.store.notices(NoticeState.WAITING)
        assert notice.fault in (Fault.UNREACHABLE, Fault.TIMEOUT)
        assert notice.attempts == 1
        assert "json://nobody" not in desk.said.getvalue()
    finally:
        desk.close()


@pytest.mark.parametrize("status_code", [403, 404])
def test_049_a_channel_that_refuses_is_told_of_through_another(tmp_path: Path, status_code: int) -> None:
    with HttpSink() as hook, HttpSink() as other:
        hook.default = Answer(status_code)
        desk = Desk(tmp_path, {"hook": hook.url(), "other": other.url()})
        try:
            desk.see(alert(0))
            desk.go(240, 4)
            assert len(hook.requests) == BAD_AFTER
            titles = [str(request.json["title"]) for request in other.requests]
            assert len(titles) == 2
            assert "channel hook takes no messages" in titles[1]
            assert str(status_code) in str(other.requests[1].json["message"])
            assert f"channel hook: is out of order: refused ({status_code})" in desk.said.getvalue()
            status = status_of(None, tmp_path, [], Mode.POLLING, 0.0, 0.0, channels=desk.dispatch.channels())
            assert [(one.name, one.state, one.waiting) for one in status.channels] == [
                ("hook", ChannelState.OUT_OF_ORDER, 1), ("other", ChannelState.FINE, 0),
            ]  # fmt: skip
            assert f"refused ({status_code}), 3 times in a row" in status_text(from_json(to_json(status)))
            hook.default = Answer()
            desk.kill()
            desk.go(BAD_WAIT_S + 60, 60)
            assert len(other.requests) == 2, "told once, across a restart"
            kinds = [n.kind for n in desk.notices() if n.channel == "hook" and n.state is NoticeState.SENT]
            assert kinds == [NoticeKind.FIRING]
        finally:
            desk.close()
