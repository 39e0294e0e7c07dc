"""The idle spells of a run: the usage that an engine comes down to with nothing running or waiting. Pure."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from kvlogd.block import PRINT_STEP
from kvlogd.model import Stats

DROP = 0.0015
"""A fall of the idle usage that is more than rounding: something gives blocks back by itself."""
NEAR = 6.0
"""Spells nearer than so many records are one: their usage hangs together."""
NOISY_S = 86400.0
"""Where idle usage falls by itself (delayed frees) it follows the traffic, and only a whole day tells."""
KEPT = 400
"""Spells that are remembered of a whole run, evenly thinned out."""


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
    return all(b >= a + 2 * step for a, b in pairwise(least))
