"""What is kept of a life that is over, and the alert that goes on through the restarts that it is about."""

import pickle
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd.course import KEPT_PARTS, MOST_PARTS, PART_RECORDS, Course, Part, PastLife, joined, part_of
from kvlogd.engines import Ids
from kvlogd.kinds.recovery import Params, Recovery, lost_share, slower_share
from kvlogd.model import Abstained, AlertEvent, Clear, Event, EventKind, Finding, Run, Stats
from kvlogd.pipeline import PAST_LIVES, Pipeline
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.window import Window
from tests.lines import START_S, record

Usage = Callable[[float], float]
"""From the share of a life that is over to the usage at eight running."""
RULES = [rule for rule in load_rules([shipped_folder()]) if rule.id == "restart-recovery"]


def life(number: int, usage: Usage, *, records: int = 300, pace: Usage = lambda _x: 1.0) -> Iterator[Stats | Event]:
    """Yield a start and the records of one life; each begins five minutes after the end of the one before."""
    rng = random.Random(number)
    start_s = number * (10.0 * records + 300.0)
    yield Event(START_S + start_s, EventKind.BANNER, 1)
    for i in range(records):
        running, x = rng.randint(6, 10), i / records
        kv = round(min(1.0, usage(x) * (0.5 + running / 16)), 3)
        tps = 30.0 * running / pace(x)
        yield record(start_s + 20 + 10 * i, running=running, prompt_tps=4 * tps, generation_tps=tps, kv_usage=kv)


def told(*lives: Iterator[Stats | Event]) -> list[AlertEvent]:
    pipeline = Pipeline("vllm.log", Ids(), RULES)
    for one in lives:
        pipeline.take(one)
    return list(pipeline.harvest().alert_events)


def leaks(x: float) -> float:
    return 0.2 + 0.5 * x


def holds(_x: float) -> float:
    return 0.2


# --- the alert


def test_it_fires_once_in_the_second_life_and_no_restart_ends_it() -> None:
    events = told(*(life(n, leaks) for n in range(5)))
    assert [event.state.value for event in events] == ["firing"]
    [fired] = events
    assert (fired.key.run, fired.key.scope) == (None, "vllm.log/0")
    assert START_S + 3300 < fired.at_s < START_S + 6600
    assert fired.since_s == START_S
    assert fired.evidence["lives"] == 2
    assert fired.evidence["lost"] == pytest.approx(0.44, abs=0.1)


def test_it_fires_for_slowness_too() -> None:
    events = told(*(life(n, holds, pace=lambda x: 1 + 0.6 * x) for n in range(3)))
    assert [event.state.value for event in events] == ["firing"]
    assert events[0].evidence["slower"] > 0.15


def test_a_life_twice_as_long_that_stays_well_ends_it() -> None:
    events = told(*(life(n, leaks) for n in range(3)), life(3, holds, records=1200))
    assert [event.state.value for event in events] == ["firing", "resolved"]
    assert events[1].reason == "cleared"


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param([leaks], id="one life"),
        pytest.param([holds] * 5, id="restarts of a healthy server"),
        pytest.param([leaks, holds, holds, holds], id="one bad life"),
        pytest.param([leaks, lambda _x: 0.75, lambda _x: 0.75], id="what no restart cures"),
        pytest.param([lambda x: 0.2 + 0.05 * x] * 5, id="five points"),
    ],
)
def test_it_does_not_fire(lives: list[Usage]) -> None:
    assert told(*(life(n, usage) for n, usage in enumerate(lives))) == []


def test_an_idle_moment_with_an_empty_pool_says_that_nothing_is_lost() -> None:
    def with_idle(number: int) -> Iterator[Stats | Event]:
        for i, line in enumerate(life(number, leaks)):
            yield record(line.ts_s - START_S) if isinstance(line, Stats) and i % 12 == 0 else line

    assert told(*(with_idle(n) for n in range(4))) == []


