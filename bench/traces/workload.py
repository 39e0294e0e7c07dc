"""Draws a healthy server: how long its requests are, how fast it is, how large its pool, and how many requests come."""

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from bench.traces.arrivals import mean_context, mean_length
from bench.traces.chance import loguniform, switching
from bench.traces.labels import TraceClass
from bench.traces.plan import BLOCK_TOKENS, Lengths, Profile, Sessions, Speed, Tenants
from bench.traces.shapes import shape

MOST_PER_S = 0.15, 1.5
"""Between these lies how many requests come at the peak of a day, at most: each costs time to simulate."""
OVERLOAD_PER_S = 4.0
LONGEST_MEAN_ANSWER = 2500
MOST_PREFILL = 0.35
"""Share of the time that prefill may take: beyond it a server is overloaded by prompts alone."""


class Workload(NamedTuple):
    """A server before anything is wrong with it."""

    profile: Profile
    lengths: Lengths
    tenants: Tenants | None
    speed: Speed
    pool_blocks: int
    max_num_seqs: int
    concurrency: float
    """Requests that run at the peak."""
    per_s: Sequence[float]
    closed_loop: Sequence[int] | None
    sessions: Sessions | None
    ends_per_s: float
    """Requests that end, on average."""
    itl_s: float

    @property
    def request_blocks(self) -> float:
        """Return the blocks that a request has when it ends, roughly."""
        if self.sessions:
            return agent_context(self.sessions.system_tokens, self.sessions.max_context) / BLOCK_TOKENS
        return mean_context(self.lengths) / BLOCK_TOKENS


def agent_context(system_tokens: float, max_context: float) -> float:
    """Return the tokens that an agent's turn holds, roughly, from its first to its last."""
    return system_tokens + 0.35 * max_context


def lengths_of(rng: Random) -> Lengths:
    """Draw how long prompts and outputs are."""
    prompt = rng.choices([200, 500, 1200, 3000], [0.25, 0.35, 0.25, 0.15])[0]
    output = rng.choices([60, 150, 300, 700, 1500], [0.1, 0.3, 0.3, 0.2, 0.1])[0]
    longest = rng.choice([8192, 16384, 32768])
    return Lengths(math.log(prompt), rng.uniform(0.4, 1.1), longest, math.log(output), rng.uniform(0.4, 0.9), 4096)


def with_answers_of(lengths: Lengths, tokens: float) -> Lengths:
    """Return lengths whose answers are so long on average, if they are shorter: few requests that keep many running."""
    longer = min(tokens, LONGEST_MEAN_ANSWER) / mean_length(lengths.output_mu, lengths.output_sigma)
    if longer <= 1:
        return lengths
    return lengths._replace(output_mu=lengths.output_mu + math.log(longer), output_max=16_384)


def tenants_of(rng: Random, trace_class: TraceClass, duration_s: int) -> Tenants | None:
    """Draw the system prompts that requests share, if any."""
    tokens = rng.choice([0, 0, 256, 800, 2000])
    count, versions = rng.choice([1, 1, 1, 3, 8]), 1
    if trace_class is TraceClass.TENANTS:
        tokens, count = rng.choice([800, 2000, 4000]), rng.randint(6, 23)
    if trace_class is TraceClass.SYSTEM_PROMPT:
        tokens, count, versions = rng.choice([256, 800, 2000]), rng.choice([1, 1, 3]), rng.choice([2, 2, 3])
    if not tokens:
        return None
    blocks = [[round(tokens * rng.uniform(0.5, 1.5) / BLOCK_TOKENS) for _ in range(count)]]
    for _ in range(versions - 1):
        more = int(rng.uniform(300, 4000) / BLOCK_TOKENS)
        blocks.append([one + more for one in blocks[-1]])
    from_s = [0.0, *sorted(rng.uniform(0.1, 0.9) * duration_s for _ in range(versions - 1))]
    return Tenants(from_s, blocks, [1 / (one + 1) ** 0.9 for one in range(count)])


def usage_at_peak(rng: Random, trace_class: TraceClass, profile: Profile) -> float:
    """Draw the share of the pool that is in use at the peak."""
    if trace_class is TraceClass.CAPACITY:
        return rng.uniform(1.05, 1.5)
    if trace_class in (TraceClass.GROWTH, TraceClass.RAMP, TraceClass.LENGTH_DRIFT):
        return rng.uniform(0.08, 0.45)
    return rng.uniform(0.01, 0.10) if profile is Profile.SPARSE else rng.uniform(0.05, 0.62)


