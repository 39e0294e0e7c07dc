"""The rules that sites use today, for comparison: thresholds, `deriv`, `predict_linear`, Mann-Kendall.

Those about the pool see its exact usage every ten seconds, idle or not, as a scraper of /metrics would: more than
kvlogd has from the log. Windows reach over restarts, as those of Prometheus do, and count once they are half full.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from bench.scoring import Page, Question
from bench.traces.labels import TICK_S, Stream, Tick

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MINUTE_TICKS = 6
TEN_MINUTES = 60
MK_SAMPLES = 144
MK_Z = 2.326
"""One-sided p < 0.01."""

State = tuple[float, bool]
"""A time, and whether the expression holds then."""


def held(states: Iterable[State], for_s: float) -> list[Page]:
    """Return the pages of an expression that must hold for some time, as Prometheus's `for` has it."""
    pages: list[Page] = []
    since_s: float | None = None
    firing, last_s = False, 0.0
    for at_s, holds in states:
        last_s = at_s
        if not holds:
            if firing:
                pages[-1] = pages[-1]._replace(until_s=at_s)
            since_s, firing = None, False
            continue
        since_s = at_s if since_s is None else since_s
        if not firing and at_s - since_s >= for_s:
            pages.append(Page(at_s, math.inf))
            firing = True
    return [page._replace(until_s=min(page.until_s, last_s)) for page in pages]


class Line:
    """The least-squares line through the samples of the last while."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()
        self._t = self._x = self._tt = self._tx = 0.0

    def add(self, at_s: float, value: float) -> None:
        """Take a sample in and let go of the old ones."""
        self._count(at_s / HOUR_S, value, 1)
        self._samples.append((at_s, value))
        while self._samples[0][0] <= at_s - self._window_s:
            old_s, old = self._samples.popleft()
            self._count(old_s / HOUR_S, old, -1)

    def _count(self, hour: float, value: float, sign: int) -> None:
        self._t += sign * hour
        self._x += sign * value
        self._tt += sign * hour * hour
        self._tx += sign * hour * value

    def per_hour(self) -> float | None:
        """Return the slope; None while the window is less than half full."""
        n = len(self._samples)
        if n < 3 or self._samples[-1][0] - self._samples[0][0] < self._window_s / 2:
            return None
        spread = n * self._tt - self._t * self._t
        return (n * self._tx - self._t * self._x) / spread if spread > 1e-9 else None

    def in_(self, hours: float) -> float | None:
        """Return where the line will be some hours after the last sample."""
        slope = self.per_hour()
        if slope is None:
            return None
        n = len(self._samples)
        return self._x / n + slope * (self._samples[-1][0] / HOUR_S + hours - self._t / n)


def gauge(stream: Stream) -> Iterator[tuple[float, float]]:
    """Yield the usage of the pool once a minute, while the process is up."""
    return ((tick.at_s, tick.kv_usage) for tick in stream.ticks[MINUTE_TICKS - 1 :: MINUTE_TICKS] if tick.up)


def full(stream: Stream) -> list[Page]:
    """Page on usage above 90 % for ten minutes."""
    return held(((tick.at_s, tick.up and tick.kv_usage > 0.9) for tick in stream.ticks), 600)


def rising(stream: Stream) -> list[Page]:
    """Page on `deriv(usage[6h])` above 10 % a day, for an hour."""

    def states() -> Iterator[State]:
        line = Line(6 * HOUR_S)
        for at_s, usage in gauge(stream):
            line.add(at_s, usage)
            yield at_s, (line.per_hour() or 0.0) > 0.10 / 24

    return held(states(), HOUR_S)


def predicted(window_h: float, ahead_h: float, for_s: float) -> Callable[[Stream], list[Page]]:
    """Return the rule that `predict_linear` over a window, so far ahead, finds the pool full."""

    def pages(stream: Stream) -> list[Page]:
        def states() -> Iterator[State]:
            line = Line(window_h * HOUR_S)
            for at_s, usage in gauge(stream):
                line.add(at_s, usage)
                yield at_s, (line.in_(ahead_h) or 0.0) >= 1.0

        return held(states(), for_s)

    return pages


def means(stream: Stream, value_of: Callable[[Tick], float | None]) -> Iterator[tuple[float, float]]:
    """Yield the mean of each ten minutes that have a value."""
    for number, ticks in groupby(stream.ticks, key=lambda tick: int((tick.at_s - TICK_S) // (TICK_S * TEN_MINUTES))):
        values = [value for tick in ticks if (value := value_of(tick)) is not None]
        if values:
            yield (number + 1) * float(TICK_S * TEN_MINUTES), sum(values) / len(values)


def trending(samples: Iterable[tuple[float, float]]) -> Iterator[State]:
    """Yield whether a Mann-Kendall test over the last day finds a rise, p < 0.01, as each sample comes."""
    window: deque[float] = deque()
    rises = 0
    for at_s, value in samples:
        rises += sum((value > old) - (value < old) for old in window)
        window.append(value)
        if len(window) > MK_SAMPLES:
            first = window.popleft()
            rises -= sum((new > first) - (new < first) for new in window)
        n = len(window)
        deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        yield at_s, n >= MK_SAMPLES // 2 and (rises - 1) / deviation > MK_Z


def usage(tick: Tick) -> float | None:
    """Return the usage of the pool, while the process is up."""
    return tick.kv_usage if tick.up else None


def per_token(tick: Tick) -> float | None:
    """Return the seconds between two tokens of a request as the log tells them: running by throughput."""
    return tick.running / tick.generation_tps if tick.printed and tick.running and tick.generation_tps > 0 else None


def slower(stream: Stream) -> list[Page]:
    """Page where the time per token of an hour is 20 % above that of this life's first day, whatever the load."""

    def states() -> Iterator[State]:
        life, first, last = -1, list[float](), deque[float](maxlen=6)
        ends_s = {tick.at_s: tick.life for tick in stream.ticks}
        for at_s, value in means(stream, per_token):
            now = ends_s.get(at_s, life)
            if now != life:
                life, first = now, []
                last.clear()
            last.append(value)
            if len(first) < MK_SAMPLES:
                first.append(value)
                yield at_s, False
            else:
                yield at_s, sum(last) / len(last) > 1.2 * sum(first) / len(first)

    return held(states(), HOUR_S)