def grows(number: int, lost: Usage, *, connector: int = 0) -> Iterator[Stats | Event]:
    """Yield a life whose load at the end is nowhere at its beginning, so that only idle records compare."""
    for i, line in enumerate(life(number, holds)):
        if not isinstance(line, Stats):
            yield line
            yield Event(line.ts_s, EventKind.ARGS, 1, None, {"max_num_seqs": 64.0, "kv_connector": float(connector)})
            continue
        x = i / 300
        running = 0 if i % 4 == 0 else 2 + int(20 * x)
        tps = 30.0 * running
        usage = round(lost(x) + 0.02 * running, 3)
        at_s = line.ts_s - START_S
        yield record(at_s, running=running, prompt_tps=4 * tps, generation_tps=tps, kv_usage=usage)


@pytest.mark.parametrize(
    ("lost", "connector", "fires"),
    [
        pytest.param(lambda x: 0.4 * x, 0, True, id="an idle engine holds ever more"),
        pytest.param(lambda x: 0.4 * x, 1, False, id="leases may hold it"),
        pytest.param(lambda _x: 0.0, 0, False, id="only the load grows"),
        pytest.param(lambda x: 0.1 * x, 0, False, id="too little"),
    ],
)
def test_where_no_load_compares_idle_records_do(lost: Usage, connector: int, fires: bool) -> None:
    events = told(*(grows(n, lost, connector=connector) for n in range(4)))
    assert [event.state.value for event in events] == ["firing"] * fires


def test_a_later_reading_that_has_not_seen_the_lives_does_not_end_it() -> None:
    events = told(*(life(n, leaks) for n in range(3)))
    later = Pipeline("vllm.log", Ids(), RULES)
    later.take(life(3, holds))
    later.close_unconfirmed(events)
    assert later.harvest().alert_events == []


# --- failures


def dies(number: int, kind: EventKind, records: int = 300) -> Iterator[Stats | Event]:
    yield from life(number, holds, records=records)
    yield Event(START_S + number * 3300.0 + 3050, kind, 1)


@pytest.mark.parametrize("kind", [EventKind.CRASH, EventKind.KILLED])
def test_two_lives_that_died_make_a_finding(kind: EventKind) -> None:
    events = told(dies(0, kind), dies(1, kind), life(2, holds))
    assert [event.state.value for event in events] == ["firing"]
    assert events[0].evidence["failed"] == 1
    assert events[0].at_s < START_S + 6600 + 60


def test_it_says_how_much_of_a_life_is_left_before_the_next_failure() -> None:
    course = course_of(300)
    window = Window(Run(3, 1, 3, START_S, seen_from_start=True))
    window.past = tuple(
        PastLife(n, START_S, START_S + 3000.0, 300, course.beginning(), course.ending(), failed=True) for n in (1, 2)
    )
    evaluator, left = Recovery(Params()), []
    for i in range(200):
        window.observe(record(10.0 * i, running=4, generation_tps=100.0, kv_usage=0.1))
        said = evaluator.judge(window, START_S + 10.0 * i)
        assert isinstance(said, Finding)
        left.append(said.evidence["next_in_s"])
    assert left[0] == 3000
    assert 900 < left[-1] < 1400


def test_a_life_twice_as_long_that_goes_on_ends_that_too() -> None:
    events = told(dies(0, EventKind.CRASH), dies(1, EventKind.CRASH), life(2, holds, records=1200))
    assert [event.state.value for event in events] == ["firing", "resolved"]
    assert events[1].reason == "cleared"


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param([dies(0, EventKind.CRASH), life(1, holds), life(2, holds)], id="a single crash"),
        pytest.param([dies(0, EventKind.CRASH), dies(1, EventKind.CRASH, 60), life(2, holds)], id="by chance"),
        pytest.param([dies(0, EventKind.STOP), dies(1, EventKind.STOP), life(2, holds)], id="stopped on purpose"),
    ],
)
def test_other_ends_do_not(lives: list[Iterator[Stats | Event]]) -> None:
    assert told(*lives) == []


