"""Confidence intervals of counts, and quantiles, without a library."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

TAIL = 0.025


def proportion(hits: int, trials: int) -> tuple[float, float]:
    """Return the Wilson interval, 95 %, of a share."""
    if not trials:
        return 0.0, 1.0
    z2, share = 1.959964**2, hits / trials
    middle = share + z2 / (2 * trials)
    width = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials * trials)))
    scale = 1 + z2 / trials
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def rate(events: int, exposure: float) -> tuple[float, float]:
    """Return the exact interval, 95 %, of the rate of a Poisson count."""
    if exposure <= 0:
        return 0.0, math.inf
    low = 0.0 if not events else _root(lambda mean: 1 - poisson_at_most(events - 1, mean) - TAIL, events)
    high = _root(lambda mean: TAIL - poisson_at_most(events, mean), 3 * events + 10.0)
    return low / exposure, high / exposure


def median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval, 95 % or more, of the median that values are drawn around, whatever their distribution.

    Of n values as many lie below it as heads fall in n throws (Conover, Practical Nonparametric Statistics, 3.2).
    """
    n, ordered = len(values), sorted(values)
    cut = sum(tail <= TAIL for tail in accumulate(math.comb(n, heads) / 2**n for heads in range(n + 1)))
    return (ordered[cut - 1], ordered[n - cut]) if cut else (-math.inf, math.inf)


def poisson_at_most(count: int, mean: float) -> float:
    """Return the probability of at most so many events."""
    return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)) if mean > 0 else 1.0


def _root(rising: Callable[[float], float], top: float) -> float:
    """Return where a rising function crosses zero between 0 and `top`."""
    low, high = 0.0, top
    for _ in range(80):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile, between two values by their distance; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
