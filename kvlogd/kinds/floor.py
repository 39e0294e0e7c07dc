"""`floor`: blocks stay in use when nothing runs or waits, and ever more of them from one idle spell to the next.

Evidence is an idle record: nothing running or waiting. What it computed in its interval does not matter, for the
usage is that of the moment it was printed at: an engine that idles for seconds only is never seen otherwise. An
absolute level proves nothing: up to 0.10.1 the null block is counted, so the floor of each run is learned. What
comes back by itself (a lease of a prefill/decode pair, 480 s by default) is no leak, so the rise must climb over
several spells, or outlast the longest lease; and where idle usage has been seen to fall, it must clear its noise.
Cannot see: an engine that never idles; a residue that was there before the run's first idle spell.
"""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from kvlogd.curve import NOISY_S, Spell, Spells, climbs, median, newest
from kvlogd.fields import Count, Duration, Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.window import Window

NAME = "floor"
SCOPES = frozenset({Per.ENGINE})

SURE_FLOOR = 2
"""Spells at the lowest usage that make it a floor that this run comes back to."""
UNSURE_SPELLS = 6
"""Raised spells that count where the floor was seen but once: so many never fall in a row by chance."""


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
    """Judges the idle spells of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = 0
        self._spells = Spells(params.rises_by)
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict on the idle spells so far; it changes only with a new idle record."""
        fresh = window.count - self._taken
        if fresh:
            self._taken = window.count
            idle = False
            for stats in newest(window.recent, fresh):
                idle |= self._spells.observe(stats, window.interval_s)
            if idle or isinstance(self._judgement, NoEvidence):
                self._judgement = self._look(window)
        return self._judgement

    def _look(self, window: Window) -> Judgement:
        spells = self._spells
        if spells.count < 2:
            return Abstained("fewer than two idle spells in this run: wait for the engine to idle again")
        if not spells.raised:
            return Clear()
        wanted = self._params.spells if spells.at_lowest >= SURE_FLOOR else max(UNSURE_SPELLS, self._params.spells)
        if len(spells.raised) < wanted:
            return Abstained(f"blocks are held over {len(spells.raised)} idle spells; {wanted} tell it from a lease")
        if not self._persists(window.has_connector):
            return Abstained("the idle residue may still be a lease that ends: it neither climbs nor lasts long enough")
        return _finding(window, spells)

    def _persists(self, leases: bool) -> bool:
        spells = self._spells
        lasted_s = spells.raised[-1].end_s - spells.raised[0].start_s
        if spells.last_drop is not None:
            return lasted_s >= NOISY_S and climbs_over_noise([*spells.past, spells.latest[-1]], spells.latest)
        if lasted_s >= self._params.hold:
            return True
        return not leases and lasted_s >= self._params.climb_within and climbs(spells.raised)


def climbs_over_noise(past: Sequence[Spell], latest: Sequence[Spell]) -> bool:
    """Return whether the floor rose on an engine whose idle usage also falls by itself (delayed frees).

    The lowest of the last 20 spells must pass the 95 % quantile of the older half by a clear margin.
    """
    if len(past) < 60:
        return False
    older = sorted([spell.usage for spell in past[: len(past) // 2]])
    steps = sorted([abs(b.usage - a.usage) for a, b in pairwise(latest)])
    margin = max(0.01, 3 * median(steps))
    return min([spell.usage for spell in list(latest)[-20:]]) >= older[int(0.95 * (len(older) - 1))] + margin


def _finding(window: Window, spells: Spells) -> Finding:
    lowest, raised = spells.lowest or 0.0, spells.raised
    held = raised[-1].usage
    hours = (raised[-1].end_s - raised[0].start_s) / 3600
    evidence = {
        "idle_usage": held,
        "lowest_idle_usage": lowest,
        "spells": float(len(raised)),
        "lasted_s": raised[-1].end_s - raised[0].start_s,
    }
    if hours > 0:
        rate = (held - lowest) / hours
        evidence["lost_per_h"] = rate
        evidence["full_in_s"] = (1.0 - held) / rate * 3600
    if window.run.blocks:
        evidence["blocks_held"] = float(round((held - lowest) * window.run.blocks))
    if window.run.kv_tokens:
        evidence["tokens_held"] = float(round((held - lowest) * window.run.kv_tokens))
    return Finding(raised[0].start_s, held, evidence)
