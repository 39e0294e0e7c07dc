"""Compares how much KV cache an engine uses at each load, now and at the start of its run.

A leak lifts the whole usage-against-running curve by a constant; longer requests tilt it; more traffic moves
along it. Load is the number of running requests; usage is a share. Records are grouped into blocks, blocks into
windows; evidence is counted in records and request turnovers, so that the same test sees a leak of minutes in a
log of 2 s records and one of days in a log of 10 s records.
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import chain, pairwise
from math import log, sqrt
from typing import NamedTuple

from kvlogd.grain import Grain, grain_of
from kvlogd.model import Stats

FULL = 0.97
"""Usage from which on the pool's ceiling censors the curve."""
PRINT_STEP = 0.001
"""vLLM prints the usage with one decimal of a per cent."""
FLOOR = 0.7
"""A leak is in every record: the lowest usage seen is at least this share of it."""
DROP = 0.0015
"""A fall of the idle usage that is more than rounding: something gives blocks back by itself."""
NEAR = 6.0
"""Spells nearer than so many records are one: their usage hangs together."""
NOISY_S = 86400.0
"""Where idle usage falls by itself (delayed frees) it follows the traffic, and only a whole day tells."""
TREND_FREE = 1.5
"""By how much the noise may be more than what the differences between neighbouring blocks show."""
BENT = 2.45
"""By how much second differences of independent noise are wider than the noise: the root of 6."""
KEPT = 400
"""Spells that are remembered of a whole run, evenly thinned out."""
_BINS = [min(r, 8) if r <= 8 else min(43, 8 + int(log(r / 8) / log(1.15))) for r in range(4096)]


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
    by_load: dict[int, list[float]]
    """Usages by load bin."""
    loads: dict[int, int]
    """Sum of the number running, by load bin."""
    usages: list[float]
    prompts: list[float]
    runnings: list[int]
    generation_tps: float
    """Sum."""
    each_tps: float
    """Sum of what one request generated."""
    queued: int
    """Records with a queue."""
    hit_rate: float | None
    """At the end."""