def concurrency_of(rng: Random, trace_class: TraceClass, profile: Profile) -> float:
    """Draw how many requests run at the peak."""
    if trace_class is TraceClass.CAPACITY:
        return loguniform(rng, 25, 110)
    return rng.uniform(0.4, 2.0) if profile is Profile.SPARSE else loguniform(rng, 1.5, 110)


def workload(rng: Random, trace_class: TraceClass, profile: Profile, duration_s: int, first_hour: float) -> Workload:
    """Draw a healthy server."""
    lengths, tenants = lengths_of(rng), tenants_of(rng, trace_class, duration_s)
    prompt = min(mean_length(lengths.prompt_mu, lengths.prompt_sigma), lengths.prompt_max)
    step_s = loguniform(rng, 0.008, 0.035)
    most_per_s = OVERLOAD_PER_S if trace_class is TraceClass.CAPACITY else loguniform(rng, *MOST_PER_S)
    usage = usage_at_peak(rng, trace_class, profile)
    running = concurrency_of(rng, trace_class, profile)
    lengths = with_answers_of(lengths, running / most_per_s / (1.3 * step_s))
    context, output = mean_context(lengths), mean_length(lengths.output_mu, lengths.output_sigma)
    running = min(running, most_per_s * output * step_s * 1.3)
    pool = int(min(150_000, max(1200, running * context / (BLOCK_TOKENS * usage))))
    most = rng.choice([128, 256, 256, 512])
    running = min(running, 0.8 * most)
    speed = Speed(
        step_s,
        step_s * rng.uniform(0.003, 0.012),
        step_s * rng.uniform(0.2, 1.0) / (BLOCK_TOKENS * pool),
        rng.uniform(0.00001, 0.00008),
    )
    itl_s = step_s + speed.request_s * running + speed.context_s * running * context
    stay_s = output * itl_s + prompt * speed.prefill_s * 3
    peak_per_s = min(running / stay_s, most_per_s, MOST_PREFILL / (prompt * speed.prefill_s))
    minutes = duration_s // 60 + 2
    rates = [peak_per_s * share for share in shape(rng, profile, minutes, first_hour)]
    made = Workload(
        *(profile, lengths, tenants, speed, pool, most, running, rates, None, None),
        ends_per_s=max(1e-6, sum(rates) / minutes),
        itl_s=itl_s,
    )
    if profile is Profile.CLOSED:
        return _closed(rng, made, stay_s)
    return _agents(rng, made, usage) if profile is Profile.SESSIONS else made


def _closed(rng: Random, made: Workload, stay_s: float) -> Workload:
    """Turn a server into one whose clients send the next request when the last is answered."""
    clients = max(1, round(made.concurrency))
    minutes = len(made.per_s)
    at_work = [clients] * minutes
    if rng.random() < 0.5:
        at_work = [int(clients * on) for on in switching(rng, minutes, [0, 1, 1, 1], rng.uniform(60, 400))]
    return made._replace(
        per_s=[0.0] * minutes, closed_loop=at_work, ends_per_s=max(1e-6, sum(at_work) / minutes / stay_s)
    )


def _agents(rng: Random, made: Workload, usage: float) -> Workload:
    """Turn a server into one of agents: few long contexts that grow turn by turn."""
    think_s, output_mu = loguniform(rng, 4, 120), math.log(rng.uniform(80, 300))
    turn_s = math.exp(output_mu + 0.18) * made.speed.step_s * 1.3
    at_once = max(1.0, min(60.0, made.concurrency / 2))
    count = int(min(180, max(2, at_once * (think_s + turn_s) / turn_s)))
    busy = count * turn_s / (think_s + turn_s)
    system, longest = rng.choice([500.0, 2000.0, 6000.0]), rng.choice([16000.0, 32000.0, 64000.0])
    pool = int(
        min(200_000, max(1500, busy * agent_context(system, longest) / BLOCK_TOKENS / max(0.05, min(usage, 0.6))))
    )
    activity = [max(0.05, share) for share in made.per_s]
    top = max(activity)
    sessions = Sessions(
        *(count, system, math.log(rng.uniform(150, 900)), 0.8, output_mu, 0.6, think_s, rng.uniform(5, 30), longest),
        activity=[share / top for share in activity],
    )
    return made._replace(
        pool_blocks=pool,
        speed=made.speed._replace(context_s=made.speed.step_s * 0.5 / (BLOCK_TOKENS * pool)),
        per_s=[0.0] * len(made.per_s),
        sessions=sessions,
        concurrency=busy,
        ends_per_s=count / (think_s + turn_s),
    )
