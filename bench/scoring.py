"""Holds pages against the truth of a trace: which are right, which false, how late, and at what loss.

Definitions. A stream is a leak if some line was printed with 5 % of its pool lost; one that lost 1 to 5 %, or more
after its last line, counts neither way. A page is false if it begins while nothing has been lost in this life of the
process; pages of one verdict within six hours of each other are one. The loss at a page is the worst so far, in earlier
lives too.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from bench.traces.labels import TICK_S, Stream, Tick, TraceClass

WEEK_S = 7 * 86400
REARM_S = 6 * 3600.0
LEAK_SHARE, NEARLY_LEAK_SHARE = 0.05, 0.01
CREEP, NEARLY_CREEP = 0.15, 0.05
IDLE_LINES_SHARE = 0.002
"""From this share of idle lines on an engine counts as one that prints them."""
STALL_S = 60.0
STALL_TOLD_LATE_S = 600.0
"""A stall may be told this long after its end: the next line of the log may come only with the restart."""


class Question(StrEnum):
    """What a rule is asked about a stream."""

    LEAK = "leak"
    RESTART_RECOVERY = "restart-recovery"
    LATENCY_CREEP = "latency-creep"
    ENGINE_STALL = "engine-stall"


VERDICTS = {
    Question.LEAK: frozenset({"kv-leak", "kv-idle-residue"}),
    Question.RESTART_RECOVERY: frozenset({"restart-recovery"}),
    Question.LATENCY_CREEP: frozenset({"latency-creep"}),
    Question.ENGINE_STALL: frozenset({"engine-stall"}),
}
"""The verdicts, any of which answers the question."""


class Page(NamedTuple):
    """Somebody is called. Times are those of the trace."""

    at_s: float
    until_s: float


class Span(NamedTuple):
    """A stretch of time."""

    from_s: float
    until_s: float


class Truth(NamedTuple):
    """What is true of a stream, for one question."""

    positive: bool | None
    """None: too little is wrong to call it either way."""
    targets: Sequence[Span]
    """A page that begins here is right."""
    excused: Sequence[Span]
    """A page that begins here is neither right nor false."""
    clean_s: float
    """How long the process was up outside of these."""
    loss: Sequence[float]
    """The worst so far, by tick: the share of the pool, or by how much steps are slower."""


class Score(NamedTuple):
    """What one rule is worth on one stream."""

    positive: bool | None
    hit_s: float | None
    """When the first right page began."""
    delay_s: float | None
    loss: float | None
    false_at_s: Sequence[float]
    clean_s: float


def score(truth: Truth, pages: Sequence[Page]) -> Score:
    """Return what the pages of one rule are worth."""
    ordered = sorted(pages)
    hits = [(page.at_s, span) for page in ordered if (span := _around(page.at_s, truth.targets))]
    false = [
        page.at_s
        for page in episodes(ordered)
        if not _around(page.at_s, truth.targets) and not _around(page.at_s, truth.excused)
    ]
    if truth.positive is None:
        return Score(None, None, None, None, (), 0.0)
    if not truth.positive or not hits:
        return Score(truth.positive, None, None, None, false, truth.clean_s)
    at_s, span = hits[0]
    index = min(len(truth.loss) - 1, max(0, int(at_s // TICK_S) - 1))
    return Score(True, at_s, at_s - span.from_s, truth.loss[index] if truth.loss else None, false, truth.clean_s)


def episodes(pages: Sequence[Page]) -> list[Page]:
    """Return pages in order, those that follow within the re-arm time joined to the one before."""
    joined: list[Page] = []
    for page in pages:
        if joined and page.at_s - joined[-1].until_s < REARM_S:
            joined[-1] = joined[-1]._replace(until_s=max(joined[-1].until_s, page.until_s))
        else:
            joined.append(page)
    return joined


def _around(at_s: float, spans: Sequence[Span]) -> Span | None:
    return next((span for span in spans if span.from_s <= at_s <= span.until_s), None)


class _Life(NamedTuple):
    """One life of the process."""

    ticks: Sequence[Tick]
    ended: bool
    """Whether a restart ended it; the last one goes on at the trace's end."""

    @property
    def until_s(self) -> float:
        return self.ticks[-1].at_s


