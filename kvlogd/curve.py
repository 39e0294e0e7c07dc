"""Compares how much KV cache an engine uses at each load, now and at the start of its run.

A leak lifts the whole usage-against-running curve by a constant; longer requests tilt it; more traffic moves
along it. Load is the number of running requests; usage is a share. Records are grouped into blocks, blocks into
windows; evidence is counted in records and request turnovers, so that the same test sees a leak of minutes in a
log of 2 s records and one of days in a log of 10 s records.
"""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

from kvlogd.model import Stats

FULL = 0.97
"""Usage from which on the pool's ceiling censors the curve."""
_BINS = [min(r, 8) if r <= 8 else min(43, 8 + int(log(r / 8) / log(1.15))) for r in range(4096)]


def newest(records: Sequence[Stats], count: int) -> list[Stats]:
    """Return the last records of a sequence that is cheap to index at its end, oldest first."""
    return [records[i] for i in range(-min(count, len(records)), 0)]


class Cell(NamedTuple):
    """The records of one block at one load."""

    usage: float
    """Lower quartile of the usage: one huge request that is there for less than the block does not move it."""
    running: float
    noise: float
    """Spread of the usage from record to record, free of any trend."""
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


def load_bin(running: int) -> int:
    """Return the bin of a number of running requests: 0..8 exactly, above that 15 % wide."""
    return _BINS[running] if running < 4096 else 43


def block_of(records: Sequence[Stats], interval_s: float) -> Block:
    """Return the block of some consecutive records (at least one)."""
    groups: dict[int, list[tuple[float, int]]] = {}
    each = 0.0
    for record in records:
        running = record.running
        key = _BINS[running] if running < 4096 else 43
        if key in groups:
            groups[key].append((record.kv_usage, running))
        else:
            groups[key] = [(record.kv_usage, running)]
        if running:
            each += record.generation_tps / running
    n = len(records)
    usages = [record.kv_usage for record in records]
    prompts = [record.prompt_tps for record in records]
    runnings = [record.running for record in records]
    hit_rate = records[-1].prefix_hit_rate
    prompted = sum(prompts) * interval_s
    generated = sum([record.generation_tps for record in records]) * interval_s
    return Block(
        records[0].ts_s,
        records[-1].ts_s,
        {key: _cell(group) for key, group in groups.items()},
        min(usages),
        sum(usages) / n,
        prompted,
        generated,
        prompted * (1.0 - min(1.0, max(0.0, hit_rate or 0.0))) + generated,
        each * interval_s,
        min(runnings),
        sum(runnings) / n,
        hit_rate,
        1.0 - prompts.count(0.0) / n,
        max(usages) >= FULL or sum([record.waiting > 0 for record in records]) > 0.1 * n,
    )


