"""The pace says creep where a token takes longer at no more load, and only there."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd.course import PART_RECORDS, Part, part_of
from kvlogd.kinds.creep import Creep, Params
from kvlogd.model import Abstained, Clear, Finding, Run, Stats
from kvlogd.pace import SCALES, Excess, Row, ScaleState, came_at_once, excess_of, row_of
from kvlogd.window import Window
from tests.lines import START_S, record

TOKEN_S = 0.025
Course = Callable[[float], float]
"""From the number of the record to a factor."""


def one(_i: float) -> float:
    return 1.0


def traffic(
    count: int, *, slower: Course = one, load: Course = one, prompts: Course = one, clients: bool = False
) -> Iterator[Stats]:
    """Yield records of an engine whose token takes 25 ms and 2 % longer for each request that runs.

    With `clients`, as many run as there are clients, and a slower engine does less; otherwise requests come at a rate
    of their own, and more of them run when it is slower.
    """
    rng = random.Random(5)
    for i in range(count):
        running = 8.0 * load(i)
        wanted_tps = running / (TOKEN_S * (1 + 0.02 * running))
        token_s = TOKEN_S * slower(i) * (1 + 0.02 * running) * rng.gauss(1, 0.02)
        if not clients:
            for _ in range(20):  # Little's law, with the batch that it makes
                running = wanted_tps * token_s
                token_s = TOKEN_S * slower(i) * (1 + 0.02 * running)
        tps = running / token_s
        seen = round(running) if clients else max(0, round(rng.gauss(running, running**0.5 / 2)))
        yield record(10.0 * i, running=seen, prompt_tps=4 * tps * prompts(i), generation_tps=tps, kv_usage=0.02 * seen)


def first_found(rows: Iterator[Stats]) -> int | None:
    """Return the number of the record at which the rule first fires."""
    window = Window(Run(1, 1, 1, START_S, seen_from_start=True))
    evaluator = Creep(Params())
    for i, stats in enumerate(rows):
        window.observe(stats)
        if i % 3 == 0 and isinstance(evaluator.judge(window, stats.ts_s), Finding):
            return i
    return None


def day(i: float) -> float:
    return 0.6 + 0.4 * (1 if i % 8640 < 4000 else 0)


@pytest.mark.parametrize("clients", [True, False])
@pytest.mark.parametrize("load", [one, day])
def test_a_creep_over_days_is_found_whatever_the_load(clients: bool, load: Course) -> None:
    at = first_found(traffic(22_000, slower=lambda i: 1 + max(0.0, i - 9000) / 20_000, load=load, clients=clients))
    assert at is not None
    assert 10_000 < at < 20_000


@pytest.mark.parametrize("clients", [True, False])
def test_a_creep_of_minutes_is_found_in_minutes(clients: bool) -> None:
    at = first_found(traffic(300, slower=lambda i: 1 + i / 60, clients=clients))
    assert at is not None
    assert at < 150


@pytest.mark.parametrize(
    ("load", "prompts"),
    [
        pytest.param(one, one, id="nothing"),
        pytest.param(lambda i: 1 + i / 9000, one, id="more load"),
        pytest.param(lambda i: 1.0 if i < 5000 else 4.0, one, id="a batch"),
        pytest.param(lambda i: 4.0 if i < 5000 else 1.0, one, id="less load"),
        pytest.param(one, lambda i: 1 + i / 9000, id="longer prompts"),
        pytest.param(day, one, id="days and nights"),
    ],
)
@pytest.mark.parametrize("clients", [True, False])
def test_load_is_no_creep(load: Course, prompts: Course, clients: bool) -> None:
    assert first_found(traffic(18_000, load=load, prompts=prompts, clients=clients)) is None


def test_a_hot_hour_is_no_creep() -> None:
    assert first_found(traffic(12_000, slower=lambda i: 1.3 if 8000 < i < 8400 else 1.0, clients=True)) is None


def test_a_slow_start_is_no_creep() -> None:
    assert first_found(traffic(9000, slower=lambda i: 2.0 if i < 10 else 1.0, clients=True)) is None


def spell(hours: float, factor: float) -> Course:
    """Return a pace that is slower by a factor from one record to the next, for some hours."""
    return lambda i: factor if 8000 < i <= 8000 + 360 * hours else 1.0


@pytest.mark.parametrize(("hours", "found"), [(2.0, False), (7.0, True)])
@pytest.mark.parametrize("clients", [True, False])
def test_what_comes_at_once_must_last(hours: float, found: bool, clients: bool) -> None:
    at = first_found(traffic(12_000, slower=spell(hours, 1.38), clients=clients))
    assert (at is not None) is found
    assert at is None or 8000 + 2 * 360 <= at <= 8000 + 6 * 360


def test_what_no_weather_explains_is_told_as_soon_as_it_is_sure() -> None:
    at = first_found(traffic(12_000, slower=spell(3.0, 1.8), clients=True))
    assert at is not None
    assert at <= 8000 + 1.7 * 360


def few(count: int, slower: Course) -> Iterator[Stats]:
    """Yield records of an engine that two requests in five keep busy: whether a record sees one is luck."""
    rng = random.Random(7)
    for i in range(count):
        tps = 0.4 / TOKEN_S * rng.gauss(1, 0.1)
        seen = sum(rng.random() < 0.2 * slower(i) for _ in range(2))
        yield record(10.0 * i, running=seen, prompt_tps=4 * tps, generation_tps=tps, kv_usage=0.02 * seen)


def test_hours_tell_where_few_requests_run() -> None:
    assert first_found(few(16_000, one)) is None
    at = first_found(few(16_000, lambda i: 1 + max(0.0, i - 6000) / 12_000))
    assert at is not None
    assert 6000 < at < 12_000


def test_moments_of_a_full_pool_spoil_no_calmer_ones() -> None:
    def full_now_and_then(slower: Course) -> Iterator[Stats]:
        for i, stats in enumerate(traffic(16_000, slower=slower, clients=True)):
            full = i % 40 < 10  # each fourth part, so that no row of 60 records is without
            yield stats._replace(kv_usage=0.95, generation_tps=stats.generation_tps / 3) if full else stats

    assert first_found(full_now_and_then(one)) is None
    at = first_found(full_now_and_then(lambda i: 1 + max(0.0, i - 6000) / 12_000))
    assert at is not None
    assert 6000 < at < 12_000


# --- rows


def rows(
    count: int, *, running: int = 8, waiting: int = 0, generation_tps: float = 200.0, kv_usage: float = 0.2
) -> list[Stats]:
    one = record(running=running, waiting=waiting, prompt_tps=900.0, generation_tps=generation_tps, kv_usage=kv_usage)
    return [one._replace(ts_s=START_S + 10.0 * i) for i in range(count)]


def test_a_row_has_the_time_of_a_token() -> None:
    row = row_of(part_of(rows(10)), 2.0)
    assert row is not None
    assert row.running == 8
    assert row.unsteady == 0
    assert row.token_s == pytest.approx(0.04)
    assert row.usage == pytest.approx(0.2)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(rows(10, running=1), id="too few run to tell"),
        pytest.param(rows(10, kv_usage=0.9), id="the pool is nearly full"),
        pytest.param(rows(10, waiting=3), id="a queue"),
        pytest.param(rows(10, generation_tps=0.0), id="nothing is generated"),
        pytest.param(rows(7) + rows(3, generation_tps=0.0), id="stalls or long prefills"),
    ],
)
def test_what_else_sets_the_pace_gives_no_row(records: list[Stats]) -> None:
    assert row_of(part_of(records), 2.0) is None


ROW = Row(0.0, 600.0, 8.0, 900.0, 200.0, 0.2, 0.5, 1800.0, 0.04, 0.2)


@pytest.mark.parametrize(
    ("change", "compared"),
    [
        ({}, True),
        ({"running": 9.0}, True),
        ({"prompt_tps": 1000.0}, False),
        ({"hit_rate": 0.4}, False),
        ({"hit_rate": 0.6, "whole_prompt_tps": 2250.0}, False),
        ({"running": 13.0, "generation_tps": 300.0}, False),
        ({"running": 13.0, "generation_tps": 200.0}, True),
        ({"usage": 0.4, "running": 8.0, "generation_tps": 250.0}, False),
    ],
)
def test_only_what_had_no_less_load_is_a_counterpart(change: dict[str, float], compared: bool) -> None:
    assert (excess_of(ROW._replace(**change), [ROW] * 3) is not None) is compared
    assert excess_of(ROW._replace(**change), [ROW] * 2) is None


def test_where_the_running_number_stands_still_the_same_work_is_no_proof() -> None:
    still = [ROW._replace(unsteady=0.0)] * 3
    assert excess_of(ROW._replace(running=13.0, token_s=0.065), still) is None
    found = excess_of(ROW._replace(running=13.0, token_s=0.065), [ROW] * 3)
    assert found is not None
    assert found.excess > 0.4


# --- how it came


@pytest.mark.parametrize(
    ("sizes", "at_once"),
    [
        pytest.param([0.0] * 6 + [0.32] * 9, True, id="from one row to the next"),
        pytest.param([0.0] * 5 + [0.2] + [0.32] * 9, True, id="in the middle of a row"),
        pytest.param([0.02 * i for i in range(24)], False, id="little by little"),
        pytest.param([0.0] * 6 + [0.15 + 0.03 * i for i in range(9)], False, id="at once, and it grows"),
        pytest.param([0.32] * 15, False, id="it was there before"),
        pytest.param([0.0] + [0.32] * 9, False, id="too little is known of before"),
    ],
)
def test_what_came_at_once(sizes: list[float], at_once: bool) -> None:
    rows = [Excess(ROW._replace(start_s=600.0 * i, end_s=600.0 * i + 590), size, 0.04) for i, size in enumerate(sizes)]
    assert came_at_once(rows, 0.32) is at_once


def test_a_night_in_between_hides_how_it_came() -> None:
    sizes = [0.0] * 6 + [0.32] * 9
    at_s = [600.0 * i + (36_000.0 if size else 0.0) for i, size in enumerate(sizes)]
    rows = [
        Excess(ROW._replace(start_s=start_s, end_s=start_s + 590), size, 0.04)
        for start_s, size in zip(at_s, sizes, strict=True)
    ]
    assert not came_at_once(rows, 0.32)


# --- what is said


def test_too_little_is_said_to_be_too_little() -> None:
    window = Window(Run(1, 1, 1, START_S, seen_from_start=True))
    evaluator = Creep(Params())
    kinds = []
    for stats in traffic(200, clients=True):
        window.observe(stats)
        kinds.append(type(evaluator.judge(window, stats.ts_s)))
    assert kinds[30] is Abstained
    assert kinds[-1] is Clear


def parts_of(records: Iterator[Stats]) -> Iterator[Part]:
    """Yield the parts that records make."""
    while len(some := list(islice(records, PART_RECORDS))) == PART_RECORDS:
        yield part_of(some)


def test_the_state_is_bounded() -> None:
    states = [ScaleState(scale) for scale in SCALES]
    for part in parts_of(traffic(20_000, clients=True)):
        for state in states:
            state.take([part])
    assert states[0].over()
    assert all(len(state._first) <= state.scale.most_reference for state in states)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9), st.floats(0, 1), st.floats(0, 1e5)), max_size=80))
@settings(deadline=None)
def test_no_input_raises(lines: list[tuple[int, int, float, float]]) -> None:
    states = [ScaleState(scale) for scale in SCALES]
    records = (
        Stats(1000.0 * i + j, 1, 0, None, tps, tps, running, waiting, usage)
        for i in range(12)
        for j, (running, waiting, usage, tps) in enumerate(lines)
    )
    for part in parts_of(records):
        for state in states:
            state.take([part])
