"""Records without a prompt count the requests, where they come seldom enough."""

import random
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log, sqrt

import pytest

from kvlogd.arrivals import Arrivals, step_between

RECORDS = 60


def blocks(count: int, a_record: float, *, each: float = 500.0, lasts: int = 1, seed: int = 7) -> list[Arrivals]:
    """Return blocks of a server that gets so many requests a record, whose prompts take so many records."""
    rng = random.Random(seed)
    begun = [rng.random() > exp(-a_record) for _ in range(count * RECORDS)]
    quiet = [not any(begun[max(0, i - lasts + 1) : i + 1]) for i in range(len(begun))]
    return [block_of(quiet[i : i + RECORDS], a_record * each * RECORDS) for i in range(0, len(quiet), RECORDS)]


def block_of(quiet: Sequence[bool], tokens: float) -> Arrivals:
    pairs = sum(one and other for one, other in pairwise(quiet))
    return Arrivals(tokens, len(quiet), sum(quiet), pairs)


@pytest.mark.parametrize("a_record", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("longer", [0.6, 1.0, 1.5])
def test_half_as_many_requests_for_the_same_tokens_are_twice_as_large(a_record: float, longer: float) -> None:
    step = step_between(blocks(36, a_record), blocks(12, a_record / longer, each=500.0 * longer, seed=9))
    assert step is not None
    assert step.by == pytest.approx(log(longer), abs=3.0 * step.error)
    assert 0.0 < step.error < 0.2


@pytest.mark.parametrize("longer", [0.6, 1.0, 1.5])
def test_a_step_is_as_sure_as_it_says(longer: float) -> None:
    off = []
    for seed in range(1000, 1080, 2):
        now = blocks(12, 1.0 / longer, each=500.0 * longer, seed=seed + 1)
        step = step_between(blocks(36, 1.0, seed=seed), now)
        assert step is not None
        off.append((step.by - log(longer)) / step.error)
    assert 0.7 < sqrt(sum(one * one for one in off) / len(off)) < 1.3


def test_requests_of_the_same_size_that_come_more_often_are_no_larger() -> None:
    step = step_between(blocks(36, 0.5), blocks(12, 1.5, seed=8))
    assert step is not None
    assert abs(step.by) < 2.5 * step.error


def test_more_blocks_tell_more_sharply() -> None:
    few, many = (step_between(blocks(36, 1.0), blocks(count, 1.0, seed=8)) for count in (3, 24))
    assert few is not None
    assert many is not None
    assert many.error < 0.6 * few.error


def test_prompts_that_last_for_several_records_hide_their_number() -> None:
    assert step_between(blocks(36, 0.5), blocks(12, 0.5, seed=8)) is not None
    assert step_between(blocks(36, 0.5, lasts=3), blocks(12, 0.5, lasts=3, seed=8)) is None
    assert step_between(blocks(36, 0.5), blocks(12, 0.3, lasts=4, seed=8)) is None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([Arrivals(1000.0, RECORDS, 20, 5)] * 7, [Arrivals(1000.0, RECORDS, 20, 5)]),  # too few to know their spread
        ([Arrivals(1000.0, RECORDS, 20, 5)] * 8, []),
        ([Arrivals(1000.0, RECORDS, 0, 0)] * 36, [Arrivals(1000.0, RECORDS, 20, 5)] * 9),  # requests in every record
        ([Arrivals(1000.0, RECORDS, 20, 5)] * 36, [Arrivals(1000.0, RECORDS, 0, 0)] * 9),
        ([Arrivals(0.0, RECORDS, RECORDS, 59)] * 36, [Arrivals(0.0, RECORDS, RECORDS, 59)] * 9),  # none at all
        ([Arrivals(1000.0, RECORDS, 20, 5)] * 36, [Arrivals(0.0, RECORDS, RECORDS, 59)] * 9),
    ],
)
def test_where_no_record_or_each_is_without_prompts_nothing_is_told(
    before: Sequence[Arrivals], now: Sequence[Arrivals]
) -> None:
    assert step_between(before, now) is None
