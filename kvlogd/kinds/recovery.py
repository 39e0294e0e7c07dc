"""`recovery`: it degrades, a restart cures it, it degrades again: lost cache, slower tokens or failures, life by life.

Each life of the engine is kept as twelve parts of its first quarter and twelve of its last. The last parts are held
against the first ones of all lives kept (four and the present one), and only against those with as many running and
as many prompts; where no load compares, idle against idle. A life degraded when it ended with 10 points more of the
pool in use and that in its every record, or with tokens 15 % slower. It was cured when the next life began without.
Two such lives, or one and the present life on the same way, make a finding; three where it is mild, below 1.5 times
that. Where each life by itself shows too little of its pace (few requests, other loads each time), as many lives count
that show it together: their ends are slower than the beginnings before them, and than those after them. Two lives in a
row, of about the same length, that died or stood still at the end make a finding too. A life of twice the usual length
that keeps well ends it.
Cannot see: lives of fewer than 40 records; a cure by something else than a restart; restarts that leave no trace.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.block import median
from kvlogd.course import LEAST_PARTS, Part, PastLife
from kvlogd.fields import Count, Points
from kvlogd.lives import Ages, Together, Worse, ages_of, long_row_of, together, worse_of
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.pace import Row, excess_of
from kvlogd.rest import Resting
from kvlogd.window import Window

NAME = "recovery"
SCOPES = frozenset({Per.ENGINE})
LASTING = True
"""Its alert is about several runs: no restart ends it."""

GROWTH = 1.25
"""The present life is looked at again when it has grown by this factor."""
HALF = 0.5
"""A cure takes away more than this share of what was lost, and a leak is in every record with as much of its size."""
LEAST_SHIFTS = 3
NEAREST = 5
LEAST_RUNNING = 0.8
MILD = 1.5
"""Below this many times what is enough, it takes a life more."""
ALIKE = 3.0
"""Lives that fail for the same reason differ in length by no more than this factor."""
ENOUGH_LIVES = 3
"""Where so many past lives each tell of their pace, they need not be taken together."""
KEPT_ROWS = 1024
"""Rows of parts that are over and asked for again: some hundred of each engine."""
OUTLIVED = 2.0
"""A life of this many times the usual length that has not degraded says that it is over."""


class Params(BaseModel):
    """How much worse a life must end than it began."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lives: Count = 2
    """Lives that must have degraded; the present one counts when it is on the same way."""
    lost: Points = 0.1
    """Share of the pool."""
    slower: Points = 0.15
    """By which share a token must take longer."""


def make(params: Params) -> "Recovery":
    """Return an evaluator for one run: what it knows of others stands in the window."""
    return Recovery(params)


class Ailment(NamedTuple):
    """One way to degrade: how it is measured at a life's end, and whether the next life began without."""

    name: str
    measure: Callable[[Sequence[Part], Sequence[Part]], float | None]
    """The end's parts and the beginnings' parts to how much worse it is; None where nothing can be compared."""
    cured: Callable[[float, PastLife, PastLife], bool]