def restarted(stream: Stream) -> list[Page]:
    """Page on two restarts within a week."""
    starts = [new.at_s for old, new in pairwise(stream.ticks) if new.life > old.life]
    return [Page(new, new) for old, new in pairwise(starts) if new - old < 7 * DAY_S]


def silent(stream: Stream) -> list[Page]:
    """Page on no stats line for five minutes."""
    return held(((tick.at_s, not tick.printed) for tick in stream.ticks), 300)


RIVALS: dict[Question, dict[str, Callable[[Stream], Sequence[Page]]]] = {
    Question.LEAK: {
        "usage > 90 % for 10 min": full,
        "deriv[6h] > 10 %/day for 1 h": rising,
        "predict_linear[1h] + 4 h": predicted(1, 4, 0),
        "predict_linear[6h] + 24 h for 1 h": predicted(6, 24, HOUR_S),
        "Mann-Kendall 24 h, p < 0.01": lambda stream: held(trending(means(stream, usage)), 0),
    },
    Question.RESTART_RECOVERY: {"two restarts in a week": restarted},
    Question.LATENCY_CREEP: {
        "running/throughput + 20 % over day 1": slower,
        "Mann-Kendall 24 h on it, p < 0.01": lambda stream: held(trending(means(stream, per_token)), 0),
    },
    Question.ENGINE_STALL: {"no stats line for 5 min": silent},
}
