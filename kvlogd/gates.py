"""What must be ruled out before a shift of the usage curve is called a leak. Pure.

Longer requests, requests that have not ended, one huge prompt, a step instead of a rise, noise. What a shift is:
`kvlogd.curve`; over which stretches it is looked for: `kvlogd.ladder`.
"""

from collections.abc import Sequence
from math import exp, hypot, sqrt
from typing import NamedTuple

from kvlogd.block import Block, median
from kvlogd.curve import Shift, Stretch, lift_of
from kvlogd.grain import Growth
from kvlogd.room import Tokens

GRADUAL = 0.35
"""The middle half of the rise must take at least this share of the stretch."""
JUMP = 0.5
"""No two evaluations in a row may bring more than this share of the rise (stretches of nine blocks and more)."""
SETTLED = 2.0
"""Blocks of a stretch that a leak lifts by a median of one are lifted by less than that."""
SAME_MIX = 0.1
"""How far the log-ratio of prompt to generated tokens may move where load alone cannot tell (closed loops)."""
SAME_HITS = 0.08
"""How far the prefix cache's hit rate may move there; twice as far elsewhere: new system prompts move it."""
LEAST_COMPUTED = 0.25
"""Less than that of the prompts is not taken to be computed: the hit rate of 1,000 requests has a noise of its own."""
SAME_RATE = 1.15
"""How far the rate of prompt tokens may move, as a factor."""
LONGER = 0.35
"""By how much of their usage requests may grow unseen while their mix stays the same."""
LONGER_AT_LEAST = 0.15
"""The same, however sure it is that they come in lumps of the same size."""
SLOWER = 0.75
"""A leak costs no steps: where requests generate slower than this share of their pace, they have got heavier."""
LEAST_TURNOVERS = 4.5
"""How often the requests of a stretch must have been replaced on average: long ones are less often."""
IN_PARTS = 2.0
"""Records that a long prompt takes."""
PAYERS = 0.15
"""Largest share of the running requests that may generate on and on while the mix stays the same."""
SURE, FLAT_SURE = 5, 4
"""Standard errors that are beyond chance: of a curve's intercept, and of a mean where requests are ruled out too."""
FLAT_BY, FLAT_BY_TOLD = 0.05, 0.03
"""The least shift that counts there: where nothing, and where the grain, tells of the requests' sizes."""
SPREAD = 0.5
"""Standard deviation of the requests' sizes, as a share of their mean."""
SPREAD_OF_ANSWERS = 1.4
"""The same of what answers hold, for as long as they hold it: where their lengths know nothing of their age."""
BEYOND, BEYOND_IN_SHORT = 3, 4
"""Standard errors of the requests' sizes that are more than these: short stretches are looked at far more often."""
FAR_MORE = 2.0
"""A request that would have generated so many times what is missing, or what one can be, has not run all the while."""
USUAL_RECORDS, MORE_PROMPTS = 3, 1.5
"""One prompt may have brought what a record has of them beyond so many others, and a block beyond so many medians."""
LATE = 1 / 3
"""What came in so large a last part of a stretch has not made its median."""
HUGE, AT_ONCE = 0.1, 0.4
"""Shares of what is missing: what is huge for one prompt, and what several such ones must have brought."""


class Balance(NamedTuple):
    """What one block lets requests that do not end add to the pool: see `paid` and `came_at_once`."""

    end_s: float
    tokens_each: float
    least_running: int
    mean_running: float
    prompt_tokens: float
    burst_tokens: float
    """Of prompts, in the one record that had most of them, beyond what three others have."""


def balance_of(block: Block, records: int) -> Balance:
    """Return the balance of a block of so many records."""
    others = (block.prompt_tokens - block.most_prompt_tokens) / max(1, records - 1)
    burst = block.most_prompt_tokens - USUAL_RECORDS * others
    return Balance(
        block.end_s, block.tokens_each, block.least_running, block.mean_running, block.prompt_tokens, max(0.0, burst)
    )


def turnovers_of(now: Stretch, reference: Stretch, kv_tokens: int | None) -> float | None:
    """Return how often the tokens held by requests were replaced in a stretch; None for a pool of unknown size."""
    if not kv_tokens:
        return None
    return now.tokens / max(1.0, (now.mean_usage + reference.mean_usage) / 2 * kv_tokens)


def spread_of(stretch: Stretch, *, short: bool) -> float:
    """Return how far what a request holds is from the mean, as a share of it.

    A prompt holds what it is as long as its answer takes. But a longer answer holds more and for longer, and few long
    ones make most of the usage: its mean wanders much further. A stretch that is `short` has too few blocks to show it.
    """
    if not short:
        return SPREAD
    answers = 1.0 if stretch.mix is None else 1.0 / (1.0 + exp(stretch.mix))
    return hypot((1.0 - answers) * SPREAD, answers * SPREAD_OF_ANSWERS)


