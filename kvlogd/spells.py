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


class Raised:
    """The spells since the idle usage was last near its lowest, thinned out."""

    def __init__(self, by: float) -> None:
        self.by = by
        """From so far above the lowest on."""
        self.spells: list[Spell] = []
        self.count = 0
        """How many they were before they were thinned out."""
        self.low_s: float | None = None
        """When a spell that was near the lowest ended last."""

    def take(self, spell: Spell, lowest: float, *, anew: bool) -> None:
        """Take in a spell, or what became of the latest one."""
        if spell.usage < lowest + self.by - 1e-9:
            self.spells, self.count, self.low_s = [], 0, spell.end_s
        elif anew or not self.spells:
            self.spells.append(spell)
            self.count += 1
            if len(self.spells) > KEPT:
                self.spells = self.spells[:1] + self.spells[2::2]
        else:
            self.spells[-1] = spell


class Spells:
    """The idle spells of one run: the latest whole, older ones thinned out, and those that stay raised."""

    def __init__(self, drop: float = DROP) -> None:
        self._drop = drop
        self._stride = 1
        self.count = 0
        self.lowest: float | None = None
        self.at_lowest = 0
        """Spells that were at the lowest usage, but for rounding."""
        self.past: list[Spell] = []
        """Finished spells, oldest first, each `stride`-th of them."""
        self.latest: deque[Spell] = deque(maxlen=41)
        self.last_drop: int | None = None
        """Number of the spell that last fell below the one before it."""
        self._raised: dict[float, Raised] = {}

    def above(self, by: float) -> Raised:
        """Return the spells that stay so far above the lowest; it goes on with each record.

        Whole where it is asked for before spells have been thinned out: rules ask at the first idle record.
        """
        if by not in self._raised:
            raised = self._raised[by] = Raised(by)
            kept = [spell for spell in self.past if spell.end_s < self.latest[0].start_s]
            for spell in (*kept, *self.latest):
                raised.take(spell, self.lowest or 0.0, anew=True)
        return self._raised[by]

    def observe(self, stats: Stats, interval_s: float | None, *, worked: bool) -> None:
        """Take in an idle record; `worked`: the one before it was not idle."""
        worked = worked or stats.prompt_tps > 0 or stats.generation_tps > 0
        usage = stats.kv_usage
        last = self.latest[-1] if self.latest else None
        if last is not None and (not worked or stats.ts_s - last.start_s < NEAR * (interval_s or 10.0)):
            self._extend(last, stats.ts_s, usage)
        else:
            self._begin(last, Spell(stats.ts_s, stats.ts_s, usage))

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
        for raised in self._raised.values():
            raised.take(spell, self.lowest, anew=anew)


def climbs(raised: Sequence[Spell], step: float = PRINT_STEP) -> bool:
    """Return whether each third of some spells lies wholly above the third before."""
    n = len(raised)
    least = (min([spell.usage for spell in raised[i * n // 3 : (i + 1) * n // 3]]) for i in range(3))
    return all(b > a + 2 * step - 1e-9 for a, b in pairwise(least))
