"""How long a token takes, compared with the run's own beginning at moments of no less load.

By Little's law the time a token takes is what runs divided by what is generated. More running requests, more prompts,
longer contexts and a colder prefix cache all make it longer, so some records are only held against earlier ones that
had *no less* of each: of those, the nearest. Nothing is fitted and nothing extrapolated. Load is measured twice: by
what runs, for clients that wait for their answers, and by the work done, for requests that come at a rate of their
own: there a slower engine has more of them running, and so never sees its old load again.
Evidence is counted in records, at two lengths at once: slowness may take minutes or weeks. Where /metrics is read, the
time between two tokens is measured and not inferred: the same comparison on it sees less, and sees it sooner.
"""

from collections import deque
from collections.abc import Sequence
from math import log
from operator import mul
from typing import Any, NamedTuple

from kvlogd.block import median
from kvlogd.course import PART_RECORDS, Part, joined
from kvlogd.model import Latency, Scrape

CROWDED = 0.9
"""Usage from which on requests are evicted and computed anew: that is another fault than slowness."""
QUEUED = 0.25
"""Waiting requests per running one from which on the queue decides what runs."""
HALTED = 0.2
"""Share of records without a token from which on they tell of a stall or a long prefill."""
SLACK = 0.95
"""A counterpart may have this much less of a load and still count as no lighter."""
COLDER = 0.05
"""How far the prefix cache's hit rate may lie below that of a counterpart."""
HIDDEN = 0.02
"""No more of the prompts than all but this share is taken to have been in the cache: the rate is printed to 0.001."""
HEAVIER = 1.5
"""A counterpart may have been lighter by this factor: a token takes longer by no more than that."""
NEAREST = 7
"""Counterparts that are looked at: the nearest of those that qualify."""
LEAST_COUNTERPARTS = 3
ROUNDED = 0.005
"""Usage is printed in steps of 0.001: this much is added to it where two are divided."""
OPEN_LOOP = 0.05
"""Variance of the running number per its mean from which on requests come whether or not others were answered."""
REFERENCE = 3
"""The reference is the first third of a run, within bounds: what creeps from the start is slower than that still."""


class Row(NamedTuple):
    """What some consecutive records say together."""

    start_s: float
    end_s: float
    running: float
    prompt_tps: float
    generation_tps: float
    usage: float
    """Share of the pool in use, weighted by what runs."""
    hit_rate: float
    whole_prompt_tps: float
    """With what the prefix cache held of the prompts, where `prompt_tps` leaves it out: longer contexts are slower."""
    token_s: float
    """Seconds that a token of one request takes."""
    unsteady: float
    """Variance of the running number per its mean."""


def row_of(part: Part, least_running: float) -> Row | None:
    """Return the row of a part; None where something else than its load sets the pace."""
    n, running = part.records, part.running
    if running < least_running * n or part.most_usage >= CROWDED or not part.generation_tps:
        return None
    if part.waiting > QUEUED * running or part.halted > HALTED * n:
        return None
    mean, prompt_tps = running / n, part.prompt_tps / n
    return Row(
        part.start_s,
        part.end_s,
        mean,
        prompt_tps,
        part.generation_tps / n,
        part.running_usage / running,
        part.hit_rate,
        prompt_tps / max(HIDDEN, 1.0 - part.hit_rate),
        running / part.generation_tps,
        (part.squares / n - mean * mean) / mean,
    )


LEAST_TIMES = 3.0
"""Tokens that must have been timed in a scrape, on average."""


