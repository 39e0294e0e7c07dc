from collections.abc import Sequence

import pytest

from kvlogd.leap import AGAIN_S, MOST_HELD, Leaps, Line
from kvlogd.model import Event, EventKind, Stats
from tests.lines import START_S, record

DAY_S = 86400.0
YEAR_S = 365 * DAY_S


def event(at_s: float | None) -> Event:
    return Event(None if at_s is None else START_S + at_s, EventKind.BANNER if at_s else EventKind.STOP)


def taken(found: Sequence[Line], leaps: Leaps | None = None, *, clock_s: float | None = None) -> list[Line]:
    """Return what is believed of some lines; the clock is that of the latest record, or stands further on."""
    leaps, believed = leaps or Leaps(), list[Line]()
    now_s = None if clock_s is None else START_S + clock_s
    for one in found:
        for free in leaps.weigh(one, now_s):
            believed.append(free)
            at_s = free.ts_s or now_s
            if isinstance(free, Stats):
                leaps.last_s = free.ts_s
            if clock_s is None and at_s is not None:
                now_s = at_s if now_s is None or isinstance(free, Stats) else max(at_s, now_s)
    return believed


def every(seconds: float, times: int, start_s: float = 0.0) -> list[Line]:
    return [record(start_s + seconds * i) for i in range(times)]


@pytest.mark.parametrize("leap_s", [300.0, 3600.0, DAY_S, 20 * DAY_S, YEAR_S, -300.0, -3600.0, -YEAR_S])
@pytest.mark.parametrize("many", [1, 4])
def test_a_moment_out_of_line_costs_only_itself(leap_s: float, many: int) -> None:
    before, behind, leaps = every(10, 5), every(10, 5, 50), Leaps()
    out = [record(40 + leap_s + i, index=i) for i in range(many)]
    assert taken([*before, *out, *behind], leaps) == [*before, *behind]
    assert leaps.losses() == {"stamp out of line": many}


@pytest.mark.parametrize("leap_s", [7 * DAY_S, YEAR_S, 3600.0, -7200.0])
@pytest.mark.parametrize("step_s", [2.0, 10.0, 60.0])
def test_a_leap_that_is_real_is_right_from_its_first_line_on(leap_s: float, step_s: float) -> None:
    found = [*every(step_s, 5), *every(step_s, 9, 50 + leap_s)]
    leaps = Leaps()
    assert [*taken(found, leaps), *leaps.settle()] == found
    assert leaps.refused == 0


def test_records_that_stand_alone_between_silent_spells_are_right() -> None:
    found: list[Line] = [record(at_s) for at_s in (0, 3600, 3600 + 86400, 90200, 700_000, 700_500)]
    leaps = Leaps()
    assert [*taken(found, leaps), *leaps.settle()] == found


def test_lines_keep_their_order_and_what_has_no_stamp_is_never_refused() -> None:
    found: list[Line] = [record(0), event(5000), event(None), record(5001), record(5010), record(5020)]
    assert taken(found) == found
    found = [record(0), record(-4000), event(None), record(10)]
    assert taken(found) == [record(0), event(None), record(10)]


def test_an_event_from_before_moves_no_clock_and_is_no_leap() -> None:
    found: list[Line] = [record(0), event(-4000), record(10)]
    assert taken(found) == found


def test_a_leap_from_the_place_of_a_refused_one_is_weighed_anew() -> None:
    leaps = Leaps()
    found: list[Line] = [record(0), record(YEAR_S), record(DAY_S), record(DAY_S + 10), record(DAY_S + 20)]
    assert taken(found, leaps) == [found[0], *found[2:]]
    assert leaps.refused == 1


def test_what_comes_late_is_no_leap_while_the_clock_runs_on() -> None:
    late = [record(0), record(100), record(200)]
    leaps = Leaps()
    leaps.last_s = START_S
    assert taken(late, leaps, clock_s=400) == late


def test_of_two_clocks_in_one_log_both_are_believed() -> None:
    found: list[Line] = [record(10 * i + (7200 if i % 2 else 0), pid=i % 2) for i in range(20)]
    leaps = Leaps()
    believed = taken(found, leaps)
    assert found[-14:] == believed[-14:]
    assert leaps.refused <= 2
    leaps = Leaps()
    again: list[Line] = [record(0), record(7200), record(10), record(20 + AGAIN_S), record(30 + AGAIN_S)]
    again += [record(30 + AGAIN_S + 7200), record(40 + AGAIN_S)]
    taken(again, leaps)
    assert leaps.refused == 2


def test_at_the_end_nothing_contradicts_but_what_cannot_be() -> None:
    leaps = Leaps()
    taken([record(0), record(3600), event(None)], leaps)
    assert list(leaps.settle(START_S + DAY_S)) == [record(3600), event(None)]
    taken([record(0), record(YEAR_S), event(None)], leaps)
    assert list(leaps.settle(START_S + DAY_S)) == [event(None)]
    assert leaps.refused == 1
    assert list(leaps.settle()) == []


def test_no_more_is_held_than_there_is_room_for() -> None:
    leaps = Leaps()
    found: list[Line] = [record(0), record(3600), *[event(None)] * MOST_HELD]
    assert len(taken(found, leaps)) == len(found)
    assert len(leaps.held) <= 1
