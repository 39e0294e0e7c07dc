"""What the lives of one engine say together of its pace, where each by itself says too little. Pure.

A life's end is slower than the beginnings of lives at no less load: than those before it, which is how it degraded,
and than those after it, which is what the restart cured. Each of these comparisons is one-sided, so that more load,
longer prompts and a colder cache explain none of it, and a few rows of each life are enough where lives agree.
"""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from kvlogd.block import median
from kvlogd.course import Part, PastLife, joined
from kvlogd.pace import Row, excess_of, row_of

SEEN_RUNNING = 60
"""A row has seen so many running requests: of fewer, one more or less at the moment of a record moves its pace."""
LEAST_RUNNING = 0.1
YOUNG = 1 / 3
"""A beginning lies within this share of its life's length: a life that idled first shows none."""
LEAST_ROWS = 6
"""Rows of ends that must be slower, of all lives together."""
ALL_BUT_A_FIFTH = 0.5
"""All but a fifth of them must be slower by this share of what half of them are."""
CURED = 0.5
"""Half of the ends must be slower than later beginnings by this share of it."""


class Ages(NamedTuple):
    """The rows of one life."""

    young: list[Row]
    """Of its beginning."""
    old: list[Row]
    """Of its end."""


class Together(NamedTuple):
    """What lives say together."""

    slower: float
    """By which share their ends are slower than their beginnings; 0 where they do not agree."""
    places: tuple[int, ...]
    """Which of them ended so, in order."""


def ages_of(life: PastLife) -> Ages:
    """Return the rows of a life's beginning and of its end."""
    until_s = life.started_s + YOUNG * (life.ended_s - life.started_s)
    return Ages(rows_of([part for part in life.fresh if part.end_s <= until_s]), rows_of(life.stale))


def rows_of(parts: Sequence[Part]) -> list[Row]:
    """Return rows of parts in order, as many joined as it takes to see enough requests run."""
    found, waiting = [], list[Part]()
    for part in parts:
        waiting.append(part)
        if sum([one.running for one in waiting]) < SEEN_RUNNING:
            continue
        whole, waiting = joined(waiting), []
        row = long_row_of(whole, LEAST_RUNNING)
        if row is not None:
            found.append(row)
    return found


def long_row_of(part: Part, least_running: float) -> Row | None:
    """Return the row of a part that may be hours long: a full moment in it does not set its pace."""
    return row_of(part._replace(most_usage=part.usage / part.records), least_running)


Worse = list[tuple[float, int]]
"""By how much rows of ends are slower than the beginnings before them, as log-ratios, and the places of their lives."""


def worse_of(lives: Sequence[Ages], place: int) -> Worse:
    """Return how much slower the end of one of some lives in order is; later lives change nothing of it."""
    before = [row for one in lives[: place + 1] for row in one.young]
    found = [excess_of(row, before) for row in lives[place].old]
    return [(one.excess, place) for one in found if one is not None]


def together(worse: Worse, lives: Sequence[Ages]) -> Together | None:
    """Return what lives in order say together; None where too few of their rows compare."""
    if len(worse) < LEAST_ROWS:
        return None
    ordered = sorted([excess for excess, _ in worse])
    by = median(ordered)
    if by <= 0.0 or ordered[len(ordered) // 5] < ALL_BUT_A_FIFTH * by:
        return Together(0.0, ())
    relieved = _relieved_of(lives)
    if len(relieved) < LEAST_ROWS:
        return None
    if median(sorted(relieved)) < CURED * by:
        return Together(0.0, ())
    places = {place for excess, place in worse if excess >= ALL_BUT_A_FIFTH * by}
    return Together(exp(by) - 1.0, tuple(sorted(places)))


def _relieved_of(lives: Sequence[Ages]) -> list[float]:
    """Return how much slower ends are than the beginnings after them."""
    after: list[Row] = []
    found = []
    for life in reversed(lives):
        found += [excess_of(row, after) for row in life.old]
        after += life.young
    return [one.excess for one in found if one is not None]