def row_of_scrapes(scrapes: Sequence[Scrape], least_running: float) -> Row | None:
    """Return the row of some consecutive scrapes; None where something else than their load sets the pace.

    What runs is the time that tokens took by the time that passed: the mean of what decoded, with nothing missed
    between the scrapes.
    """
    n = len(scrapes)
    passed_s = sum([one.ts_s - one.since_s for one in scrapes if one.since_s is not None])
    itl = [spread for one in scrapes for spread in one.latencies if spread.metric is Latency.ITL]
    times, token_s = sum([one.times for one in itl]), sum([one.sum_s for one in itl])
    counts = [one.running or 0 for one in scrapes]
    usages = [one.kv_usage or 0.0 for one in scrapes]
    if not passed_s or times < LEAST_TIMES * n or token_s < 0.8 * least_running * passed_s or max(usages) >= CROWDED:
        return None
    halted = sum([not one.generation_tokens and (one.running or 0) > 0 for one in scrapes])
    if sum([one.waiting or 0 for one in scrapes]) > QUEUED * sum(counts) or halted > HALTED * n:
        return None
    queries = sum([one.prefix_queries or 0.0 for one in scrapes])
    hit_rate = sum([one.prefix_hits or 0.0 for one in scrapes]) / queries if queries else 0.0
    whole_tps = sum([one.prompt_tokens or 0.0 for one in scrapes]) / passed_s
    mean = sum(counts) / n
    return Row(
        scrapes[0].ts_s,
        scrapes[-1].ts_s,
        token_s / passed_s,
        whole_tps * (1.0 - min(1.0, hit_rate)),
        times / passed_s,
        sum(map(mul, counts, usages)) / max(1, sum(counts)),
        hit_rate,
        whole_tps,
        token_s / times,
        (sum(map(mul, counts, counts)) / n - mean * mean) / max(mean, 1e-9),
    )


class Excess(NamedTuple):
    """By how much a row is slower than its counterparts, as a log-ratio."""

    row: Row
    excess: float
    before_s: float
    """Seconds that a token took in the counterparts."""


def excess_of(row: Row, reference: Sequence[Row]) -> Excess | None:
    """Return how much slower a row is than earlier ones of no less load; None where there are too few."""
    ways = counterparts_of(row, reference)
    return max((_excess(row, found) for found in ways if len(found) >= LEAST_COUNTERPARTS), key=_size, default=None)


def _size(one: Excess) -> float:
    return one.excess


def _excess(row: Row, found: list[tuple[float, float]]) -> Excess:
    found.sort()
    before_s = median(sorted([token_s for _, token_s in found[:NEAREST]]))
    return Excess(row, log(row.token_s / before_s), before_s)


Counterparts = list[tuple[float, float]]
"""Distance and token time of each."""


def counterparts_of(row: Row, reference: Sequence[Row]) -> tuple[Counterparts, Counterparts]:
    """Return the counterparts by what runs, and those by what was done, requests being of the same size.

    Where one was a little lighter its token time is raised by as much: a step takes longer by no more than its batch
    and its contexts grow.
    """
    colder, prompts, whole = row.hit_rate + COLDER, SLACK * row.prompt_tps, SLACK * row.whole_prompt_tps
    running, usage, work = row.running, row.usage + ROUNDED, SLACK * row.generation_tps
    by_running: Counterparts = []
    by_work: Counterparts = []
    # unpacked once and without calls: a reference of a day is gone through at each row
    for _, _, theirs, prompt_tps, generation_tps, used, hit_rate, whole_tps, token_s, unsteady in reference:
        if prompt_tps < prompts or whole_tps < whole or hit_rate > colder:
            continue
        fuller, more_prompts = usage / (used + ROUNDED), (prompt_tps + 1.0) / (row.prompt_tps + 1.0)
        more = running / theirs
        heavier = fuller if fuller > more else more
        if heavier <= HEAVIER:
            heavier = heavier if heavier > 1.0 else 1.0
            distance = heavier * (theirs / running if theirs > running else 1.0)
            by_running.append((distance * more_prompts, token_s * heavier))
        if generation_tps >= work and unsteady >= OPEN_LOOP and fuller * theirs / running <= HEAVIER:
            heavier = max(1.0, fuller * theirs / running)
            distance = heavier * generation_tps / row.generation_tps
            by_work.append((distance * more_prompts, token_s * heavier))
    return by_running, by_work


