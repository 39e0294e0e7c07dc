"""The curve of usage against running: what moves it, and what does not."""

import pytest

from kvlogd import block
from kvlogd.block import Block, batch_of
from kvlogd.curve import compare, lift_of, stretch_of
from kvlogd.model import Stats


def record(at_s: float, running: int, usage: float, prompt: float = 100.0, generated: float = 50.0) -> Stats:
    return Stats(at_s, None, 0, None, prompt, generated, running, 0, usage)


def block_of(rows: list[Stats], interval_s: float) -> Block:
    return block.block_of(batch_of(rows), interval_s)


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
    latest = block_of(block_at({2: 0.2, 4: 0.24, 8: 0.9}, 0.0), 10.0)
    assert lift_of(latest, reference) == pytest.approx(0.07)
    assert lift_of(block_of([record(0, 50, 0.9)], 10.0), reference) is None


def test_only_wanted_loads_are_looked_at() -> None:
    one = block_of(block_at({2: 0.1, 4: 0.2}, 0.0), 10.0)
    assert set(stretch_of([one] * 3, 2, short=False, wanted={4, 9}).points) == {4}