# --- what is kept


def course_of(records: int) -> Course:
    course = Course()
    for i in range(records):
        course.observe(record(10.0 * i, running=i % 7, generation_tps=2.0, kv_usage=(i % 10) / 10))
    return course


@pytest.mark.parametrize("records", [5, 95, 1000, 5000, 60_480])
def test_a_course_is_bounded_and_covers_the_life(records: int) -> None:
    course = course_of(records)
    assert len(course.parts) <= MOST_PARTS
    if course.parts:
        assert course.parts[0].start_s == START_S
        assert len({part.records for part in course.parts}) == 1
        assert sum(part.records for part in course.parts) > 0.98 * records - PART_RECORDS
        assert len(course.beginning()) <= KEPT_PARTS
        assert course.ending()[-1].end_s == course.parts[-1].end_s


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1), st.floats(0, 1e5)), min_size=2, max_size=40))
@settings(deadline=None)
def test_parts_add_up(lines: list[tuple[int, float, float]]) -> None:
    records = [record(i, running=r, prompt_tps=t, generation_tps=t, kv_usage=u) for i, (r, u, t) in enumerate(lines)]
    half = len(records) // 2
    whole, sums = part_of(records), joined([part_of(records[:half]), part_of(records[half:])])
    assert list(sums[:-1]) == pytest.approx(list(whole[:-1]))
    assert sums.idle_usage == whole.idle_usage


def test_past_lives_are_few_and_can_be_pickled() -> None:
    pipeline = Pipeline("vllm.log", Ids(), RULES)
    for n in range(PAST_LIVES + 3):
        pipeline.take(life(n, leaks))
    [lives] = pipeline.past.values()
    assert len(lives) == PAST_LIVES
    assert pickle.loads(pickle.dumps(pipeline.past)) == pipeline.past
    assert len(pickle.dumps(pipeline.past)) < 40_000


# --- measures


def parts(*, running: int = 8, generation_tps: float = 200.0, kv_usage: float = 0.2) -> list[Part]:
    one = record(running=running, prompt_tps=900.0, generation_tps=generation_tps, kv_usage=kv_usage)
    return [part_of([one] * 10)] * 5


def test_only_no_less_load_compares() -> None:
    assert lost_share(parts(kv_usage=0.5), parts()) == pytest.approx(0.3)
    assert slower_share(parts(generation_tps=100.0), parts()) == pytest.approx(1.0)
    assert lost_share(parts(running=16, kv_usage=0.5), parts()) is None
    assert slower_share(parts(running=16, generation_tps=250.0), parts()) is None


def test_one_life_is_too_little_and_says_so() -> None:
    window = Window(Run(1, 1, 1, START_S, seen_from_start=True))
    evaluator = Recovery(Params())
    for line in life(0, leaks):
        if isinstance(line, Stats):
            window.observe(line)
            judgement = evaluator.judge(window, line.ts_s)
    assert isinstance(judgement, Abstained)


def paced(number: int, token_s: float) -> Part:
    """Return a part in which ten requests run."""
    start_s = 100.0 * number
    return Part(start_s, start_s + 90, 10, 100, 1100, 0, 500.0, 100 / token_s, 1.0, 10.0, 0.05, 0.15, 0, 0.0, None)


def test_a_life_that_no_restart_has_ended_yet_is_no_case_however_few_lives_are_asked_for() -> None:
    ends = tuple(paced(30 + number, 1.6) for number in range(8))
    past = PastLife(1, 0.0, 4000.0, 400, tuple(paced(number, 1.0) for number in (1, 2)), ends, False)
    now = past._replace(run_id=2, fresh=tuple(paced(number, 1.0) for number in (1, 2, 3)))
    assert Recovery(Params(lives=1))._together([past], now) == Clear()
