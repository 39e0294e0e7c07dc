"""How many requests a run gets, told by the records in which no prompt was computed. Pure.

Requests that know nothing of each other leave a record without any with the chance exp(-m) where m of them come in a
record, on average (Poisson). So the share of such records tells m, and the tokens of a record, over m, how large a
request is: up to some five requests a record more sharply than the squares of `kvlogd.grain`, which one huge prompt
dominates. Blocks that are lost take no part in it. Only ratios between two stretches of one run are used.
"""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

LEAST_BLOCKS = 8
"""Blocks that it takes to know how far they spread."""
LEAST_BEFORE, LEAST_NOW = 8, 3
"""Records without a prompt that it takes to tell their share."""
SPANS = 0.3
"""By how much fewer requests may come than seem to: a prompt may last from one record into the next."""


class Arrivals(NamedTuple):
    """What one block says of how often requests come."""

    tokens: float
    """Of prompts and answers."""
    records: int
    unprompted: int
    """Records in which no prompt was computed."""
    unprompted_pairs: int
    """Of two records next to each other: those in which both had none."""


class Step(NamedTuple):
    """How much larger requests are than before, as a natural logarithm, and its standard error."""

    by: float
    error: float


def step_between(before: Sequence[Arrivals], now: Sequence[Arrivals]) -> Step | None:
    """Return how much larger requests are by their number; None where nothing tells.

    Too few records are without any, or prompts take several: longer ones then look like more of them.
    """
    if len(before) < LEAST_BLOCKS or not now:
        return None
    earlier, later = _together(before), _together(now)
    if earlier.unprompted < LEAST_BEFORE or later.unprompted < LEAST_NOW:
        return None
    if earlier.unprompted == earlier.records or later.unprompted == later.records:
        return None
    if not earlier.tokens or not later.tokens:
        return None
    if _lasts(earlier) or _lasts(later):
        return None
    return step_of(log(_size(later)) - log(_size(earlier)), _spread(before, earlier), len(before), len(now))


def step_of(by: float, spread: float, before: int, now: int) -> Step:
    """Return a step between so many blocks before and now: few do not know their spread, that of before is for both."""
    return Step(by, spread * sqrt(1 / before + 1 / now))


def _together(blocks: Sequence[Arrivals]) -> Arrivals:
    tokens, *counts = zip(*blocks, strict=True)
    return Arrivals(sum(tokens), *map(sum, counts))


def _a_record(blocks: Arrivals) -> float:
    """Return how many requests come in a record."""
    return -log(blocks.unprompted / blocks.records)


def _lasts(blocks: Arrivals) -> bool:
    """Return whether prompts take several records: those without any then come together, more than by chance."""
    if not blocks.unprompted_pairs:
        return False
    by_chance = blocks.records * (blocks.unprompted / blocks.records) ** 2
    return log(blocks.unprompted_pairs / by_chance) > SPANS * _a_record(blocks)


def _size(blocks: Arrivals) -> float:
    return blocks.tokens / blocks.records / _a_record(blocks)


def _spread(blocks: Sequence[Arrivals], whole: Arrivals) -> float:
    """Return the standard deviation of what single blocks say (delta method: most of them alone say nothing)."""
    n, m = len(blocks), _a_record(whole)
    tokens, unprompted = whole.tokens / n, whole.unprompted / n
    off = [(one.tokens / tokens - 1.0) + (one.unprompted / unprompted - 1.0) / m for one in blocks]
    return sqrt(sum([one * one for one in off]) / (n - 1))