class Rung(NamedTuple):
    """So many rows running (but for those that tell nothing) must be slower."""

    rows: int
    by: float
    """Factor that is enough for half of them."""
    least: float
    """Factor that all but a fifth of them must have."""
    reference: int
    """Rows that the reference must hold."""


class Scale(NamedTuple):
    """Rows of one length and the rungs made of them."""

    records: int
    least_running: float
    """On average; the shorter a row, the more one request more or less would move it."""
    warm_up: int
    most_reference: int
    rungs: tuple[Rung, ...]
    young: int | None = None
    """Nothing new is found after so many rows: later, a short spell is only the day's weather."""


SCALES = (
    Scale(10, 2.0, 1, 6, (Rung(3, 1.6, 1.3, 3), Rung(6, 1.4, 1.2, 3)), 60),
    Scale(60, 1.2, 2, 16, (Rung(6, 1.3, 1.2, 8), Rung(9, 1.22, 1.15, 12)), 48),
    Scale(
        60,
        0.6,
        2,
        144,
        (Rung(9, 1.35, 1.2, 24), Rung(18, 1.22, 1.12, 24), Rung(24, 1.15, 1.08, 48), Rung(36, 1.12, 1.06, 96)),
    ),
    Scale(
        360,
        0.2,
        0,
        48,
        (Rung(4, 1.3, 1.2, 3), Rung(6, 1.22, 1.15, 4), Rung(9, 1.16, 1.08, 8), Rung(18, 1.12, 1.05, 12)),
    ),
)
"""At 10 s a record: rows of 100 s, 10 min and an hour, stretches from 5 min to 18 hours, references up to two days.

Where one request or none runs, a record more or less that saw it moves a row of 10 minutes by a third: those take an
hour.
"""
MEASURED = (
    Scale(10, 1.0, 1, 6, (Rung(3, 1.5, 1.25, 3), Rung(6, 1.3, 1.15, 3)), 60),
    Scale(60, 0.3, 2, 16, (Rung(6, 1.2, 1.12, 8), Rung(9, 1.15, 1.1, 12)), 48),
    Scale(
        60,
        0.3,
        2,
        144,
        (Rung(9, 1.3, 1.2, 24), Rung(18, 1.12, 1.08, 24), Rung(24, 1.12, 1.06, 48), Rung(36, 1.1, 1.05, 96)),
    ),
)
"""The same for scrapes: what is measured is steadier, so less of it tells, and a life of a few hours is long enough."""

WEATHER, WEATHER_RECORDS = 1.4, 1440
"""Tokens come from memory: a hot GPU slows them by less than this factor, and is not hot for so many records."""
LOOKS_LIKE = 1.55
"""Where clients do not wait for each other, more requests then run at once, and rows show it as up to this."""
NOT_YET, GROWING = 1 / 3, 1 / 4
"""Shares of a shift: with less of it a row is from before it, and by less it does not grow."""
BEFORE = 3
"""So many rows, most of them from before a shift, tell when it came."""
LOOK_BACK = 6
"""Rows before a stretch that are looked at for when it came: an hour of them."""


def came_at_once(latest: Sequence[Excess], by: float) -> bool:
    """Return whether a shift (a log-ratio) that the latest rows have came from one row to the next and has not grown.

    That is another process, or a GPU that has got hot, which may be over in an hour; what creeps goes on. Where nothing
    ran for longer than it has lasted, it is not known how it came.
    """
    low = NOT_YET * by
    ends = range(len(latest) - 1, BEFORE - 1, -1)
    began = next((end for end in ends if _median(latest[end - BEFORE : end]) < low), 0)
    while began and latest[began - 1].excess >= low:
        began -= 1
    since = latest[began:]
    if not began or since[0].row.start_s - latest[began - 1].row.end_s > since[-1].row.end_s - since[0].row.start_s:
        return False
    half = len(since) // 2
    # the first one may still be in part from before
    return _median(since[half:]) - _median(since[1 : half + 1] or since) < GROWING * by


