"""54. What is over: told where its beginning was told, tried again where that fails, and never as something new."""

from pathlib import Path

import pytest

from kvlogd.model import Event, EventKind, NoticeKind
from kvlogd.outbox import NoticeState
from kvlogd.retention import Keep, tend
from kvlogd.rows import Batch
from tests.outboxes import BEGIN_S, alert
from tests.paging import Desk
from tests.sinks import Answer, HttpSink

DAY_S = 86400.0


def told(desk: Desk) -> list[NoticeKind]:
    return [notice.kind for notice in desk.notices() if notice.state is NoticeState.SENT]


def test_054_a_what_is_over_before_it_was_told_is_told_to_nobody(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            desk.turn(1)
            desk.see(alert(1, over=True))
            desk.go(3600, 60)
            assert hook.requests == []
            [notice] = desk.notices()
            assert (notice.state, notice.why) == (NoticeState.DROPPED, "nothing of it was left to tell")
        finally:
            desk.close()


@pytest.mark.parametrize("dies", [False, True])
def test_054_b_an_end_that_does_not_get_out_is_tried_again(tmp_path: Path, dies: bool) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            desk.go(20)
            hook.default = Answer(500)
            desk.see(alert(20, over=True))
            desk.go(30)
            if dies:
                desk.kill()
            hook.default = Answer()
            desk.go(60)
            assert told(desk) == [NoticeKind.FIRING, NoticeKind.RESOLVED]
            assert desk.live.store.cases() == []
        finally:
            desk.close()


def test_054_c_it_is_repeated_while_it_fires_and_only_then(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()}, repeat_every="1h")
        try:
            desk.see(alert(0))
            desk.go(2.5 * 3600, 60)
            desk.see(alert(2.5 * 3600, over=True))
            desk.go(5 * 3600, 60)
            kinds = [NoticeKind.FIRING, NoticeKind.REPEAT, NoticeKind.REPEAT, NoticeKind.RESOLVED]
            assert told(desk) == kinds
        finally:
            desk.close()


def test_054_d_a_month_of_firing_outlives_the_log_of_its_notices(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()}, repeat_every="1000d")
        try:
            desk.see(alert(0))
            desk.go(20)
            assert told(desk) == [NoticeKind.FIRING]
            desk.live.clock.pass_s(30 * DAY_S)
            store, wall_s = desk.live.store, desk.live.clock.wall_s()
            events = [
                (None, None, Event(at_s, EventKind.STOP)) for at_s in (BEGIN_S, *(wall_s - n * DAY_S for n in range(5)))
            ]
            store.commit(Batch(events=events))
            tend(store, wall_s, Keep(7 * DAY_S, 7 * DAY_S))
            assert store.notices() == [], "they are forgotten after a week"
            desk.kill()
            desk.go(3600, 60)
            assert len(hook.requests) == 1
            desk.see(alert(30 * DAY_S, over=True))
            desk.go(20)
            assert told(desk) == [NoticeKind.RESOLVED]
        finally:
            desk.close()