def lives(stream: Stream) -> list[_Life]:
    """Return the lives of a stream's process, without the time between them."""
    up = [list(ticks) for _, ticks in groupby((tick for tick in stream.ticks if tick.up), key=lambda tick: tick.life)]
    stopped = bool(stream.ticks) and not stream.ticks[-1].up
    return [_Life(ticks, number < len(up) - 1 or stopped) for number, ticks in enumerate(up)]


def idle_share(stream: Stream) -> float:
    """Return the share of the stats lines that tell of an idle engine."""
    printed = [tick for tick in stream.ticks if tick.printed]
    return sum(not tick.running and not tick.waiting for tick in printed) / max(1, len(printed))


def truth_of(question: Question, stream: Stream) -> Truth:
    """Return what is true of a stream."""
    return _TRUTHS[question](stream)


def _leak(stream: Stream) -> Truth:
    pool = stream.pool_blocks
    return _degrading(stream, lambda tick: tick.leaked_blocks / pool, 0.0, NEARLY_LEAK_SHARE, LEAK_SHARE)


def _creep(stream: Stream) -> Truth:
    return _degrading(stream, lambda tick: tick.creep_factor - 1, NEARLY_CREEP, NEARLY_CREEP, CREEP)


def _degrading(stream: Stream, loss_at: Callable[[Tick], float], above: float, nearly: float, enough: float) -> Truth:
    """Return the truth of what grows through the life of a process, and counts once a line shows it above a limit."""
    worst, shown, losses = 0.0, 0.0, []
    for tick in stream.ticks:
        worst = max(worst, loss_at(tick))
        shown = max(shown, loss_at(tick)) if tick.printed else shown
        losses.append(worst)
    targets, clean = [], 0
    for life in lives(stream):
        onset = next((number for number, tick in enumerate(life.ticks) if loss_at(tick) > above), None)
        clean += len(life.ticks) if onset is None else onset
        if onset is not None:
            targets.append(Span(life.ticks[onset].at_s, life.until_s + TICK_S))
    positive = True if shown >= enough else None if worst >= nearly else False
    return Truth(positive, targets if positive else (), () if positive else targets, clean * TICK_S, losses)


def _restart_recovery(stream: Stream) -> Truth:
    """Take a page as right from the end of the first bad life on: the next ones show that a restart mends it."""
    pool = stream.pool_blocks
    bad = [
        life
        for life in lives(stream)
        if life.ended and any(t.leaked_blocks >= LEAK_SHARE * pool or t.creep_factor >= 1 + CREEP for t in life.ticks)
    ]
    targets = [Span(bad[0].until_s, math.inf)] if bad else []
    clean = sum(tick.up and not _around(tick.at_s, targets) for tick in stream.ticks)
    positive = True if len(bad) > 1 else None if bad else False
    return Truth(positive, targets, (), clean * float(TICK_S), ())


def _stall(stream: Stream) -> Truth:
    """Look for a hang that begins with requests in the engine: of an idle one the log is silent. Starving excuses."""
    stuck = [list(ticks) for moved, ticks in groupby(stream.ticks, key=lambda tick: not tick.stuck) if not moved]
    spans = [
        (Span(ticks[0].at_s - 2 * TICK_S, ticks[-1].at_s + STALL_TOLD_LATE_S), ticks)
        for ticks in stuck
        if len(ticks) * TICK_S >= STALL_S
    ]
    hung = [tick for tick in stream.ticks if tick.hung]
    visible = bool(hung) and (hung[0].running > 0 or hung[0].waiting > 0) and hung[0].printed
    targets = [span for span, ticks in spans if any(tick.hung for tick in ticks)] if visible else []
    excused = [span for span, _ in spans if span not in targets]
    clean = sum(tick.up and not tick.stuck for tick in stream.ticks)
    positive = bool(targets) if stream.trace.trace_class is TraceClass.HANG else False
    if hung and not visible:
        return Truth(None, (), excused, clean * float(TICK_S), ())
    return Truth(positive, targets, excused, clean * float(TICK_S), ())


_TRUTHS: dict[Question, Callable[[Stream], Truth]] = {
    Question.LEAK: _leak,
    Question.RESTART_RECOVERY: _restart_recovery,
    Question.LATENCY_CREEP: _creep,
    Question.ENGINE_STALL: _stall,
}
