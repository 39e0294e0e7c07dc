"""Blocks of consecutive records: what they say together of the pool and the requests, by load. Pure.

Records are put apart once, in batches; a block of any length adds up the batches that it is made of.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

from kvlogd.arrivals import Arrivals
from kvlogd.course import columns_of
from kvlogd.grain import Grain, Lumps, gathered, grain_of, lumps_of
from kvlogd.model import Stats

FULL = 0.97
"""Usage from which on the pool's ceiling censors the curve."""
PRINT_STEP = 0.001
"""vLLM prints the usage with one decimal of a per cent."""
_BINS = [min(r, 8) if r <= 8 else min(43, 8 + int(log(r / 8) / log(1.15))) for r in range(4096)]


class Cell(NamedTuple):
    """The records of one block at one load."""

    usage: float
    """Lower quartile of the usage: one huge request that is there for less than the block does not move it."""
    running: float
    noise: float | None
    """Spread of the usage from record to record, free of any trend; None in a block long enough to be one of many."""
    records: int


class Block(NamedTuple):
    """What some consecutive records say, by load bin."""

    start_s: float
    end_s: float
    cells: dict[int, Cell]
    least_usage: float
    mean_usage: float
    prompt_tokens: float
    generation_tokens: float
    fresh_tokens: float
    """Both together, but for prompts found in the prefix cache: they hold what was there before."""
    tokens_each: float
    """Tokens that one request generated from the block's start to its end."""
    least_running: int
    mean_running: float
    hit_rate: float | None
    prompted: float
    """Share of the records in which prompts were computed."""
    censored: bool
    """The pool was full or a queue stood: usage does not tell what the load asks for."""
    most_prompt_tokens: float
    """In one record."""
    grain: Grain


def load_bin(running: int) -> int:
    """Return the bin of a number of running requests: 0..8 exactly, above that 15 % wide."""
    return _BINS[running] if running < 4096 else 43


class Batch(NamedTuple):
    """Some consecutive records, put apart once for all the blocks that they become part of."""

    start_s: float
    end_s: float
    records: int
    by_load: dict[int, list[float]]
    """Usages by load bin."""
    loads: dict[int, int]
    """Sum of the number running, by load bin."""
    least_usage: float
    most_usage: float
    usage: float
    """Sum, as all that follow but where they say otherwise."""
    prompt_tps: float
    most_prompt_tps: float
    unprompted: int
    """Records in which no prompt was computed."""
    unprompted_pairs: int
    """Of two records next to each other: those in which both had none."""
    least_running: int
    running: int
    generation_tps: float
    each_tps: float
    """What one request generated."""
    queued: int
    """Records with a queue."""
    hit_rate: float | None
    """At the end."""
    lumps: Lumps


def batch_of(records: Sequence[Stats]) -> Batch:
    """Return the batch of some consecutive records (at least one)."""
    prompts, generated, counts, waiting, usages = columns_of(records)
    by_load: dict[int, list[float]] = {}
    loads: dict[int, int] = {}
    for running, usage in zip(counts, usages, strict=True):
        key = _BINS[running] if running < 4096 else 43  # `load_bin`, spared a call for each record
        if key in by_load:
            by_load[key].append(usage)
            loads[key] += running
        else:
            by_load[key], loads[key] = [usage], running
    return Batch(
        records[0].ts_s,
        records[-1].ts_s,
        len(records),
        by_load,
        loads,
        min(usages),
        max(usages),
        sum(usages),
        sum(prompts),
        max(prompts),
        prompts.count(0.0),
        sum([not first and not second for first, second in pairwise(prompts)]),
        min(counts),
        sum(counts),
        sum(generated),
        sum([tps / count for tps, count in zip(generated, counts, strict=True) if count]),
        len(records) - waiting.count(0),
        records[-1].prefix_hit_rate,
        lumps_of(usages, prompts),
    )


def merged(batches: Sequence[Batch]) -> Batch:
    """Return consecutive batches (at least one) as one."""
    if len(batches) == 1:
        return batches[0]
    by_load: dict[int, list[float]] = {}
    loads: dict[int, int] = {}
    for batch in batches:
        for key, group in batch.by_load.items():
            by_load.setdefault(key, []).extend(group)
            loads[key] = loads.get(key, 0) + batch.loads[key]
    (
        starts_s, ends_s, records, _, _, least, most, usage, prompts, most_prompts, unprompted, unprompted_pairs,
        least_running, running, generated, each, queued, hit_rates, lumps,
    ) = zip(*batches, strict=True)  # fmt: skip
    return Batch(
        starts_s[0],
        ends_s[-1],
        sum(records),
        by_load,
        loads,
        min(least),
        max(most),
        sum(usage),
        sum(prompts),
        max(most_prompts),
        sum(unprompted),
        sum(unprompted_pairs) + sum([not (a.prompts.last or b.prompts.first) for a, b in pairwise(lumps)]),
        min(least_running),
        sum(running),
        sum(generated),
        sum(each),
        sum(queued),
        hit_rates[-1],
        gathered(lumps),
    )


def block_of(batch: Batch, interval_s: float, *, noisy: bool = True) -> Block:
    """Return the block of a batch; `noisy`: with the noise of its cells, for stretches of few blocks."""
    n = batch.records
    prompted = batch.prompt_tps * interval_s
    generated = batch.generation_tps * interval_s
    return Block(
        batch.start_s,
        batch.end_s,
        {key: _cell(usages, batch.loads[key], noisy) for key, usages in batch.by_load.items()},
        batch.least_usage,
        batch.usage / n,
        prompted,
        generated,
        prompted * (1.0 - min(1.0, max(0.0, batch.hit_rate or 0.0))) + generated,
        batch.each_tps * interval_s,
        batch.least_running,
        batch.running / n,
        batch.hit_rate,
        1.0 - batch.unprompted / n,
        batch.most_usage >= FULL or batch.queued > 0.1 * n,
        batch.most_prompt_tps * interval_s,
        grain_of(
            batch.lumps,
            batch.prompt_tps / n,
            interval_s,
            Arrivals(prompted + generated, n, batch.unprompted, batch.unprompted_pairs),
        ),
    )


def _cell(usages: list[float], load: int, noisy: bool) -> Cell:
    n = len(usages)
    if n == 1:
        return Cell(usages[0], load, 0.05, 1)
    # successive differences of independent noise are sqrt(2) wider than the noise
    noise = 1.05 * median(sorted([abs(b - a) for a, b in pairwise(usages)])) if noisy else None
    return Cell(sorted(usages)[(n - 1) // 4], load / n, noise, n)


def median(ordered: Sequence[float]) -> float:
    """Return the median of values in order."""
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
