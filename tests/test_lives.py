"""Lives that each show too little of their pace show it together, and only where restarts cure it."""

import random
from collections.abc import Callable, Iterator

import pytest

from kvlogd.course import Course, PastLife, part_of
from kvlogd.engines import Ids
from kvlogd.lives import SEEN_RUNNING, Ages, Together, ages_of, rows_of, together, worse_of
from kvlogd.model import AlertEvent, Event, EventKind, Stats
from kvlogd.pace import Row
from kvlogd.pipeline import Pipeline
from kvlogd.rules import load_rules, shipped_folder
from tests.lines import START_S, record

Pace = Callable[[float], float]
"""From the share of a life that is over to how much longer a token takes."""
RULES = [rule for rule in load_rules([shipped_folder()]) if rule.id == "restart-recovery"]
RECORDS = 1200


def slows(x: float) -> float:
    return 1 + 0.7 * x


def keeps(_x: float) -> float:
    return 1.0


def few(number: int, pace: Pace, *, records: int = RECORDS) -> Iterator[Stats | Event]:
    """Yield a life in which a request runs at two records in five."""
    rng = random.Random(number)
    start_s = number * 13_000.0
    yield Event(START_S + start_s, EventKind.BANNER, 1)
    for i in range(records):
        seen = sum(rng.random() < 0.2 * pace(i / records) for _ in range(2))
        tps = 16.0 * rng.gauss(1, 0.1)
        yield record(start_s + 20 + 10 * i, running=seen, prompt_tps=60.0, generation_tps=tps, kv_usage=0.02 * seen)


def told(*lives: Iterator[Stats | Event]) -> list[AlertEvent]:
    pipeline = Pipeline("vllm.log", Ids(), RULES)
    for one in lives:
        pipeline.take(one)
    return list(pipeline.harvest().alert_events)


def test_lives_of_few_requests_are_told_together() -> None:
    events = told(*(few(n, slows) for n in range(5)))
    assert [event.state.value for event in events] == ["firing"]
    assert events[0].evidence["slower"] > 0.25
    assert events[0].evidence["lives"] >= 2


@pytest.mark.parametrize(
    "paces",
    [
        pytest.param([keeps] * 6, id="restarts of a healthy server"),
        pytest.param([slows, keeps, keeps, keeps, keeps], id="one bad life"),
        pytest.param([slows, *[lambda _x: 1.7] * 4], id="what no restart cures"),
        pytest.param([lambda _x: 1.7, *[keeps] * 4], id="a restart that made it faster for good"),
    ],
)
def test_nothing_is_told_where_no_restart_cures_again_and_again(paces: list[Pace]) -> None:
    assert told(*(few(n, pace) for n, pace in enumerate(paces))) == []


def test_a_life_twice_as_long_that_keeps_its_pace_ends_it() -> None:
    lives = [few(n, slows) for n in range(4)]
    events = told(*lives, few(4, keeps, records=4 * RECORDS))
    assert [event.state.value for event in events] == ["firing", "resolved"]


# --- rows


def life(*, idle_s: float = 0.0) -> PastLife:
    """Return a life that begins with nothing to do."""
    course = Course()
    for i in range(400):
        course.observe(record(idle_s + 10.0 * i, running=3, prompt_tps=90.0, generation_tps=80.0, kv_usage=0.1))
    last_s = START_S + idle_s + 4000.0
    return PastLife(1, START_S, last_s, 400, course.beginning(), course.ending(), False)


def test_a_life_that_idled_first_shows_no_beginning() -> None:
    assert ages_of(life()).young
    assert ages_of(life(idle_s=8000.0)).young == []
    assert len(ages_of(life(idle_s=8000.0)).old) == len(ages_of(life()).old)


@pytest.mark.parametrize(("running", "rows"), [(0, 0), (1, 2), (2, 4), (6, 12), (50, 12)])
def test_a_row_has_seen_enough_requests(running: int, rows: int) -> None:
    records = [record(10.0 * i, running=running, generation_tps=40.0, kv_usage=0.1) for i in range(10)]
    found = rows_of([part_of(records)] * 12)
    assert len(found) == rows
    assert all(round(row.running) == running for row in found)
    assert SEEN_RUNNING == 60


# --- what they say

ROW = Row(0.0, 600.0, 2.0, 100.0, 50.0, 0.1, 0.5, 200.0, 0.04, 0.5)
FAST, SLOW = [ROW] * 3, [ROW._replace(token_s=0.052)] * 3


def said_by(lives: list[Ages]) -> Together | None:
    return together([one for place in range(len(lives)) for one in worse_of(lives, place)], lives)


@pytest.mark.parametrize(
    ("lives", "slower", "places"),
    [
        pytest.param([Ages(FAST, SLOW)] * 3, 0.3, (0, 1, 2), id="each ends slower"),
        pytest.param([Ages(FAST, SLOW), Ages(FAST, FAST), Ages(FAST, FAST)], 0.0, (), id="one of three does"),
        pytest.param([Ages(FAST, SLOW), *[Ages(SLOW, SLOW)] * 2], 0.0, (), id="the later ones begin slow too"),
        pytest.param([Ages([], SLOW), Ages(FAST, SLOW), Ages(FAST, SLOW)], 0.3, (1, 2), id="one shows no beginning"),
    ],
)
def test_what_lives_say_together(lives: list[Ages], slower: float, places: tuple[int, ...]) -> None:
    found = said_by(lives)
    assert found is not None
    assert found.slower == pytest.approx(slower)
    assert found.places == places


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param([], id="no life"),
        pytest.param([Ages(FAST, SLOW)], id="one life"),
        pytest.param([Ages(FAST, SLOW[:1])] * 3, id="too few ends"),
        pytest.param([Ages(FAST, SLOW)] + [Ages([], SLOW)] * 4, id="no beginning after an end"),
        pytest.param([Ages(FAST, [ROW._replace(prompt_tps=150.0)] * 3)] * 3, id="more prompts at the end"),
    ],
)
def test_too_little_compares(lives: list[Ages]) -> None:
    assert said_by(lives) is None
