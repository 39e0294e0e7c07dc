"""`floor`: blocks stay in use when nothing runs or waits, and ever more of them from one idle spell to the next.

Evidence is an idle record: nothing running or waiting. What it computed in its interval does not matter, for the
usage is that of the moment it was printed at: an engine that idles for seconds only is never seen otherwise. An
absolute level proves nothing: up to 0.10.1 the null block is counted, so the floor of each run is learned. What
comes back by itself (a lease of a prefill/decode pair, 480 s by default) is no leak, so the rise must climb over
several spells, or outlast the longest lease; and where idle usage has been seen to fall, it must clear its noise.
Cannot see: an engine that never idles; a residue that was there before the run's first idle spell.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.curve import median, newest
from kvlogd.fields import Count, Duration, Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.window import Window

NAME = "floor"
SCOPES = frozenset({Per.ENGINE})

PRINT_STEP = 0.001
"""vLLM prints the usage with one decimal of a per cent."""
DROP = 0.0015
"""A fall of the idle usage that is more than rounding: something gives blocks back by itself."""
NEAR = 6.0
"""Spells nearer than so many records are one: their usage hangs together."""
KEPT = 400
"""Spells that are remembered of a whole run, evenly thinned out."""


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


class Spell(NamedTuple):
    """An idle spell, or some close together: the lowest usage in it."""

    start_s: float
    end_s: float
    usage: float


class Spells:
    """The idle spells of one run: the latest whole, older ones thinned out, and the stretch that stays raised."""

    def __init__(self, rises_by: float) -> None:
        self._rises_by = rises_by
        self._worked = True
        self._stride = 1
        self.count = 0
        self.lowest: float | None = None
        self.past: list[Spell] = []
        """Finished spells, oldest first, each `stride`-th of them."""
        self.latest: deque[Spell] = deque(maxlen=41)
        self.raised: list[Spell] = []
        """Spells since the usage was last near the lowest, thinned out like `past`."""
        self.last_drop: int | None = None
        """Number of the spell that last fell below the one before it."""

    def observe(self, stats: Stats, near_s: float) -> bool:
        """Take in a record; return whether it was idle."""
        if stats.running or stats.waiting:
            self._worked = True
            return False
        worked = self._worked or stats.prompt_tps > 0 or stats.generation_tps > 0
        self._worked = False
        usage = stats.kv_usage
        last = self.latest[-1] if self.latest else None
        if last is not None and (not worked or stats.ts_s - last.start_s < near_s):
            self._extend(last, stats.ts_s, usage)
        else:
            self._begin(last, Spell(stats.ts_s, stats.ts_s, usage))
        return True

    def _extend(self, last: Spell, at_s: float, usage: float) -> None:
        spell = Spell(last.start_s, at_s, min(last.usage, usage))
        self.latest[-1] = spell
        if usage < last.usage - DROP:
            self.last_drop = self.count
        self._level(spell, anew=False)

    def _begin(self, last: Spell | None, spell: Spell) -> None:
        if last is not None:
            if spell.usage < last.usage - DROP:
                self.last_drop = self.count + 1
            if self.count % self._stride == 0:
                self.past.append(last)
            if len(self.past) > KEPT:
                self.past, self._stride = self.past[::2], 2 * self._stride
        self.count += 1
        self.latest.append(spell)
        self._level(spell, anew=True)

    def _level(self, spell: Spell, *, anew: bool) -> None:
        if self.lowest is None or spell.usage < self.lowest:
            self.lowest = spell.usage
        if spell.usage < self.lowest + self._rises_by - 1e-9:
            self.raised = []
        elif anew or not self.raised:
            self.raised.append(spell)
            if len(self.raised) > KEPT:
                self.raised = self.raised[:1] + self.raised[2::2]
        else:
            self.raised[-1] = spell


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
            near_s = NEAR * (window.interval_s or 10.0)
            idle = False
            for stats in newest(window.recent, fresh):
                idle |= self._spells.observe(stats, near_s)
            if idle or isinstance(self._judgement, NoEvidence):
                self._judgement = self._look(window)
        return self._judgement

    def _look(self, window: Window) -> Judgement:
        spells = self._spells
        if spells.count < 2:
            return Abstained("fewer than two idle spells in this run: wait for the engine to idle again")
        if not spells.raised:
            return Clear()
        if len(spells.raised) < self._params.spells:
            return Abstained(
                f"blocks are held over {len(spells.raised)} idle spells; {self._params.spells} tell it from a lease"
            )
        if not self._persists(window.has_connector):
            return Abstained("the idle residue may still be a lease that ends: it neither climbs nor lasts long enough")
        return _finding(window, spells)

    def _persists(self, leases: bool) -> bool:
        spells = self._spells
        lasted_s = spells.raised[-1].end_s - spells.raised[0].start_s
        if spells.last_drop is not None:
            return lasted_s >= self._params.hold and climbs_over_noise([*spells.past, spells.latest[-1]], spells.latest)
        if lasted_s >= self._params.hold:
            return True
        return not leases and lasted_s >= self._params.climb_within and climbs(spells.raised)


def climbs(raised: Sequence[Spell]) -> bool:
    """Return whether each third of some spells lies wholly above the third before."""
    n = len(raised)
    least = [min(s.usage for s in raised[i * n // 3 : (i + 1) * n // 3]) for i in range(3)]
    return all(b >= a + 2 * PRINT_STEP for a, b in pairwise(least))


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
