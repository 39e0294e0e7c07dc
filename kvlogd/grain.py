"""How large a run's requests are, told by how coarse its numbers are from record to record. Pure.

Requests twice as long, half as many, make the same throughput, the same number running and the same mix: no mean of a
stats record tells them from a leak. But they come and go in larger lumps. For arrivals that know nothing of each other
half the mean squared step of the prompt tokens, over their mean, is E[p^2] / E[p] of the prompts' sizes p (Campbell
1909: the variance of shot noise); that of the usage, over the same mean, grows with the requests' sizes too. Blocks
that are lost take no part in either. Only ratios between two stretches of one run are used.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import dist, exp, log, sqrt
from typing import NamedTuple

from kvlogd.arrivals import LEAST_BLOCKS, Arrivals, Step, step_between, step_of

COARSER_THAN_PRINT = 0.0015
"""Least root mean square of the usage's steps that is not made by vLLM printing it in steps of 0.001."""
PARTS = 5
"""Records that are taken together where a prompt may take several."""
PARTED = 0.2
"""By so much, as a logarithm, the lumps of several records exceed those of one where prompts take several."""
TELLS = 0.9
"""Share of the blocks that must tell."""
SLACK = 1.5
"""Sizes that are cut off at a longest request grow coarser more slowly than they grow."""
DEVIATIONS = 2.0
"""How many standard errors further the requests may have grown than they seem to have."""
SEEN = 2.5
"""How many standard errors are more than noise."""
LEAST_ERROR = 0.001
"""Nothing is surer than that."""


class Grain(NamedTuple):
    """Of one block, as natural logarithms; None where its records are too few or too fine to tell."""

    prompts: float | None
    """Of the tokens of a prompt, large ones counting more."""
    usage: float | None
    """Of a number that grows with the requests' sizes."""
    prompts_in_parts: float | None
    """Of the tokens of a prompt that takes several records to compute: each then shows a part of it only."""
    arrivals: Arrivals
    """How often requests come."""


class Growth(NamedTuple):
    """Of requests, between two stretches."""

    most: float
    """By what share they may be longer."""
    is_seen: bool
    """It is more than noise."""


class Steps(NamedTuple):
    """The steps between some consecutive values."""

    values: int
    first: float
    last: float
    squares: float
    """Sum of the squared steps."""


class Lumps(NamedTuple):
    """What the grain of some consecutive records follows from: that of several such can be put together."""

    usage: Steps
    prompts: Steps
    in_parts: Steps | None
    """Of the sums of each `PARTS` records; None with fewer records."""


def lumps_of(usages: Sequence[float], prompts: Sequence[float]) -> Lumps:
    """Return the lumps in the usages and prompt throughputs of some consecutive records (at least one)."""
    sums = [sum(prompts[i : i + PARTS]) for i in range(0, len(prompts) - PARTS + 1, PARTS)]
    return Lumps(_steps(usages), _steps(prompts), _steps(sums) if sums else None)


def _steps(values: Sequence[float]) -> Steps:
    return Steps(len(values), values[0], values[-1], dist(values[1:], values[:-1]) ** 2)


def gathered(several: Sequence[Lumps]) -> Lumps:
    """Return the lumps of consecutive records as one."""
    usages, prompts, sums = zip(*several, strict=True)
    known = [steps for steps in sums if steps is not None]
    return Lumps(_together(usages), _together(prompts), _together(known) if known else None)


def _together(several: Sequence[Steps]) -> Steps:
    squares = sum([steps.squares for steps in several])
    squares += sum([(b.first - a.last) * (b.first - a.last) for a, b in pairwise(several)])
    return Steps(sum([steps.values for steps in several]), several[0].first, several[-1].last, squares)