def request_noise(shift: Shift, turnovers: float, spread: float) -> float:
    """Return the standard error of a shift that the requests' own unequal sizes make.

    A stretch has seen `turnovers` sets of running requests.
    """
    running = max(1.0, (shift.lowest_running + shift.highest_running) / 2)
    return spread * (shift.before + shift.mean / 2) * sqrt(2.0 / (running * turnovers))


def replaced(shift: Shift, turnovers: float, spread: float, beyond: float = BEYOND) -> bool:
    """Return whether the requests of a stretch were replaced so often that a shift is not their unequal sizes."""
    return turnovers >= LEAST_TURNOVERS and shift.mean >= beyond * request_noise(shift, turnovers, spread)


def turnovers_at_least(shift: Shift, now: Stretch, prompt_tokens: float) -> float:
    """Return how often the running requests were replaced where only the size of their prompts is known.

    Large ones count more in it, so that there were more than this says; but one that takes several records to compute
    looks like several smaller ones.
    """
    requests = now.prompt_rate * len(now.grains) / prompt_tokens
    return requests / IN_PARTS / max(1.0, shift.highest_running)


def payers(reference: Stretch, now: Stretch) -> float:
    """Return what share of the running requests may generate on and on: they bring no prompts, and change the mix."""
    if reference.mix is None or now.mix is None:
        return PAYERS
    return max(PAYERS, 1.0 - exp(now.mix - reference.mix))


def paid(
    balance: Sequence[Balance], since_s: float, lost: Tokens, longest_tokens: float, share: float = PAYERS
) -> bool:
    """Return whether requests that have not ended can be what the pool lost since a time.

    Such a request runs all the while, so there are never more of them than the fewest running since, nor more than a
    `share` of those running (or one). Each holds all that it generated: where that is far more than what is missing,
    or than a request can be, none of them has run that long.
    """
    each = running = 0.0
    fewest, blocks = 1 << 30, 0
    for block in reversed(balance):
        if block.end_s <= since_s:
            break
        each += block.tokens_each
        running += block.mean_running
        blocks += 1
        fewest = min(fewest, block.least_running)
    if not blocks or not fewest or each > FAR_MORE * min(lost.most, longest_tokens):
        return False
    return min(each, longest_tokens) * min(fewest, max(1, round(share * running / blocks))) >= 0.7 * lost.least


def came_at_once(
    balance: Sequence[Balance], since_s: float, until_s: float, lost: Tokens, longest_tokens: float
) -> bool:
    """Return whether huge prompts may have brought, between two times, a good part of what the pool lost.

    One shows as a record with far more prompts than others or, where it takes long to compute, as a block that has more
    than most. Their requests generate all the while: by now they may be longer than can be, or than what is missing.
    """
    usual = MORE_PROMPTS * median(sorted([block.prompt_tokens for block in balance])) if balance else 0.0
    brought = each = 0.0
    for block in reversed(balance):
        if block.end_s <= since_s or each > min(longest_tokens, FAR_MORE * lost.most):
            return False
        if block.end_s <= until_s:
            beyond = block.prompt_tokens - usual
            brought += beyond if beyond >= HUGE * lost.least else 0.0
            if max(brought, block.burst_tokens) >= AT_ONCE * lost.least:
                return True
        each += block.tokens_each
    return False


def sure(shift: Shift, reference: Stretch, now: Stretch, growth: Growth | None) -> bool:
    """Return whether the shift is beyond its error, uniform over the loads, and more than requests have grown by."""
    if shift.bins > 2 and shift.intercept >= SURE * shift.error:
        if has_grown(shift, growth):
            return False
        if hits_moved(reference.hit_rate or 0.0, now.hit_rate or 0.0) > 2 * SAME_HITS:
            return False
        return shift.smallest >= 0.25 * shift.shift and shift.intercept <= 2.5 * shift.mean
    tells = shift.bins > 2 and shift.highest_running >= 1.3 * shift.lowest_running and 2 * shift.error < shift.mean
    return flat(shift, reference, now, growth, tilts=tells)


def has_grown(shift: Shift, growth: Growth | None) -> bool:
    """Return whether requests are seen to be longer, and by so much that they may hold all of a shift."""
    return growth is not None and growth.is_seen and shift.mean <= growth.most * shift.before