class Recovery(Resting):
    """Judges the lives of one engine."""

    rest_s = 86_400.0

    def __init__(self, params: Params) -> None:
        self._params = params
        self._looked = -1.0
        self.ripe = 1.0
        """The present life is looked at again when it has grown by a quarter."""
        self._past_sizes: dict[str, list[float | None]] = {}
        """By ailment, how degraded each past life was at its end: that changes no more."""
        self._past_teeth: dict[str, list[tuple[PastLife, float]]] = {}
        """By ailment, those that were cured by the life after them, which is over too."""
        self._past_ages: list[Ages] = []
        self._past_worse: Worse | None = None
        """What the past lives say of their pace: that changes no more either."""
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict on the lives so far; it changes only as the present one grows."""
        records = window.course.records
        if records > self._looked:
            self._looked = self.ripe = max(records * GROWTH, 1.0)
            self._judgement = self._look(window)
        return self._judgement

    def _look(self, window: Window) -> Judgement:
        if not window.past:
            return Abstained("no life of this engine has ended yet: what a restart cures shows after one")
        course = window.course
        now: PastLife | None = None
        if len(course.parts) >= LEAST_PARTS:
            last_s = course.parts[-1].end_s
            now = PastLife(
                window.run.run_id,
                window.run.started_s,
                last_s,
                course.records,
                course.beginning(),
                course.ending(),
                False,
            )
        failures = self._failures(window.past, now)
        found = failures if isinstance(failures, Finding) else None
        compared = failures is not None
        pool = LEASED if window.has_connector else POOL
        for ailment, enough in ((pool, self._params.lost), (PACE, self._params.slower)):
            one = self._teeth(ailment, enough, window.past, now)
            compared |= one is not None
            found = one if isinstance(one, Finding) else found
        told = sum([size is not None for size in self._past_sizes[PACE.name]])
        if found is None and told < ENOUGH_LIVES:
            said = self._together(window.past, now)
            compared |= said is not None
            found = said if isinstance(said, Finding) else None
        if found is not None:
            return found
        if compared:
            return Clear()
        return Abstained(
            "the lives of this engine have no load in common that would tell their beginnings from their ends"
        )

    def _teeth(
        self, ailment: Ailment, enough: float, past: Sequence[PastLife], now: PastLife | None
    ) -> Finding | Clear | None:
        fresh = [part for life in past for part in life.fresh]
        if ailment.name not in self._past_sizes:
            measured = [ailment.measure(life.stale, fresh) for life in past]
            self._past_sizes[ailment.name] = measured
            self._past_teeth[ailment.name] = _cured(ailment, enough, past, measured)
        sizes, teeth = list(self._past_sizes[ailment.name]), list(self._past_teeth[ailment.name])
        if now is not None:
            teeth += _cured(ailment, enough, [past[-1], now], [sizes[-1]])
            sizes.append(ailment.measure(now.stale, [*fresh, *now.fresh]))
        if all(size is None for size in sizes):
            return None
        # the present life, or the last one as long as the present one is too young to tell whether it is cured
        falling = sizes[-1] is not None and sizes[-1] >= enough
        if not teeth:
            return Clear()
        size = median(sorted([size for _, size in teeth]))
        if len(teeth) + falling < self._params.lives + (size < MILD * enough):
            return Clear()
        life_s = _usual_s([life for life, _ in teeth])
        age_s = _age_s(now)
        if not falling and age_s > OUTLIVED * life_s:
            return Clear()
        evidence = {ailment.name: size, **_lives(len(teeth) + falling, life_s, age_s)}
        return Finding(teeth[0][0].started_s, float(len(teeth) + falling), evidence)

    def _together(self, past: Sequence[PastLife], now: PastLife | None) -> Finding | Clear | None:
        """Return what the lives say together of their pace, where each by itself shows too little of it."""
        if self._past_worse is None:
            ages = self._past_ages = [ages_of(life) for life in past]
            self._past_worse = [one for place in range(len(ages)) for one in worse_of(ages, place)]
        lives, ages, worse = list(past), list(self._past_ages), self._past_worse
        found: Together | None = None
        if now is not None:
            lives.append(now)
            ages.append(ages_of(now))
            found = together([*worse, *worse_of(ages, len(past))], ages)
        if not self._is_enough(found):
            # as long as the present life keeps well it speaks of those before it by its beginning alone
            found = together(worse, ages) or found
        if found is None or not self._is_enough(found):
            return Clear() if found is not None else None
        over = [past[place] for place in found.places if place < len(past)]
        if not over:
            return Clear()  # the present life alone: no restart has cured it
        life_s, age_s = _usual_s(over), _age_s(now)
        if len(past) not in found.places and age_s > OUTLIVED * life_s:
            return Clear()
        evidence = {PACE.name: found.slower, **_lives(len(found.places), life_s, age_s)}
        return Finding(lives[found.places[0]].started_s, float(len(found.places)), evidence)

    def _is_enough(self, found: Together | None) -> bool:
        enough, lives = self._params.slower, self._params.lives
        return (
            found is not None and found.slower >= enough and len(found.places) >= lives + (found.slower < MILD * enough)
        )

    def _failures(self, past: Sequence[PastLife], now: PastLife | None) -> Finding | Clear | None:
        """Return whether the latest lives failed, one after the other, after much the same time; None: too few did."""
        failed: list[PastLife] = []
        for life in reversed(past):
            length_s = life.ended_s - life.started_s
            if not life.failed or (failed and not _alike(length_s, failed[0].ended_s - failed[0].started_s)):
                break
            failed.append(life)
        if len(failed) < self._params.lives:
            return None
        life_s, age_s = _usual_s(failed), _age_s(now)
        if age_s > OUTLIVED * life_s:
            return Clear()
        return Finding(failed[-1].started_s, float(len(failed)), {"failed": 1.0, **_lives(len(failed), life_s, age_s)})


def _cured(
    ailment: Ailment, enough: float, lives: Sequence[PastLife], sizes: Sequence[float | None]
) -> list[tuple[PastLife, float]]:
    """Return those of consecutive lives that were degraded at their end and cured by the next one, and how much."""
    return [
        (life, size)
        for (life, following), size in zip(pairwise(lives), sizes, strict=False)
        if size is not None and size >= enough and ailment.cured(size, life, following)
    ]


def _alike(one_s: float, other_s: float) -> bool:
    return max(one_s, other_s) <= ALIKE * min(one_s, other_s)


def _age_s(now: PastLife | None) -> float:
    return now.ended_s - now.started_s if now is not None else 0.0


def _usual_s(lives: Sequence[PastLife]) -> float:
    return median(sorted([life.ended_s - life.started_s for life in lives]))


def _lives(count: int, life_s: float, age_s: float) -> dict[str, float]:
    evidence = {"lives": float(count), "life_s": life_s}
    return evidence | ({"next_in_s": life_s - age_s} if life_s > age_s else {})


def lost_share(stale: Sequence[Part], fresh: Sequence[Part]) -> float | None:
    """Return how much more of the pool is in use than there was at no less load; None where too little compares."""
    shifts = []
    for part in stale:
        running, prompts = 0.95 * part.running / part.records - 0.1, 0.95 * part.prompt_tps / part.records
        able = sorted(
            [
                (one.running / one.records, one.usage / one.records)
                for one in fresh
                if one.running >= running * one.records and one.prompt_tps >= prompts * one.records
            ]
        )[:NEAREST]
        if len(able) >= LEAST_SHIFTS:
            shifts.append(part.usage / part.records - median(sorted([usage for _, usage in able])))
    if len(shifts) < max(LEAST_SHIFTS, len(stale) // 3):
        return None
    shift = median(sorted(shifts))
    least = min([part.least_usage for part in stale[-max(LEAST_SHIFTS, len(stale) // 3) :]])
    return shift if least >= HALF * shift else 0.0


def held_share(stale: Sequence[Part], fresh: Sequence[Part]) -> float | None:
    """Return how much more of the pool is in use, also by what an idle engine holds at least."""
    lost = lost_share(stale, fresh)
    if lost is not None:
        return lost
    late = [part.idle_usage for part in stale if part.idle_usage is not None]
    early = [part.idle_usage for part in fresh if part.idle_usage is not None]
    return min(late) - min(early) if min(len(late), len(early)) >= LEAST_SHIFTS else None


def _pool_cured(size: float, life: PastLife, following: PastLife) -> bool:
    least = min([part.least_usage for part in life.stale])
    return min([part.least_usage for part in following.fresh]) < least - HALF * size


def slower_share(stale: Sequence[Part], fresh: Sequence[Part]) -> float | None:
    """Return by which share tokens take longer than they took at no less load; None where too little compares."""
    reference = _rows(fresh)
    found = [excess_of(row, reference) for row in _rows(stale)]
    sizes = sorted([one.excess for one in found if one is not None])
    return exp(median(sizes)) - 1.0 if len(sizes) >= LEAST_SHIFTS else None


def _pace_cured(size: float, life: PastLife, following: PastLife) -> bool:
    again = slower_share(following.fresh, life.fresh)
    if again is not None:
        return again < HALF * size
    ends, begins = _rows(life.stale), _rows(following.fresh)
    quickest = min([row.token_s for row in ends], default=0.0)
    return bool(begins) and log(min([row.token_s for row in begins])) < log(quickest) - HALF * log(1.0 + size)


def _rows(parts: Sequence[Part]) -> list[Row]:
    return [row for row in map(_row, parts) if row is not None]


@lru_cache(maxsize=KEPT_ROWS)
def _row(part: Part) -> Row | None:
    return long_row_of(part, LEAST_RUNNING)


POOL = Ailment("lost", held_share, _pool_cured)
LEASED = POOL._replace(measure=lost_share)
"""Where a KV connector may lease blocks, an idle engine may hold some."""
PACE = Ailment("slower", slower_share, _pace_cured)
