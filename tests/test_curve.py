"""The curve of usage against running: what a block keeps, what moves it, and the idle spells at its lower end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import curve
from kvlogd.course import newest
from kvlogd.curve import (
    KEPT,
    Block,
    Spell,
    Spells,
    batch_of,
    climbs,
    compare,
    joined,
    lift_of,
    load_bin,
    stretch_of,
)
from kvlogd.model import Stats


def record(at_s: float, running: int, usage: float, prompt: float = 100.0, generated: float = 50.0) -> Stats:
    return Stats(at_s, None, 0, None, prompt, generated, running, 0, usage)


def block_of(rows: list[Stats], interval_s: float) -> Block:
    return curve.block_of(batch_of(rows), interval_s)


records = st.builds(
    record,
    st.floats(0, 1e9),
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)


@given(st.integers(0, 100_000))
def test_bins_never_fall_with_load(running: int) -> None:
    assert load_bin(running) <= load_bin(running + 1) <= 43


@given(st.lists(records, min_size=1, max_size=40), st.floats(0.1, 60))
def test_no_block_raises_and_its_numbers_are_within_its_records(rows: list[Stats], interval_s: float) -> None:
    block = block_of(rows, interval_s)
    assert block.least_usage == min(r.kv_usage for r in rows)
    assert sum(cell.records for cell in block.cells.values()) == len(rows)
    stretch = stretch_of([block, block], 1, short=False)
    assert set(stretch.points) == set(block.cells)


@given(st.lists(st.lists(records, min_size=1, max_size=9), min_size=1, max_size=6))
def test_batches_that_are_joined_are_the_batch_of_all_records(parts: list[list[Stats]]) -> None:
    whole, found = batch_of([row for part in parts for row in part]), joined([batch_of(part) for part in parts])
    assert found._replace(generation_tps=0.0, each_tps=0.0) == whole._replace(generation_tps=0.0, each_tps=0.0)
    assert found.generation_tps == pytest.approx(whole.generation_tps)
    assert found.each_tps == pytest.approx(whole.each_tps)


def test_order_of_equal_records_does_not_matter() -> None:
    rows = [record(0.0, r, u) for r, u in ((2, 0.25), (2, 0.25), (2, 0.5), (4, 0.5), (4, 0.5))]
    mixed = rows[:]
    random.Random(1).shuffle(mixed)
    assert block_of(rows, 10.0)._replace(cells={}) == block_of(mixed, 10.0)._replace(cells={})
    levels = [{key: cell.usage for key, cell in block_of(r, 10.0).cells.items()} for r in (rows, mixed)]
    assert levels[0] == levels[1]


def block_at(usage_of_running: dict[int, float], at_s: float) -> list[Stats]:
    return [record(at_s + i, r, u) for i, (r, u) in enumerate(sorted(usage_of_running.items()) * 5)]


@pytest.mark.parametrize(
    ("now", "intercept"),
    [
        ({2: 0.20, 4: 0.30, 8: 0.50}, pytest.approx(0.10, abs=0.01)),  # lifted
        ({2: 0.20, 4: 0.40, 8: 0.80}, pytest.approx(0.0, abs=0.01)),  # tilted: requests twice as long
        ({2: 0.10, 4: 0.20, 8: 0.40}, pytest.approx(0.0, abs=0.01)),  # the same
    ],
)
def test_a_leak_lifts_the_curve_and_longer_requests_tilt_it(now: dict[int, float], intercept: float) -> None:
    before = {2: 0.10, 4: 0.20, 8: 0.40}
    blocks = [block_of(block_at(before, 100.0 * i), 10.0) for i in range(6)]
    later = [block_of(block_at(now, 5000.0 + 100.0 * i), 10.0) for i in range(6)]
    shift = compare(stretch_of(later, 2, short=False), stretch_of(blocks, 2, short=False))
    assert shift is not None
    assert shift.intercept == intercept


def test_a_rise_within_a_stretch_is_not_taken_for_noise() -> None:
    even, rising = (
        stretch_of([block_of(block_at({4: 0.2 + rise * i}, 100.0 * i), 10.0) for i in range(12)], 2, short=False)
        for rise in (0.0, 0.01)
    )
    assert rising.points[4].error < even.points[4].error + 0.015
    noisy = [block_of(block_at({4: 0.2 + 0.06 * (i % 2)}, 100.0 * i), 10.0) for i in range(12)]
    assert stretch_of(noisy, 2, short=False).points[4].error > rising.points[4].error


def test_a_leak_is_no_larger_than_the_lowest_usage_allows() -> None:
    blocks = [block_of([record(i, 4, 0.2) for i in range(10)], 10.0)] * 3
    later = [block_of([record(i, 4, 0.6) for i in range(9)] + [record(9, 1, 0.007)], 10.0)] * 3
    shift = compare(stretch_of(later, 2, short=False), stretch_of(blocks, 2, short=False))
    assert shift is not None
    assert shift.mean == pytest.approx(0.4)
    assert shift.shift == pytest.approx(0.01)


def test_stretches_that_share_no_load_are_not_compared_and_load_0_is_none() -> None:
    low, high, idle = (
        stretch_of([block_of([record(i, r, 0.2) for i in range(10)], 10.0)] * 3, 2, short=False) for r in (2, 50, 0)
    )
    assert compare(high, low) is None
    assert compare(idle, idle) is None


def test_how_far_the_newest_block_lies_above_what_was() -> None:
    reference = stretch_of([block_of(block_at({2: 0.1, 4: 0.2}, 0.0), 10.0)] * 3, 2, short=False)
    block = block_of(block_at({2: 0.2, 4: 0.24, 8: 0.9}, 0.0), 10.0)
    assert lift_of(block, reference, 0.5) == pytest.approx(0.07)
    assert lift_of(block_of([record(0, 50, 0.9)], 10.0), reference, 0.5) == 0.5


def test_only_wanted_loads_are_looked_at() -> None:
    block = block_of(block_at({2: 0.1, 4: 0.2}, 0.0), 10.0)
    assert set(stretch_of([block] * 3, 2, short=False, wanted={4, 9}).points) == {4}


@pytest.mark.parametrize("count", [0, 2, 5, 9])
def test_newest_are_the_last_in_order(count: int) -> None:
    rows = [record(i, 1, 0.1) for i in range(5)]
    assert newest(rows, count) == rows[max(0, 5 - count) :]


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1), st.floats(0, 100)), max_size=200))
def test_spells_remember_the_lowest_and_never_more_than_their_bound(rows: list[tuple[int, float, float]]) -> None:
    spells, at_s = Spells(0.005), 0.0
    for running, usage, later_s in rows:
        at_s += later_s
        spells.observe(record(at_s, running, usage), 10.0)
    idle = [usage for running, usage, _ in rows if not running]
    assert spells.lowest == (min(idle) if idle else None)
    assert all(spell.usage >= (spells.lowest or 0) + 0.005 - 1e-6 for spell in spells.raised)


def test_spells_of_months_are_thinned_out() -> None:
    spells = Spells(0.005)
    for i in range(5000):
        spells.observe(record(i * 100.0, 0, 0.0 if i == 0 else 0.1), 10.0)
    assert spells.count == 5000
    assert len(spells.past) <= KEPT + 1
    assert len(spells.raised) <= KEPT + 1
    assert spells.raised[0].start_s == 100.0


@pytest.mark.parametrize(("usages", "says"), [([0.03, 0.05, 0.07], True), ([0.03, 0.03, 0.07], False)])
def test_climbing_is_every_third_above_the_one_before(usages: list[float], says: bool) -> None:
    assert climbs([Spell(i, i, usage) for i, usage in enumerate(usages)]) is says
