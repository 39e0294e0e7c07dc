"""Compares how much KV cache an engine uses at each load, now and at the start of its run.

A leak lifts the whole usage-against-running curve by a constant; longer requests tilt it; more traffic moves
along it. Load is the number of running requests; usage is a share. Records are grouped into blocks, blocks into
windows; evidence is counted in records and request turnovers, so that the same test sees a leak of minutes in a
log of 2 s records and one of days in a log of 10 s records.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import log, sqrt
from typing import NamedTuple

from kvlogd.block import Block, Cell, median
from kvlogd.grain import Grain

FLOOR = 0.7
"""A leak is in every record: the lowest usage seen is at least this share of it."""
TREND_FREE = 1.5
"""By how much the noise may be more than what the differences between neighbouring blocks show."""
BENT = 2.45
"""By how much second differences of independent noise are wider than the noise: the root of 6."""


class Point(NamedTuple):
    """A window's usage at one load, with its standard error."""

    usage: float
    error: float
    running: float


def points_of(blocks: Sequence[Block], least_rows: int, short: bool, wanted: Collection[int] = ()) -> dict[int, Point]:
    """Return the curve of a stretch: for each load that enough of its blocks saw, the median usage.

    In a `short` stretch there are too few blocks to tell their spread by: the records' own noise stands in for it.
    With `wanted`, only those loads are looked at.
    """
    rows: dict[int, list[Cell]] = {key: [] for key in wanted}
    for block in blocks:
        for key, cell in block.cells.items():
            if key in rows:
                rows[key].append(cell)
            elif not wanted:
                rows[key] = [cell]
    return {key: _point(cells, short) for key, cells in rows.items() if len(cells) >= least_rows}


def _point(cells: list[Cell], short: bool) -> Point:
    n = len(cells)
    columns = list(zip(*cells, strict=True))
    usages = sorted(columns[0])
    usage = median(usages)
    running = sum(columns[1]) / n
    if short:
        noise = median(sorted([one for one in columns[2] if one is not None]))
        return Point(usage, max(noise, 0.0005) * 1.25 / sqrt(max(1.0, sum(columns[3]) / 2)), running)
    # a leak spreads a stretch as well: the steps from block to block know less of it, and what bends them nothing
    spread = median(sorted([abs(u - usage) for u in usages]))
    steps = [b - a for a, b in pairwise(columns[0])]
    if steps:
        spread = min(spread, TREND_FREE * median(sorted([abs(step) for step in steps])))
    if len(steps) > 1:
        bends = sorted([abs(b - a) for a, b in pairwise(steps)])
        spread = min(spread, TREND_FREE * median(bends) / BENT)
    # blocks next to each other are not independent: half of them count
    return Point(usage, max(1.4826 * spread, 0.0005) * 1.25 / sqrt(max(1.0, n / 2)), running)


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
    pace: float
    """Tokens that each running request generates a block."""
    prompted: float
    grains: Sequence[Grain]
    """Of each of its blocks."""


def stretch_of(blocks: Sequence[Block], least_rows: int, short: bool, wanted: Collection[int] = ()) -> Stretch:
    """Return what a run of blocks says together, at all loads or those wanted."""
    prompt = sum([block.prompt_tokens for block in blocks])
    generation = sum([block.generation_tokens for block in blocks])
    hits = [block.hit_rate for block in blocks if block.hit_rate is not None]
    return Stretch(
        blocks[0].start_s,
        blocks[-1].end_s,
        points_of(blocks, least_rows, short, wanted),
        min([block.least_usage for block in blocks]),
        log(prompt) - log(generation) if prompt > 0 and generation > 0 else None,
        sum(hits) / len(hits) if hits else None,
        sum([block.mean_usage for block in blocks]) / len(blocks),
        sum([block.fresh_tokens for block in blocks]),
        prompt / len(blocks),
        sum([block.tokens_each for block in blocks]) / len(blocks),
        sum([block.prompted for block in blocks]) / len(blocks),
        [block.grain for block in blocks],
    )


def lift_of(block: Block, reference: Stretch) -> float | None:
    """Return how far a block lies above a stretch at the loads that both saw, on average; None without any."""
    points = reference.points
    above = [cell.usage - points[key].usage for key, cell in block.cells.items() if key and key in points]
    return sum(above) / len(above) if above else None


class Shift(NamedTuple):
    """How far the curve lies above its reference, in shares of the pool."""

    shift: float
    """What can be a leak: the least of all that bounds it, 0 or more."""
    seen: float
    """The same, were it not for the lowest usage: that keeps a step back until the whole stretch lies after it."""
    intercept: float
    error: float
    """Standard error of the intercept, in the same unit."""
    mean: float
    mean_error: float
    smallest: float
    bins: int
    lowest_running: float
    highest_running: float
    before: float
    """Usage of the reference at the compared loads, on average."""


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
    before = sum([reference.points[k].usage for k in common]) / len(common)
    # a leak is in every record: it cannot be larger than the lowest usage seen
    shift = max(0.0, min(bound, now.least_usage / FLOOR))
    seen = max(0.0, bound)
    return Shift(shift, seen, intercept, error, mean, 1 / sqrt(total), min(d), len(common), x[0], x[-1], before)


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