def batch_of(records: Sequence[Stats]) -> Batch:
    """Return the batch of some consecutive records (at least one)."""
    by_load: dict[int, list[float]] = {}
    loads: dict[int, int] = {}
    each_tps, queued = 0.0, 0
    for record in records:
        running = record.running
        key = _BINS[running] if running < 4096 else 43
        if key in by_load:
            by_load[key].append(record.kv_usage)
            loads[key] += running
        else:
            by_load[key], loads[key] = [record.kv_usage], running
        if running:
            each_tps += record.generation_tps / running
        if record.waiting:
            queued += 1
    return Batch(
        records[0].ts_s,
        records[-1].ts_s,
        by_load,
        loads,
        [record.kv_usage for record in records],
        [record.prompt_tps for record in records],
        [record.running for record in records],
        sum([record.generation_tps for record in records]),
        each_tps,
        queued,
        records[-1].prefix_hit_rate,
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return consecutive batches (at least one) as one."""
    if len(batches) == 1:
        return batches[0]
    by_load: dict[int, list[float]] = {}
    loads: dict[int, int] = {}
    for batch in batches:
        for key, group in batch.by_load.items():
            by_load.setdefault(key, []).extend(group)
            loads[key] = loads.get(key, 0) + batch.loads[key]
    return Batch(
        batches[0].start_s,
        batches[-1].end_s,
        by_load,
        loads,
        list(chain.from_iterable([batch.usages for batch in batches])),
        list(chain.from_iterable([batch.prompts for batch in batches])),
        list(chain.from_iterable([batch.runnings for batch in batches])),
        sum([batch.generation_tps for batch in batches]),
        sum([batch.each_tps for batch in batches]),
        sum([batch.queued for batch in batches]),
        batches[-1].hit_rate,
    )


def block_of(batch: Batch, interval_s: float) -> Block:
    """Return the block of a batch."""
    usages, prompts = batch.usages, batch.prompts
    n = len(usages)
    prompted = sum(prompts) * interval_s
    generated = batch.generation_tps * interval_s
    return Block(
        batch.start_s,
        batch.end_s,
        {key: _cell(usages, batch.loads[key]) for key, usages in batch.by_load.items()},
        min(usages),
        sum(usages) / n,
        prompted,
        generated,
        prompted * (1.0 - min(1.0, max(0.0, batch.hit_rate or 0.0))) + generated,
        batch.each_tps * interval_s,
        min(batch.runnings),
        sum(batch.runnings) / n,
        batch.hit_rate,
        1.0 - prompts.count(0.0) / n,
        max(usages) >= FULL or batch.queued > 0.1 * n,
        max(prompts) * interval_s,
        grain_of(usages, prompts, interval_s),
    )


def _cell(usages: list[float], load: int) -> Cell:
    n = len(usages)
    if n == 1:
        return Cell(usages[0], load, 0.05, 1)
    steps = sorted([abs(b - a) for a, b in pairwise(usages)])
    # successive differences of independent noise are sqrt(2) wider than the noise
    return Cell(sorted(usages)[(n - 1) // 4], load / n, 1.05 * median(steps), n)


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
        noise = median(sorted(columns[2]))
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


def lift_of(block: Block, reference: Stretch, unknown: float) -> float:
    """Return how far a block lies above a stretch at the loads that both saw, on average; `unknown` without any."""
    points = reference.points
    above = [cell.usage - points[key].usage for key, cell in block.cells.items() if key and key in points]
    return sum(above) / len(above) if above else unknown


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


class Spell(NamedTuple):
    """An idle spell, or some close together: the lowest usage in it."""

    start_s: float
    end_s: float
    usage: float


class Spells:
    """The idle spells of one run: the latest whole, older ones thinned out, and the stretch that stays raised."""

    def __init__(self, rises_by: float, drop: float = DROP) -> None:
        self.rises_by = rises_by
        self._drop = drop
        self._worked = True
        self._stride = 1
        self.count = 0
        self.lowest: float | None = None
        self.at_lowest = 0
        """Spells that were at the lowest usage, but for rounding."""
        self.past: list[Spell] = []
        """Finished spells, oldest first, each `stride`-th of them."""
        self.latest: deque[Spell] = deque(maxlen=41)
        self.raised: list[Spell] = []
        """Spells since the usage was last near the lowest, thinned out like `past`."""
        self.low_s: float | None = None
        """When a spell that was near the lowest ended last."""
        self.last_drop: int | None = None
        """Number of the spell that last fell below the one before it."""

    def work(self) -> None:
        """Take in that all of the next records were busy."""
        self._worked = True

    def take(self, records: Sequence[Stats], interval_s: float | None) -> bool:
        """Take in the next records; return whether the engine was idle in one of them."""
        idle = False
        for stats in records:
            if stats.running or stats.waiting:
                self._worked = True
            else:
                idle = self.observe(stats, interval_s)
        return idle

    def observe(self, stats: Stats, interval_s: float | None) -> bool:
        """Take in a record; return whether it was idle."""
        if stats.running or stats.waiting:
            self._worked = True
            return False
        worked = self._worked or stats.prompt_tps > 0 or stats.generation_tps > 0
        self._worked = False
        usage = stats.kv_usage
        last = self.latest[-1] if self.latest else None
        if last is not None and (not worked or stats.ts_s - last.start_s < NEAR * (interval_s or 10.0)):
            self._extend(last, stats.ts_s, usage)
        else:
            self._begin(last, Spell(stats.ts_s, stats.ts_s, usage))
        return True

    def _extend(self, last: Spell, at_s: float, usage: float) -> None:
        spell = Spell(last.start_s, at_s, min(last.usage, usage))
        self.latest[-1] = spell
        if usage < last.usage - self._drop:
            self.last_drop = self.count
        self._level(spell, anew=False)

    def _begin(self, last: Spell | None, spell: Spell) -> None:
        if last is not None:
            if spell.usage < last.usage - self._drop:
                self.last_drop = self.count + 1
            if self.count % self._stride == 0:
                self.past.append(last)
            if len(self.past) > KEPT:
                self.past, self._stride = self.past[::2], 2 * self._stride
        self.count += 1
        self.latest.append(spell)
        self._level(spell, anew=True)

    def _level(self, spell: Spell, *, anew: bool) -> None:
        if self.lowest is None or spell.usage < self.lowest - self._drop:
            self.at_lowest = 0
        if self.lowest is None or spell.usage < self.lowest:
            self.lowest = spell.usage
        self.at_lowest += spell.usage <= self.lowest + self._drop
        if spell.usage < self.lowest + self.rises_by - 1e-9:
            self.raised, self.low_s = [], spell.end_s
        elif anew or not self.raised:
            self.raised.append(spell)
            if len(self.raised) > KEPT:
                self.raised = self.raised[:1] + self.raised[2::2]
        else:
            self.raised[-1] = spell


def climbs(raised: Sequence[Spell], step: float = PRINT_STEP) -> bool:
    """Return whether each third of some spells lies wholly above the third before."""
    n = len(raised)
    least = (min([spell.usage for spell in raised[i * n // 3 : (i + 1) * n // 3]]) for i in range(3))
    return all(b > a + 2 * step - 1e-9 for a, b in pairwise(least))
