"""`trend`: a signal rises or falls over time; with `at_constant: load` compared only at moments of equal load.

With `at_constant: load` (for KV usage and its free share) the run is compared with its own beginning, load by
load, over stretches from minutes to days (`kvlogd.ladder`); evidence is counted in records and request turnovers.
Without it, the plain slope (Theil and Sen) over a span counts, where Mann and Kendall's test is sure of it.
Cannot see: a leak that was there before the run's first records; on a pool that is full from the start, anything.
"""

from enum import StrEnum
from math import sqrt

from pydantic import BaseModel, ConfigDict, model_validator

from kvlogd.block import FULL, median
from kvlogd.fields import Count, Duration, Points, SignalName
from kvlogd.ladder import Ladder, Verdict
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.rest import Resting
from kvlogd.room import Size
from kvlogd.tally import per_request
from kvlogd.window import SIGNALS, Window

NAME = "trend"
SCOPES = frozenset({Per.ENGINE})
POOL = frozenset({"kv_usage", "kv_free_share"})
LEASED_STRETCH_S = 1800.0
"""Where a KV connector leases blocks, only stretches longer than several leases count."""


class Direction(StrEnum):
    """Which way is bad."""

    RISING = "rising"
    FALLING = "falling"


class Constant(StrEnum):
    """What must be equal for two moments to be compared."""

    LOAD = "load"


class Params(BaseModel):
    """What must move, which way, and by how much."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signal: SignalName
    direction: Direction
    at_constant: Constant | None = None
    by_at_least: Points | None = None
    """With `at_constant: load`: the least shift over the longest stretches; shorter ones ask for more by themselves."""
    over: Duration = 7200.0
    """Without `at_constant`: the span that the slope is taken over."""
    points: Count = 24
    """Without `at_constant`: how many points the span is cut into."""

    @model_validator(mode="after")
    def _pool_only(self) -> "Params":
        if self.at_constant is Constant.LOAD and self.signal not in POOL:
            raise ValueError(f"at_constant: load knows {' and '.join(sorted(POOL))} only, not {self.signal}")
        if self.at_constant is None and self.by_at_least is None:
            raise ValueError("by_at_least is missing: how much must the signal move over the span?")
        return self


def make(params: Params) -> "LoadTrend | PlainTrend":
    """Return an evaluator for one run."""
    return LoadTrend(params) if params.at_constant is Constant.LOAD else PlainTrend(params)


class LoadTrend(Resting):
    """Judges the ladder of comparisons of one run."""

    rest_s = 120.0
    """Idle spells of an engine that is seldom asked need not wait for the end of a block."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._ladder = Ladder()
        self._taken = 0
        self.least = 1
        self.ripe = self._ladder.missing()
        """With each block that is complete it may say something else."""
        self._judgement: Judgement = Abstained("the run is young: it has no past of its own to be compared with yet")

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict of the rungs; it changes only when a block of records is complete."""
        if window.count > self._taken:
            fresh, idled = window.fresh(self._taken), window.idled > self._taken
            self._taken = window.count
            size = Size(window.run.kv_tokens, window.run.max_model_len)
            if self._ladder.take(fresh, window.interval_s, size, window.spells, idled=idled):
                self._judgement = self._look(window)
            self.least, self.ripe = self._taken + 1, self._taken + self._ladder.missing()
        return self._judgement

    def _look(self, window: Window) -> Judgement:
        verdicts = self._ladder.verdicts
        if self._params.by_at_least is not None:
            verdicts = [v for v in verdicts if v.shift.shift >= self._params.by_at_least]
        if window.has_connector:
            verdicts = [v for v in verdicts if v.at_s - v.since_s >= LEASED_STRETCH_S]
        if verdicts:
            # at load first: idle spells tell less of how fast, and of how sure
            found = _finding(window, max(verdicts, key=lambda v: (v.apart_s is not None, v.stretch_s)))
            # the value is the signal's own change an hour, with its sign
            return found if self._params.signal == "kv_usage" else found._replace(value=-(found.value or 0.0))
        if self._ladder.compared:
            return Clear()
        return Abstained("no stretch of this run has the same load as its first one yet, with room in the pool")


def _finding(window: Window, verdict: Verdict) -> Finding:
    shift = verdict.shift
    rate = verdict.rate_per_s * 3600
    evidence = {
        "shift": shift.shift,
        "shift_error": shift.mean_error,
        "lost_per_h": rate,
        "running_low": shift.lowest_running,
        "running_high": shift.highest_running,
        "usage_now": verdict.usage,
        "compared_s": verdict.at_s - verdict.since_s,
        "stretch_s": verdict.stretch_s,
        "last_s": verdict.at_s,
    }
    if verdict.apart_s is not None:
        evidence["apart_s"] = verdict.apart_s
    room = max(0.0, FULL - verdict.usage)
    if rate > 0:
        spread = min(0.5, 2 * shift.mean_error / shift.shift + 0.1)
        evidence["full_in_s"] = room / rate * 3600
        evidence["full_in_low_s"] = room / (rate * (1 + spread)) * 3600
        evidence["full_in_high_s"] = room / (rate * (1 - spread)) * 3600
    if verdict.turnovers is not None:
        evidence["turnovers"] = verdict.turnovers
    if window.run.kv_tokens:
        evidence["tokens_lost"] = float(round(shift.shift * window.run.kv_tokens))
    if window.run.blocks:
        evidence["blocks_lost"] = float(round(shift.shift * window.run.blocks))
    evidence |= per_request(window.eyes.tally, window.run, verdict.rate_per_s, verdict.since_s, verdict.at_s)
    return Finding(verdict.since_s, rate, evidence)


class PlainTrend(Resting):
    """Judges the slope of one signal over a span."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._points: list[tuple[float, float]] = []
        self._step_s = params.over / params.points

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the signal moved over the span, by the median slope of all pairs of points."""
        value = SIGNALS[self._params.signal].read(window, at_s)
        if value is None:
            return NoEvidence()
        if not self._points or at_s - self._points[-1][0] >= self._step_s:
            self._points.append((at_s, value))
        self._points = [p for p in self._points if p[0] > at_s - self._params.over - self._step_s]
        if len(self._points) < 0.8 * self._params.points:
            return Abstained("the span is not full yet")
        sign = 1.0 if self._params.direction is Direction.RISING else -1.0
        slope = sign * theil_sen(self._points)
        moved = slope * self._params.over
        if moved < (self._params.by_at_least or 0.0) or sign * kendall_z(self._points) < 3.0:
            return Clear()
        return Finding(self._points[0][0], slope * 3600, {"moved": sign * moved, "slope_per_h": sign * slope * 3600})


def theil_sen(points: list[tuple[float, float]]) -> float:
    """Return the median slope of all pairs of points, per second (Theil 1950, Sen 1968)."""
    slopes = sorted(
        [(yb - ya) / (xb - xa) for i, (xa, ya) in enumerate(points) for xb, yb in points[i + 1 :] if xb > xa]
    )
    return median(slopes) if slopes else 0.0


def kendall_z(points: list[tuple[float, float]]) -> float:
    """Return Mann and Kendall's standardised statistic; positive when the values rise."""
    n = len(points)
    total = sum([(yb > ya) - (yb < ya) for i, (_, ya) in enumerate(points) for _, yb in points[i + 1 :]])
    spread = sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return (total - (total > 0) + (total < 0)) / spread if spread else 0.0
