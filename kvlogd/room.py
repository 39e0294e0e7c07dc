"""How many tokens a pool holds: as the start-up lines say or, where they are missing, as the records imply. Pure.

A log that was rotated since the start tells neither the pool's size nor how long a request may be. But prompts come in
lumps, whose size the throughput shows (`kvlogd.grain`), and answers go with prompts in a known mix: so it is known what
a running request holds, about, and the usage is so much times the number running. On 100 simulated engines that lay
between 0.4 and 2.3 times the truth, but for agents, who hold far more than their newest prompts: hence a range.
"""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from kvlogd.block import PRINT_STEP, Block
from kvlogd.grain import TELLS

LEAST_BLOCKS = 6
"""Blocks that it takes to know how large prompts are."""
LESS, MORE = 2.5, 1.2
"""By what factors the pool may be smaller, and larger, than the records imply."""


class Size(NamedTuple):
    """What the start-up lines tell of how much an engine can hold; None where they do not."""

    kv_tokens: int | None
    """Of its pool."""
    longest_tokens: int | None
    """Of one request, its prompt and its answer."""


class Tokens(NamedTuple):
    """A number of tokens that is known only by its bounds."""

    least: float
    most: float

    def share(self, share: float) -> "Tokens":
        """Return so large a share of it."""
        return Tokens(share * self.least, share * self.most)


class Room(NamedTuple):
    """How much an engine can hold."""

    pool: Tokens
    longest_tokens: float
    """Of one request, at most."""


def told(size: Size) -> Room | None:
    """Return the room that the start-up lines tell; None where they do not tell the pool's size."""
    pool = size.kv_tokens
    if not pool:
        return None
    return Room(Tokens(pool, pool), min(size.longest_tokens or pool, pool))


def prompt_of(blocks: Sequence[Block]) -> float | None:
    """Return the tokens of a prompt, large ones counting more; None where too few of some blocks tell."""
    grains = [block.grain for block in blocks if block.grain.prompts is not None]
    if len(grains) < max(LEAST_BLOCKS, TELLS * len(blocks)):
        return None
    at_once = [grain.prompts for grain in grains if grain.prompts is not None]
    in_parts = [grain.prompts_in_parts for grain in grains if grain.prompts_in_parts is not None]
    return exp(max([sum(sizes) / len(sizes) for sizes in (at_once, in_parts) if sizes]))


def implied(blocks: Sequence[Block], prompt_tokens: float, longest_tokens: int | None) -> Room:
    """Return the room that some blocks (at least one) imply where a prompt has so many tokens.

    A request may be as long as the start-up lines say, where they say it, and never longer than the pool.

    By Little's law a running request holds its prompt and half of its answer, on average; where lengths vary the long
    ones run longer (twice the answer bounds it), and of prompts found in the prefix cache only the rest was seen.
    """
    prompted = sum([block.prompt_tokens for block in blocks])
    answer = prompt_tokens * sum([block.generation_tokens for block in blocks]) / max(1.0, prompted)
    computed = 1.0 - min(0.99, sum([block.hit_rate or 0.0 for block in blocks]) / len(blocks))
    usage = max(PRINT_STEP, sum([block.mean_usage for block in blocks]))
    each = sum([block.mean_running for block in blocks]) / usage
    pool = Tokens(each * (prompt_tokens + answer / 2) / LESS, each * (prompt_tokens / computed + 2 * answer) * MORE)
    return Room(pool, min(longest_tokens or pool.most, pool.most))
