"""Draws that `random.Random` has not: log-uniform, Poisson, slow noise and switching levels."""

import math
from collections.abc import Sequence
from random import Random


def loguniform(rng: Random, low: float, high: float) -> float:
    """Return a number whose logarithm is uniform between those of two others."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def poisson(rng: Random, mean: float) -> int:
    """Return a Poisson count of a small mean."""
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def slow_noise(rng: Random, minutes: int, memory_min: float, deviation: float) -> list[float]:
    """Return a factor around 1 for each minute whose logarithm forgets itself within `memory_min`."""
    keep = math.exp(-1.0 / memory_min)
    fresh = deviation * math.sqrt(1 - keep * keep)
    level = rng.gauss(0.0, deviation)
    factors = []
    for _ in range(minutes):
        level = keep * level + rng.gauss(0.0, fresh)
        factors.append(math.exp(level))
    return factors


def switching(rng: Random, minutes: int, levels: Sequence[float], mean_min: float) -> list[float]:
    """Return a level for each minute that jumps to another one after an exponential time."""
    out: list[float] = []
    while len(out) < minutes:
        out += [rng.choice(levels)] * max(1, int(rng.expovariate(1 / mean_min)))
    return out[:minutes]
