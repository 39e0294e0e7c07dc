"""Two scrapes of one engine to what happened between them: counters by difference, histograms to percentiles. Pure.

A counter that fell, or a process that is another one, counts from its start, as in Prometheus' `increase`. Percentiles
are those of Prometheus' `histogram_quantile` over the difference of the buckets: linear within a bucket, and the
highest finite bound where the last bucket is meant. So they are as fine as vLLM's buckets, and no finer.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvlogd.exposition import COUNTERS, Histogram, Page, Reading
from kvlogd.model import Latency, Scrape, Spread

_WHOLE = ("running", "waiting", "waiting_capacity", "waiting_deferred", "blocks", "block_size")
RESTARTED_S = 1.0
"""A process start that moved by more than this is another process."""


def scrapes(before: Page | None, since_s: float | None, after: Page, ts_s: float) -> list[Scrape]:
    """Return what each engine of a page did since the page before."""
    old = {} if before is None else {reading.engine_index: reading for reading in before.readings}
    is_new = before is not None and _is_other(before, after)
    alone = len(after.readings) == 1
    return [_scrape(old.get(one.engine_index), one, since_s, ts_s, is_new, alone) for one in after.readings]


def _is_other(before: Page, after: Page) -> bool:
    then_s, now_s = before.process_start_s, after.process_start_s
    return then_s is not None and now_s is not None and abs(now_s - then_s) > RESTARTED_S


def _scrape(
    before: Reading | None, after: Reading, since_s: float | None, ts_s: float, is_new: bool, alone: bool
) -> Scrape:
    now = after.values
    level: dict[str, Any] = {name: int(now[name]) for name in _WHOLE if name in now}
    if before is None or since_s is None:
        return Scrape(ts_s, after.engine_index, None, now.get("kv_usage"), is_alone=alone, **level)
    restarted = is_new or _fell(before.values, now)
    then: Mapping[str, float] = {} if restarted else before.values
    known = [name for name in COUNTERS if name in now and (restarted or name in then)]
    counted: dict[str, Any] = {name: now[name] - then.get(name, 0.0) for name in known}
    spreads = tuple(_spreads({} if restarted else before.histograms, after.histograms))
    numbers = level | counted
    usage = now.get("kv_usage")
    return Scrape(
        ts_s, after.engine_index, since_s, usage, restarted=restarted, is_alone=alone, latencies=spreads, **numbers
    )


def _fell(then: Mapping[str, float], now: Mapping[str, float]) -> bool:
    return any(now[name] < then[name] for name in COUNTERS if name in now and name in then)


def _spreads(before: Mapping[Latency, Histogram], after: Mapping[Latency, Histogram]) -> list[Spread]:
    found = []
    for metric, histogram in after.items():
        grown = difference(before.get(metric), histogram)
        if grown.counts[-1] > 0:
            p50_s, p95_s, p99_s = (quantile(share, grown) for share in (0.5, 0.95, 0.99))
            found.append(Spread(metric, grown.counts[-1], grown.sum_s, p50_s, p95_s, p99_s))
    return found


def difference(before: Histogram | None, after: Histogram) -> Histogram:
    """Return by what a histogram grew; all of it where it was not there before, or began anew."""
    if before is None or before.bounds != after.bounds or before.sum_s > after.sum_s:
        return after
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    is_grown = all(a <= b for a, b in pairwise((0.0, *counts)))
    return Histogram(after.bounds, counts, after.sum_s - before.sum_s) if is_grown else after


def quantile(share: float, histogram: Histogram) -> float | None:
    """Return the value that a share of the counted lie below, as Prometheus' `histogram_quantile` does."""
    bounds, counts = histogram.bounds, histogram.counts
    total = counts[-1]
    if total <= 0 or len(bounds) < 2:
        return None
    rank = share * total
    at = next(i for i, count in enumerate(counts) if count >= rank)
    if at == len(bounds) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    low_s, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    return low_s + (bounds[at] - low_s) * (rank - below) / (counts[at] - below)
