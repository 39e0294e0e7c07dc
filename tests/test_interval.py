"""What lies between two scrapes: differences, resets, percentiles."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.exposition import Histogram, read
from kvlogd.interval import difference, quantile, scrapes
from kvlogd.model import Latency, Scrape
from tests.metricspage import ITL_BOUNDS, Told, page

OLD = Told(prompt_tokens=100, generation_tokens=50, stopped=3, itl=(0.02,) * 10)
NEW = OLD._replace(
    running=2, kv_usage=0.25, prompt_tokens=180, generation_tokens=90, stopped=4, itl=(0.02,) * 10 + (0.04,) * 20
)


def between(old: Told, new: Told, *, start_s: float = 1.7e9) -> Scrape:
    (found,) = scrapes(read(page([old])), 100.0, read(page([new], start_s=start_s)), 110.0)
    return found


def test_the_first_scrape_tells_levels_and_no_differences() -> None:
    (found,) = scrapes(None, None, read(page([NEW])), 110.0)
    assert found == Scrape(110.0, 0, None, 0.25, 2, 0, blocks=4096, block_size=16)


def test_counters_and_histograms_are_told_by_difference() -> None:
    found = between(OLD, NEW)
    assert (found.since_s, found.ts_s, found.restarted) == (100.0, 110.0, False)
    assert (found.prompt_tokens, found.generation_tokens, found.finished, found.aborted) == (80, 40, 1, 0)
    (itl,) = found.latencies
    assert (itl.metric, itl.times) == (Latency.ITL, 20)
    assert itl.sum_s == pytest.approx(0.8)
    assert itl.p50_s == pytest.approx(0.0375)  # the middle of the bucket from 25 to 50 ms


@pytest.mark.parametrize(
    ("new", "start_s"), [(NEW._replace(generation_tokens=20), 1.7e9), (NEW, 1.7e9 + 500)], ids=["fell", "other process"]
)
def test_after_a_restart_counters_count_from_nothing(new: Told, start_s: float) -> None:
    found = between(OLD, new, start_s=start_s)
    assert found.restarted
    assert (found.prompt_tokens, found.generation_tokens) == (180, new.generation_tokens)
    assert found.latencies[0].times == 30


def test_an_engine_that_was_not_there_before_tells_levels() -> None:
    (first, second) = scrapes(read(page([OLD])), 100.0, read(page([NEW, NEW._replace(engine=1)])), 110.0)
    assert not first.is_alone
    assert (first.since_s, second.since_s, second.generation_tokens) == (100.0, None, None)


# what promtool computes for histogram_quantile over the same buckets
@pytest.mark.parametrize(
    ("share", "counts", "wanted"),
    [
        (0.5, (0, 10, 20, 20), 1.0),
        (0.25, (10, 10, 20, 20), 0.25),
        (0.9, (0, 10, 20, 20), 3.4),
        (0.99, (0, 0, 0, 5), 4.0),  # all beyond the last bound
        (0.5, (0, 0, 0, 0), None),
    ],
)
def test_percentiles_are_those_of_prometheus(share: float, counts: tuple[float, ...], wanted: float | None) -> None:
    found = quantile(share, Histogram((0.5, 1.0, 4.0, math.inf), counts, 1.0))
    assert found == (None if wanted is None else pytest.approx(wanted))


@given(st.lists(st.floats(0.0005, 0.45), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(times: list[float], share: float) -> None:
    counts = tuple(float(sum(time <= bound for time in times)) for bound in (*ITL_BOUNDS, math.inf))
    found = quantile(share, Histogram((*ITL_BOUNDS, math.inf), counts, sum(times)))
    true = sorted(times)[max(0, math.ceil(share * len(times) - 1e-9) - 1)]
    at = next(i for i, bound in enumerate(ITL_BOUNDS) if true <= bound)
    assert found is not None
    assert (ITL_BOUNDS[at - 1] if at else 0.0) - 1e-9 <= found <= ITL_BOUNDS[at] + 1e-9


def test_differences_add_up() -> None:
    chance = random.Random(5)
    times = [chance.expovariate(20) for _ in range(300)]
    stands = [read(page([Told(itl=tuple(times[:n]))])).readings[0].histograms[Latency.ITL] for n in (100, 200, 300)]
    steps = [difference(a, b) for a, b in [(None, stands[0]), (stands[0], stands[1]), (stands[1], stands[2])]]
    assert [sum(counts) for counts in zip(*(step.counts for step in steps), strict=True)] == list(stands[2].counts)
    assert sum(step.sum_s for step in steps) == pytest.approx(stands[2].sum_s)


def test_other_buckets_are_another_histogram() -> None:
    a, b = Histogram((1.0, math.inf), (1, 1), 0.5), Histogram((2.0, math.inf), (3, 3), 1.5)
    assert difference(a, b) == b