def _cell(group: list[tuple[float, int]]) -> Cell:
    n = len(group)
    if n == 1:
        return Cell(group[0][0], group[0][1], 0.05, 1)
    steps = sorted([abs(b[0] - a[0]) for a, b in zip(group, group[1:], strict=False)])
    running = sum([r for _, r in group]) / n
    group.sort()
    # successive differences of independent noise are sqrt(2) wider than the noise
    return Cell(group[(n - 1) // 4][0], running, 1.05 * median(steps), n)


class Point(NamedTuple):
    """A window's usage at one load, with its standard error."""

    usage: float
    error: float
    running: float


def points_of(blocks: Sequence[Block], least_rows: int, short: bool) -> dict[int, Point]:
    """Return the curve of a stretch: for each load that enough of its blocks saw, the median usage.

    In a `short` stretch there are too few blocks to tell their spread by: the records' own noise stands in for it.
    """
    rows: dict[int, list[Cell]] = {}
    for block in blocks:
        for key, cell in block.cells.items():
            rows.setdefault(key, []).append(cell)
    return {key: _point(cells, short) for key, cells in rows.items() if len(cells) >= least_rows}


def _point(cells: list[Cell], short: bool) -> Point:
    running = sum([cell.running for cell in cells]) / len(cells)
    if short:
        records = sum([cell.records for cell in cells])
        noise = median(sorted([cell.noise for cell in cells]))
        usage = median(sorted([cell.usage for cell in cells]))
        return Point(usage, max(noise, 0.0005) * 1.25 / sqrt(max(1.0, records / 2)), running)
    usages = sorted(cell.usage for cell in cells)
    middle = median(usages)
    spread = median(sorted(abs(usage - middle) for usage in usages))
    # blocks next to each other are not independent: half of them count
    error = max(1.4826 * spread, 0.0005) * 1.25 / sqrt(max(1.0, len(cells) / 2))
    return Point(middle, error, running)


def median(ordered: Sequence[float]) -> float:
    """Return the median of values in order."""
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


class Stretch(NamedTuple):
    """Some blocks together: their curve and what else was the same or not."""

    start_s: float
    end_s: float
    points: dict[int, Point]
    least_usage: float
    mix: float | None
    """Natural logarithm of prompt tokens per generated token; None where one of them is 0."""
    hit_rate: float | None
    mean_usage: float
    tokens: float
    """Prompt and generated tokens of the stretch together, but for prompts found in the prefix cache."""
    prompt_rate: float
    """Prompt tokens a block."""
    prompted: float


def stretch_of(blocks: Sequence[Block], least_rows: int, short: bool) -> Stretch:
    """Return what a run of blocks says together."""
    prompt = sum([block.prompt_tokens for block in blocks])
    generation = sum([block.generation_tokens for block in blocks])
    hits = [block.hit_rate for block in blocks if block.hit_rate is not None]
    return Stretch(
        blocks[0].start_s,
        blocks[-1].end_s,
        points_of(blocks, least_rows, short),
        min([block.least_usage for block in blocks]),
        log(prompt / generation) if prompt > 0 and generation > 0 else None,
        sum(hits) / len(hits) if hits else None,
        sum([block.mean_usage for block in blocks]) / len(blocks),
        sum([block.fresh_tokens for block in blocks]),
        prompt / len(blocks),
        sum([block.prompted for block in blocks]) / len(blocks),
    )


class Shift(NamedTuple):
    """How far the curve lies above its reference, in shares of the pool."""

    shift: float
    """What can be a leak: the least of all that bounds it, 0 or more."""
    intercept: float
    error: float
    """Standard error of the intercept, in the same unit."""
    mean: float
    mean_error: float
    smallest: float
    bins: int
    lowest_running: float
    highest_running: float


def compare(now: Stretch, reference: Stretch) -> Shift | None:
    """Return the shift of the curve between two stretches, or None where they share no load.

    Load 0 is left out: what an idle engine holds may be leased to others, and is judged by the `floor` kind.
    """
    common = sorted(now.points.keys() & reference.points.keys() - {0})
    if not common:
        return None
    x = [(now.points[k].running + reference.points[k].running) / 2 for k in common]
    d = [now.points[k].usage - reference.points[k].usage for k in common]
    w = [1 / (now.points[k].error ** 2 + reference.points[k].error ** 2 + 0.0015**2) for k in common]
    total = sum(w)
    mean = sum(wi * di for wi, di in zip(w, d, strict=True)) / total
    intercept, error = _intercept(x, d, w, total, mean)
    bound = min(intercept, mean, 1.5 * max(d[0], 0.0)) if error < mean else mean
    # a leak is in every record: it cannot be larger than the lowest usage seen
    shift = max(0.0, min(bound, now.least_usage / 0.7))
    return Shift(shift, intercept, error, mean, 1 / sqrt(total), min(d), len(common), x[0], x[-1])


def _intercept(x: list[float], d: list[float], w: list[float], total: float, mean: float) -> tuple[float, float]:
    """Return the weighted line's value at no load and its standard error, inflated by how badly it fits."""
    x_mean = sum(wi * xi for wi, xi in zip(w, x, strict=True)) / total
    sxx = sum(wi * (xi - x_mean) ** 2 for wi, xi in zip(w, x, strict=True))
    if len(x) < 3 or sxx <= 0:
        return mean, float("inf")
    slope = sum(wi * (xi - x_mean) * (di - mean) for wi, xi, di in zip(w, x, d, strict=True)) / sxx
    intercept = mean - slope * x_mean
    chi2 = sum(wi * (di - intercept - slope * xi) ** 2 for wi, xi, di in zip(w, x, d, strict=True))
    inflate = sqrt(max(1.0, chi2 / (len(x) - 2)))
    return intercept, sqrt(1 / total + x_mean**2 / sxx) * inflate