def grain_of(lumps: Lumps, prompt_tps: float, interval_s: float, arrivals: Arrivals) -> Grain:
    """Return the grain of records that have such lumps, and so many prompt tokens a second on average."""
    by_prompts = _half_square_step(lumps.prompts)
    if prompt_tps <= 0.0 or by_prompts <= 0.0:
        return Grain(None, None, None, arrivals)
    by_usage = _half_square_step(lumps.usage)
    by_sums = _half_square_step(lumps.in_parts) if lumps.in_parts is not None else 0.0
    return Grain(
        log(interval_s * by_prompts / prompt_tps),
        log(by_usage / prompt_tps) if by_usage >= COARSER_THAN_PRINT**2 / 2 else None,
        log(interval_s * by_sums / (PARTS * prompt_tps)) if by_sums > 0.0 else None,
        arrivals,
    )


def _half_square_step(steps: Steps) -> float:
    """Return half the mean squared step, without what a steady rise, as of a leak, adds to each."""
    n = max(1, steps.values - 1)
    rise = (steps.last - steps.first) / n
    return max(0.0, steps.squares / n - rise * rise) / 2


def growth_between(before: Sequence[Grain], now: Sequence[Grain]) -> Growth | None:
    """Return by how much requests are longer than before; None where nothing tells.

    Prompts and usage together tell most sharply where many requests come, their number where few do; longer answers
    alone stand in the usage only. Where one of them is more than noise, the others do not make up for it.
    """
    prompts = _step_of_prompts(before, now)
    usage = _step(_told([grain.usage for grain in before]), _told([grain.usage for grain in now]))
    both = prompts
    if prompts is not None and usage is not None:
        both = usage
        if not _last([*before, *now]):
            both = _step(_told([_mean(grain) for grain in before]), _told([_mean(grain) for grain in now]))
    number = step_between([grain.arrivals for grain in before], [grain.arrivals for grain in now])
    likeliest = _joined([step for step in (both, number) if step is not None])
    if likeliest is None:
        return None
    told = [_growth(step) for step in (prompts, usage, number) if step is not None]
    return max([growth for growth in told if growth.is_seen], default=_growth(likeliest))


def _step_of_prompts(before: Sequence[Grain], now: Sequence[Grain]) -> Step | None:
    if _last([*before, *now]):
        return _step(
            _told([grain.prompts_in_parts for grain in before]), _told([grain.prompts_in_parts for grain in now])
        )
    return _step(_told([grain.prompts for grain in before]), _told([grain.prompts for grain in now]))


def _last(grains: Sequence[Grain]) -> bool:
    """Return whether prompts take several records to compute: each then shows a part of one only."""
    parts = [g.prompts_in_parts - g.prompts for g in grains if g.prompts_in_parts is not None and g.prompts is not None]
    return bool(parts) and sum(parts) > PARTED * len(parts)


def _mean(grain: Grain) -> float | None:
    return None if grain.prompts is None or grain.usage is None else (grain.prompts + grain.usage) / 2


def _told(grains: Sequence[float | None]) -> list[float]:
    told = [grain for grain in grains if grain is not None]
    return told if len(told) >= TELLS * len(grains) else []


def _step(earlier: Sequence[float], later: Sequence[float]) -> Step | None:
    if len(earlier) < LEAST_BLOCKS or not later:
        return None
    mean = sum(earlier) / len(earlier)
    spread = sqrt(sum([(grain - mean) ** 2 for grain in earlier]) / (len(earlier) - 1))
    return step_of(sum(later) / len(later) - mean, spread, len(earlier), len(later))


def _joined(steps: Sequence[Step]) -> Step | None:
    """Return what independent steps say together, the surer one more; None without any."""
    if len(steps) < 2:
        return steps[0] if steps else None
    weights = [1 / max(step.error, LEAST_ERROR) ** 2 for step in steps]
    total = sum(weights)
    return Step(sum([w * step.by for w, step in zip(weights, steps, strict=True)]) / total, 1 / sqrt(total))


def _growth(step: Step) -> Growth:
    is_seen = abs(step.by) > SEEN * step.error
    # in much smaller lumps come others too, and nobody knows how long those are
    grown = abs(step.by) if is_seen else max(0.0, step.by)
    return Growth(exp(SLACK * grown + DEVIATIONS * step.error) - 1.0, is_seen)
