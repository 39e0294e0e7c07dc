"""`floor`: blocks stay in use when nothing runs or waits, and ever more of them from one idle spell to the next.

Evidence is a settled idle record: nothing running or waiting, and no token computed in its interval. vLLM prints
one such line an idle spell. An absolute level proves nothing: up to 0.10.1 the null block is counted, so the
floor of each run is learned. What comes back by itself (a lease of a prefill/decode pair, 480 s by default) is no
leak, so the rise must climb over several spells, or outlast the longest lease.
Cannot see: an engine that never idles; a residue that was there before the run's first idle spell.
"""

from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from kvlogd.curve import median
from kvlogd.fields import Count, Duration, Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.window import IdleVisit, Window

NAME = "floor"
SCOPES = frozenset({Per.ENGINE})

PRINT_STEP = 0.001
"""vLLM prints the usage with one decimal of a per cent."""


class Params(BaseModel):
    """What the floor must do to count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rises_by: Points = 0.005
    """How far above the lowest idle usage of the run every spell must stay."""
    spells: Count = 3
    """Idle spells in a row that must stay above."""
    hold: Duration = 660.0
    """A rise that does not climb must last this long: longer than a lease of 480 s."""
    climb_within: Duration = 240.0
    """A rise that climbs from spell to spell counts after this long, where no KV connector leases blocks."""


def make(params: Params) -> "Floor":
    """Return an evaluator for one run."""
    return Floor(params)


class Floor:
    """Judges the idle visits of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._seen = -1
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict on the idle visits so far; it changes only with a new one."""
        if window.evidence != self._seen:
            self._seen = window.evidence
            self._judgement = self._look(window)
        return self._judgement

    def _look(self, window: Window) -> Judgement:
        spells = spells_of(list(window.visits))
        if len(spells) < 2 or window.lowest_idle is None:
            return Abstained("fewer than two settled idle records in this run: wait for the engine to idle again")
        raised = raised_tail(spells, window.lowest_idle + self._params.rises_by)
        if not raised:
            return Clear()
        if len(raised) < self._params.spells:
            return Abstained(
                f"blocks are held over {len(raised)} idle spells; {self._params.spells} tell it from a lease"
            )
        if not self._persists(window, spells, raised):
            return Abstained("the idle residue may still be a lease that ends: it neither climbs nor lasts long enough")
        return _finding(window, spells, raised)

    def _persists(self, window: Window, spells: list[IdleVisit], raised: list[IdleVisit]) -> bool:
        lasted_s = raised[-1].ts_s - raised[0].ts_s
        if window.idle_drops:
            return climbs_over_noise(spells)
        climbs = all(
            b.kv_usage >= a.kv_usage + 2 * PRINT_STEP for a, b in pairwise(raised[-int(self._params.spells) :])
        )
        if climbs and not window.has_connector and lasted_s >= self._params.climb_within:
            return True
        return lasted_s >= self._params.hold


def spells_of(visits: list[IdleVisit]) -> list[IdleVisit]:
    """Return one visit a busy/idle cycle: the lowest of each spell."""
    spells: list[IdleVisit] = []
    for visit in visits:
        if visit.busy_before or not spells:
            spells.append(visit)
        elif visit.kv_usage < spells[-1].kv_usage:
            spells[-1] = visit._replace(busy_before=spells[-1].busy_before)
    return spells


def raised_tail(spells: list[IdleVisit], level: float) -> list[IdleVisit]:
    """Return the latest spells in a row that all stay at or above a level, oldest first."""
    tail: list[IdleVisit] = []
    for visit in reversed(spells):
        if visit.kv_usage < level:
            break
        tail.append(visit)
    return tail[::-1]


def climbs_over_noise(spells: list[IdleVisit]) -> bool:
    """Return whether the floor rose on an engine whose idle usage also falls by itself (delayed frees).

    The lowest of the last 20 spells must pass the 95 % quantile of the older half by a clear margin.
    """
    if len(spells) < 60:
        return False
    older = sorted([visit.kv_usage for visit in spells[: len(spells) // 2]])
    steps = sorted([abs(b.kv_usage - a.kv_usage) for a, b in pairwise(spells[-41:])])
    margin = max(0.01, 3 * median(steps))
    return min(visit.kv_usage for visit in spells[-20:]) >= older[int(0.95 * (len(older) - 1))] + margin


def _finding(window: Window, spells: list[IdleVisit], raised: list[IdleVisit]) -> Finding:
    lowest = window.lowest_idle or 0.0
    held = min(raised[-1].kv_usage, window.visits[-1].kv_usage)
    before = spells[-len(raised) - 1] if len(spells) > len(raised) else raised[0]
    hours = (raised[-1].ts_s - before.ts_s) / 3600
    evidence = {
        "idle_usage": held,
        "lowest_idle_usage": lowest,
        "spells": float(len(raised)),
        "lasted_s": raised[-1].ts_s - raised[0].ts_s,
    }
    if hours > 0:
        rate = (held - before.kv_usage) / hours
        evidence["lost_per_h"] = rate
        if rate > 0:
            evidence["full_in_s"] = (1.0 - held) / rate * 3600
    if window.run.blocks:
        evidence["blocks_held"] = float(round((held - lowest) * window.run.blocks))
    if window.run.kv_tokens:
        evidence["tokens_held"] = float(round((held - lowest) * window.run.kv_tokens))
    return Finding(raised[0].ts_s, held, evidence)