def flat(shift: Shift, reference: Stretch, now: Stretch, growth: Growth | None, *, tilts: bool) -> bool:
    """Return whether the same number running, with the same mix of requests, holds more cache than it did.

    Where the load hardly varies, the curve has no slope to tell a leak from longer requests by; where it `tilts`, it
    may as well be those, unless something tells of their growth.
    """
    if (
        shift.mean < (FLAT_BY if growth is None else FLAT_BY_TOLD)
        or shift.mean < FLAT_SURE * shift.mean_error
        or shift.smallest < 0.25 * shift.mean
    ):
        return False
    if shift.shift < 0.6 * shift.mean:
        return False  # the pool was emptier than that meanwhile: it is not in every record
    return unchanged(shift, reference, now, growth) and not (tilts and growth is None)


def unchanged(shift: Shift, reference: Stretch, now: Stretch, growth: Growth | None) -> bool:
    """Return whether requests come in the same mix, and have not grown by enough to make a shift."""
    if reference.mix is None or now.mix is None or abs(now.mix - reference.mix) > SAME_MIX:
        return False
    rate = max(1.0, now.prompt_rate) / max(1.0, reference.prompt_rate)
    if shift.mean <= granted(growth, rate) * shift.before:
        return False
    if reference.hit_rate is None or now.hit_rate is None:
        return reference.hit_rate is now.hit_rate
    return hits_moved(reference.hit_rate, now.hit_rate) <= SAME_HITS


def hits_moved(before: float, now: float) -> float:
    """Return how far a hit rate has moved, as a share of what was computed: where most is shared, a point is much."""
    return abs(now - before) / max(LEAST_COMPUTED, 1.0 - before)


def granted(growth: Growth | None, rate: float) -> float:
    """Return by what share of their usage requests may have grown unseen while their mix stays the same.

    Where the rate of their prompts has moved by a factor as well, more may be longer requests; blocks that are freed
    late grow with it.
    """
    unseen = LONGER if 1 / SAME_RATE <= rate <= SAME_RATE else 2 * LONGER
    if growth is None:
        most = unseen
    elif growth.is_seen:
        most = max(unseen, growth.most)
    else:
        most = min(unseen, max(LONGER_AT_LEAST, growth.most))
    return max(most, rate - 1.0)


def is_light(shift: Shift, reference: Stretch, now: Stretch, growth: Growth | None, *, is_old: bool) -> bool:
    """Return whether nothing tells that a short stretch has heavier requests than those it is compared with.

    In an old run it must be seen that they are as long as they were.
    """
    if now.pace < SLOWER * reference.pace:
        return False
    return not is_old or (growth is not None and shift.mean > growth.most * shift.before)


def last_below(history: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return when the shift was last below a level; None where it never was."""
    for at_s, shift in reversed(history):
        if shift < level:
            return at_s
    return None


def came_and_went(history: Sequence[tuple[float, float]], shift: float, part: float) -> bool:
    """Return whether so large a part of a shift was there before, and no more of it later: no leak gives back."""
    was_there = False
    for _, seen in history:
        if was_there and seen < 0.25 * shift:
            return True
        was_there = was_there or seen >= part * shift
    return False


def settled(reference: Stretch, blocks: Sequence[Block], shift: float) -> bool:
    """Return whether a stretch is not under way, and no new prefix that requests share can be what lifted it.

    None of its blocks lies much further above the reference; by its end prompts come at the same rate, and as large a
    part of them is computed: what is shared by all shows there, the less the more was shared before.
    """
    lifts = [lift_of(block, reference) for block in blocks]
    if any(lift is not None and lift > SETTLED * shift for lift in lifts):
        return False
    rate = sum([block.prompt_tokens for block in blocks]) / len(blocks) / max(1.0, reference.prompt_rate)
    before, after = reference.hit_rate or 0.0, blocks[-1].hit_rate or 0.0
    return 1 / SAME_RATE <= rate <= SAME_RATE and abs(after - before) <= SAME_HITS * (1.0 - min(1.0, before))


def gradual(
    history: Sequence[tuple[float, float]], shift: float, quarter_s: float | None, length_s: float, *, jumps: bool
) -> bool:
    """Return whether the shift grew over time instead of in one step."""
    if quarter_s is None:
        return True  # it was there at the first comparison: nothing is known of how it came
    three_quarters_s = last_below(history, 0.75 * shift)
    if three_quarters_s is None or three_quarters_s - quarter_s < GRADUAL * length_s:
        return False
    if not jumps:
        return True
    rise = [s for at_s, s in history if at_s >= quarter_s]
    return all(later - earlier <= JUMP * shift for earlier, later in zip(rise, rise[2:], strict=False))
