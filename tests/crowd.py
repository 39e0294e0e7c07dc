"""Records of an engine with a closed loop of clients, request by request: each sends one after the other."""

import random
from collections.abc import Callable, Iterator
from math import log

from kvlogd.model import Stats

TOKENS_A_RECORD = 300.0
"""That each running request generates."""


def closed_loop(
    records: int,
    *,
    clients: int = 8,
    pool_tokens: int = 100_000,
    longer: Callable[[int], float] = lambda _i: 1.0,
    lost: Callable[[int], float] = lambda _i: 0.0,
    chunk_tokens: float = 8000.0,
    prompt_tokens: float = 900.0,
    answer_tokens: float = 900.0,
    answer_spread: float = 0.5,
    seed: int = 7,
) -> Iterator[Stats]:
    """Yield records; by their number, requests get `longer` by a factor, and a share of the pool is `lost`.

    Of a prompt so many tokens are computed in a record. Lengths are log-normal, with medians as given.
    """
    rng = random.Random(seed)
    prompts, rest = [0.0] * clients, [0.0] * clients
    made, wanted = [0.0] * clients, [0.0] * clients
    for i in range(records):
        prompted = 0.0
        for client in range(clients):
            made[client] += TOKENS_A_RECORD if not rest[client] else 0.0
            if made[client] >= wanted[client]:
                rest[client] = longer(i) * min(8000.0, rng.lognormvariate(log(prompt_tokens), 0.7))
                wanted[client] = longer(i) * rng.lognormvariate(log(answer_tokens), answer_spread)
                made[client] = TOKENS_A_RECORD * rng.random()
                prompts[client] = 0.0
            computed = min(chunk_tokens, rest[client])
            rest[client] -= computed
            prompts[client] += computed
            prompted += computed
        held = sum(prompts) + sum(made)
        usage = round(min(1.0, held / pool_tokens + lost(i)), 3)
        yield Stats(
            10.0 * i,
            1,
            0,
            None,
            round(prompted / 10, 1),
            clients * TOKENS_A_RECORD / 10,
            clients,
            0,
            usage,
            prefix_hit_rate=0.0,
        )
