"""How many requests of a run ended and how many were given up, and what of a loss falls on each. Pure.

vLLM counts no request that its client gave up, in no log line and in no counter. But it times the first token of every
request, and counts those that come to their end: who got a first token and neither runs nor ended was given up. At
idle moments that is exact; while requests run, it is known but for as many as run.
Counts need /metrics: the log names no requests unless access lines are on, and those are not read between two records.
Memory does not grow with age. Does not promise: to count requests that were given up before their first token.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from kvlogd.model import Latency, Run, Scrape

KEPT = 256
"""Moments that are kept at most, evenly over the run."""
LEAST_PARTS = 6
"""Times between idle moments that it takes to tell the given up from the others."""
SURE, UNSURE = 4.0, 2.0
"""How many standard errors what falls on the given up must be away from nothing, and on the others must not be."""
MOST_ALIKE = 0.97
"""Correlation of the two counts from which on nobody can tell them apart."""
MOST_UNSURE = 0.2
"""Share of the requests that may run at the ends of a span whose counts are told."""
LATE = 0.1
"""Share of a span that may have passed before counting began."""
RARE = 0.9
"""Where fewer first tokens than ends were seen, first tokens are not counted by this engine."""


class Mark(NamedTuple):
    """What had been counted at a moment."""

    at_s: float
    begun: float
    """Requests that got their first token."""
    done: float
    """Requests that came to their end."""
    running: int
    usage: float | None
    """Of the pool; only where nothing ran or waited."""


class Ended(NamedTuple):
    """The requests that ended in a span."""

    done: float
    given_up: float | None
    """None where the engine does not time first tokens."""
    unsure: float
    """By how many the number may be wrong: as many as ran at the ends of the span."""

    @property
    def all(self) -> float:
        """Return how many ended, one way or the other."""
        return self.done + (self.given_up or 0.0)


class Blame(NamedTuple):
    """A loss that goes with the requests that were given up and not with the others, in shares of the pool."""

    each: float
    """What each that was given up cost."""
    error: float
    """Standard error of that."""


class _Marks:
    """Marks of a run, evenly thinned out when there are too many; of those that count the same, the last."""

    def __init__(self) -> None:
        self._kept: list[Mark] = []
        self._last: Mark | None = None
        self._stride = 1
        self._seen = 0

    def add(self, mark: Mark) -> None:
        last, self._last = self._last, mark
        if last is None or (last.begun, last.done, last.running) == (mark.begun, mark.done, mark.running):
            return
        if self._seen % self._stride == 0:
            self._kept.append(last)
        self._seen += 1
        if len(self._kept) > KEPT:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def all(self) -> list[Mark]:
        return [*self._kept, *([] if self._last is None else [self._last])]


class Tally:
    """The counts of one run."""

    def __init__(self) -> None:
        self._marks, self._idle = _Marks(), _Marks()
        self._since_s: float | None = None
        self._begun = self._done = 0.0

    def observe(self, scrape: Scrape, at_s: float) -> None:
        """Take in the next scrape."""
        if scrape.since_s is not None:
            self._begun += sum(spread.times for spread in scrape.latencies if spread.metric is Latency.TTFT)
            self._done += (scrape.finished or 0.0) - (scrape.aborted or 0.0)
        self._since_s = at_s if self._since_s is None else self._since_s
        is_idle = scrape.running == 0 and scrape.waiting == 0
        mark = Mark(at_s, self._begun, self._done, scrape.running or 0, scrape.kv_usage if is_idle else None)
        self._marks.add(mark)
        if mark.usage is not None:
            self._idle.add(mark)

    def ended(self, since_s: float, until_s: float) -> Ended | None:
        """Return what ended in a span; None where it was not counted from its beginning on, or where few ended."""
        marks = self._marks.all()
        within = [mark for mark in marks if since_s < mark.at_s <= until_s]
        before = [mark for mark in marks if mark.at_s <= since_s]
        # marks are thinned out: the last one before a short span may count hours that are none of it
        near_s = LATE * (until_s - since_s)
        first = [mark for mark in (*before[-1:], *within[:1]) if abs(mark.at_s - since_s) <= near_s]
        if not first or not within:
            return None
        ended = _between(first[0], within[-1])
        return ended if ended.all > 0 and ended.unsure <= MOST_UNSURE * ended.all else None

    def blame(self, since_s: float) -> Blame | None:
        """Return the loss since a time for each that was given up; None where it may as well fall on the others."""
        idle = self._idle.all()
        before = [mark for mark in idle if mark.at_s < since_s]
        parts = []
        for earlier, later in pairwise([*before[-1:], *(mark for mark in idle if mark.at_s >= since_s)]):
            ended = _between(earlier, later)
            if ended.given_up is not None and ended.all > 0:
                parts.append((ended.done, ended.given_up, (later.usage or 0.0) - (earlier.usage or 0.0)))
        return _blame(parts) if len(parts) >= LEAST_PARTS else None


def _between(earlier: Mark, later: Mark) -> Ended:
    begun, done = later.begun - earlier.begun, later.done - earlier.done
    ran = earlier.running + later.running
    if begun < RARE * done - ran:
        return Ended(done, None, float(ran))
    return Ended(done, max(0.0, begun - done - (later.running - earlier.running)), float(ran))


def _blame(parts: Sequence[tuple[float, float, float]]) -> Blame | None:
    """Fit what was lost to both counts by least squares, without a constant: is one of them enough?

    A part counts by its requests: what is lost by chance varies as their number does.
    """
    scaled = [tuple(value / sqrt(part[0] + part[1]) for value in part) for part in parts]
    done, given_up, lost = ([part[i] for part in scaled] for i in range(3))
    dd, gg, dg = sumprod(done, done), sumprod(given_up, given_up), sumprod(done, given_up)
    dl, gl = sumprod(done, lost), sumprod(given_up, lost)
    span = dd * gg - dg * dg
    if span <= (1 - MOST_ALIKE**2) * dd * gg:
        return None
    by_done, by_given_up = (gg * dl - dg * gl) / span, (dd * gl - dg * dl) / span
    rest = sum((c - by_done * a - by_given_up * b) ** 2 for a, b, c in scaled) / (len(parts) - 2)
    if by_given_up < SURE * sqrt(rest * dd / span) or by_done > UNSURE * sqrt(rest * gg / span):
        return None
    each = sum(part[2] for part in parts) / sum(part[1] for part in parts)
    alone = sum((c - each * b) ** 2 for _, b, c in scaled) / (len(parts) - 1)
    return Blame(each, sqrt(alone / gg)) if each > 0 else None


def sumprod(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the sum of the products."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def per_request(tally: Tally, run: Run, lost_per_s: float, since_s: float, until_s: float) -> dict[str, float]:
    """Return the evidence of what each request cost, for a loss in shares of the pool a second over a span."""
    unit, pool = ("blocks", run.blocks) if run.blocks else ("tokens", run.kv_tokens)
    ended = tally.ended(since_s, until_s)
    if ended is None or not pool or lost_per_s <= 0:
        return {}
    evidence = {"requests_ended": ended.all}
    if ended.given_up is not None:
        evidence["requests_given_up"] = ended.given_up
    evidence[f"{unit}_per_request"] = lost_per_s * (until_s - since_s) * pool / ended.all
    blame = tally.blame(since_s)
    if blame is not None:
        evidence[f"{unit}_per_given_up"] = blame.each * pool
        evidence["given_up_error"] = blame.error / blame.each
    return evidence