def _median(rows: Sequence[Excess]) -> float:
    return median(sorted([one.excess for one in rows]))


class Verdict(NamedTuple):
    """What one rung says."""

    since_s: float
    at_s: float
    slower: float
    """By which share a token takes longer than before."""
    token_s: float
    before_s: float
    running: float
    spread: float
    """How far the number running goes up or down from there."""


class ScaleState:
    """The rows of one scale, and what they say."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.seen = 0
        self.compared = False
        self.verdict: Verdict | None = None
        self._size = self._items(scale)
        self._pending: list[Any] = []
        self._first: list[Row] = []
        self._usable = 0
        self._latest: deque[Excess] = deque(maxlen=max(rung.rows for rung in scale.rungs) + LOOK_BACK)

    def take(self, items: Sequence[Part] | Sequence[Scrape]) -> bool:
        """Take in what came next; return whether it completed a row."""
        self._pending += self._telling(items)
        size = self._size
        if len(self._pending) < size:
            return False
        for start in range(0, len(self._pending) - size + 1, size):
            row = self._row(self._pending[start : start + size])
            self.seen += 1
            if row is not None and self.seen > self.scale.warm_up:
                self.compare(row)
        self._pending = self._pending[len(self._pending) // size * size :]
        return True

    def missing(self) -> int:
        """Return how many more it takes to complete a row."""
        return self._size - len(self._pending)

    def _items(self, scale: Scale) -> int:
        """Return how many of what is taken in make a row."""
        return scale.records // PART_RECORDS

    def _telling(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return those that may be in a row: moments of a full pool spoil no calmer ones beside them."""
        return [part for part in items if part.most_usage < CROWDED]

    def _row(self, items: list[Any]) -> Row | None:
        return row_of(joined(items), self.scale.least_running)

    def over(self) -> bool:
        """Return whether nothing more can come of this scale."""
        return self.scale.young is not None and self.seen > self.scale.young and self.verdict is None

    def compare(self, row: Row) -> None:
        """Hold the next row against the reference, and judge."""
        scale = self.scale
        self._usable += 1
        if len(self._first) < scale.most_reference:
            self._first.append(row)
        least = min(rung.reference for rung in scale.rungs)
        size = min(scale.most_reference, max(least, self._usable // REFERENCE))
        if self._usable <= size:
            return
        excess = excess_of(row, self._first[:size])
        if excess is None:
            return
        self.compared = True
        self._latest.append(excess)
        self.verdict = next(filter(None, (self._judge(rung, size) for rung in scale.rungs)), None)

    def _judge(self, rung: Rung, reference: int) -> Verdict | None:
        if len(self._latest) < rung.rows or reference < rung.reference:
            return None
        latest = list(self._latest)
        last = latest[-rung.rows :]
        ordered = sorted([one.excess for one in last])
        if median(ordered) < log(rung.by) or ordered[rung.rows // 5] < log(rung.least):
            return None
        by = median(ordered)
        may_be_weather = rung.by < WEATHER and by < log(LOOKS_LIKE) and rung.rows * self.scale.records < WEATHER_RECORDS
        if may_be_weather and came_at_once(latest[-rung.rows - LOOK_BACK :], by):
            return None
        token_s = median(sorted([one.row.token_s for one in last]))
        before_s = median(sorted([one.before_s for one in last]))
        counts = sorted([one.row.running for one in last])
        slower, spread = token_s / before_s - 1.0, (counts[-1] - counts[0]) / 2
        return Verdict(last[0].row.start_s, last[-1].row.end_s, slower, token_s, before_s, median(counts), spread)


class MeasuredState(ScaleState):
    """The same of scrapes."""

    def _telling(self, items: Sequence[Any]) -> Sequence[Any]:
        return items

    def _items(self, scale: Scale) -> int:
        return scale.records

    def _row(self, items: list[Any]) -> Row | None:
        return row_of_scrapes(items, self.scale.least_running)
