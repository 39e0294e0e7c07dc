"""Draws the plan of a trace from its seed, class and index."""

import math
from random import Random

from bench.traces.arrivals import mean_context, mean_length
from bench.traces.chance import loguniform, poisson, slow_noise
from bench.traces.faults import with_creep, with_hang, with_leak
from bench.traces.labels import CREEPS, LEAKS, TraceClass, TraceId
from bench.traces.plan import BLOCK_TOKENS, Delay, Kind, Lengths, Plan, Profile
from bench.traces.shapes import hours_of, wave
from bench.traces.workload import MOST_PREFILL, Workload, workload

DAY_S = 86400
LONGEST_DAYS = 9
WHOLE_S = 600

PROFILE_WEIGHTS = {
    Profile.CONSTANT: 12,
    Profile.IDLE_NIGHTS: 18,
    Profile.DIURNAL: 24,
    Profile.BURSTY: 10,
    Profile.BATCH: 8,
    Profile.SPARSE: 8,
    Profile.CLOSED: 10,
    Profile.SESSIONS: 10,
}
_DAILY = (Profile.DIURNAL, Profile.DIURNAL, Profile.CONSTANT, Profile.BURSTY, Profile.IDLE_NIGHTS)
PROFILES_OF = {
    TraceClass.GROWTH: (Profile.DIURNAL, Profile.CONSTANT, Profile.IDLE_NIGHTS, Profile.BURSTY),
    TraceClass.RAMP: (Profile.DIURNAL, Profile.CONSTANT, Profile.IDLE_NIGHTS, Profile.BURSTY),
    TraceClass.AGENTS: (Profile.SESSIONS,),
    TraceClass.BATCH: (Profile.BATCH,),
    TraceClass.DAY_NIGHT_MIX: (Profile.DIURNAL, Profile.DIURNAL, Profile.IDLE_NIGHTS),
    TraceClass.LENGTH_DRIFT: (
        *(Profile.CONSTANT, Profile.DIURNAL, Profile.CLOSED, Profile.BURSTY, Profile.IDLE_NIGHTS),
    ),
    TraceClass.TENANTS: _DAILY,
    TraceClass.SYSTEM_PROMPT: _DAILY,
}
LONG_CLASSES = {
    *(TraceClass.GROWTH, TraceClass.LENGTH_DRIFT, TraceClass.DAY_NIGHT_MIX),
    *(TraceClass.TENANTS, TraceClass.SYSTEM_PROMPT),
}
CYCLES = {TraceClass.LEAK_CYCLE, TraceClass.CREEP_CYCLE}
SEVERAL_ENGINES = {TraceClass.NORMAL, TraceClass.LEAK_REQUEST, TraceClass.LEAK_ABORT, TraceClass.DEPLOY}


def draw(trace: TraceId, duration_s: int | None = None) -> Plan:
    """Return the plan of a trace; `duration_s` cuts it to a length of its own, for tests."""
    rng = Random(trace.name)
    seconds = duration_s or int(_days(rng, trace.trace_class) * DAY_S // WHOLE_S * WHOLE_S)
    first_hour, profile = rng.uniform(0, 24), _profile(rng, trace.trace_class)
    load = workload(rng, trace.trace_class, profile, seconds, first_hour)
    plan = _changed(rng, _healthy(rng, trace, load, seconds, first_hour), load, first_hour)
    if trace.trace_class in LEAKS:
        kept = plan.restarts_s if rng.random() < 0.15 else ()
        plan = with_leak(rng, plan._replace(restarts_s=kept), load)
    if trace.trace_class in CREEPS:
        plan = with_creep(rng, plan._replace(restarts_s=()))
    if trace.trace_class is TraceClass.HANG:
        plan = with_hang(rng, plan)
    if trace.trace_class in SEVERAL_ENGINES:
        engines = rng.choice([1, 1, 1, 1, 2, 4])
        one = rng.randrange(engines) if engines > 1 and rng.random() < 0.7 else None
        plan = plan._replace(engines=engines, leaking_engine=one)
    return plan


def _days(rng: Random, trace_class: TraceClass) -> float:
    if trace_class in LONG_CLASSES:
        return rng.uniform(4, LONGEST_DAYS)
    if trace_class in CYCLES:
        return rng.uniform(2, LONGEST_DAYS)
    if trace_class in LEAKS and rng.random() < 0.15:
        return rng.uniform(0.25, 0.75)
    return loguniform(rng, 0.75, LONGEST_DAYS)


def _profile(rng: Random, trace_class: TraceClass) -> Profile:
    own = PROFILES_OF.get(trace_class)
    return rng.choice(own) if own else rng.choices(list(PROFILE_WEIGHTS), list(PROFILE_WEIGHTS.values()))[0]


def _healthy(rng: Random, trace: TraceId, load: Workload, seconds: int, first_hour: float) -> Plan:
    minutes, hours = seconds // 60 + 2, seconds // 3600 + 2
    slow = slow_noise(rng, minutes, rng.uniform(20, 180), rng.uniform(0.005, 0.025))
    daily = rng.uniform(0, 0.015)
    clock = hours_of(minutes, first_hour)
    noise = [factor * (1 + daily * (2 * wave(hour, 16) - 1)) for factor, hour in zip(slow, clock, strict=True)]
    restarts: list[float] = []
    if trace.trace_class is TraceClass.DEPLOY or rng.random() < 0.12:
        count = max(1, poisson(rng, seconds / DAY_S * rng.uniform(0.2, 1.2)))
        restarts = sorted(rng.uniform(0.05, 0.98) * seconds for _ in range(count))
    missing = trace.trace_class is TraceClass.MISSING_LINES or rng.random() < 0.10
    return Plan(
        trace=trace,
        profile=load.profile,
        duration_s=seconds,
        pool_blocks=load.pool_blocks,
        max_num_seqs=load.max_num_seqs,
        token_budget=rng.choice([2048, 8192]),
        speed=load.speed,
        kinds=(Kind(load.lengths, load.per_s, by_tenant=True),),
        closed_loop=load.closed_loop,
        refills_at_once=trace.number % 2 == 1,
        tenants=load.tenants,
        sessions=load.sessions,
        prompt_scale=[1.0] * hours,
        output_scale=[1.0] * hours,
        noise=noise,
        abort_share=rng.choice([0.0, 0.01, 0.03, 0.08]),
        queue_timeout_s=rng.choice([120.0, 300.0, 600.0]),
        delay=None,
        leak=None,
        creep=None,
        recovery=None,
        hang=None,
        restarts_s=restarts,
        down_s=rng.uniform(60, 300),
        missing_share=rng.uniform(0.02, 0.3) if missing else 0.0,
        engines=1,
        leaking_engine=None,
        tells_pool=rng.random() < 0.5,
        keeps_pid=rng.random() < 0.5,
    )


def _changed(rng: Random, plan: Plan, load: Workload, first_hour: float) -> Plan:
    """Return a healthy plan with what is special in its class."""
    trace_class = plan.trace.trace_class
    minutes = len(plan.noise)
    if trace_class is TraceClass.GROWTH or (trace_class is TraceClass.TENANTS and rng.random() < 0.7):
        by = rng.uniform(0.5, 1.6)
        return _scaled(plan, [(1 + by * minute / minutes) / (1 + by) for minute in range(minutes)])
    if trace_class is TraceClass.RAMP:
        by, start = rng.uniform(1.0, 3.0), rng.uniform(0.1, 0.4) * minutes
        long = max(60.0, min(2880.0, minutes - start))
        climbed = [min(1.0, max(0.0, (minute - start) / long)) for minute in range(minutes)]
        return _scaled(plan, [(1 + by * share) / (1 + by) for share in climbed])
    if trace_class is TraceClass.LENGTH_DRIFT:
        return _drifting(rng, plan)
    if trace_class is TraceClass.DAY_NIGHT_MIX:
        return plan._replace(kinds=(*plan.kinds, _night_kind(rng, load, hours_of(minutes, first_hour))))
    if trace_class is TraceClass.LONG_CONTEXT:
        return _with_long_contexts(rng, plan, load)
    if trace_class is TraceClass.DELAYED_FREE:
        return plan._replace(delay=Delay(rng.choice([0.3, 1.0]), loguniform(rng, 0.3, 40)))
    if trace_class is TraceClass.THERMAL:
        return plan._replace(noise=_throttled(rng, list(plan.noise)))
    return plan


def _scaled(plan: Plan, factors: list[float]) -> Plan:
    """Return a plan with the rate of its first kind scaled minute by minute."""
    first = plan.kinds[0]
    rates = [rate * factor for rate, factor in zip(first.per_s, factors, strict=True)]
    return plan._replace(kinds=(first._replace(per_s=rates), *plan.kinds[1:]))


def _drifting(rng: Random, plan: Plan) -> Plan:
    """Return a plan whose prompts, outputs or both grow, on less traffic."""
    which, by = rng.choice(["prompt", "output", "both"]), rng.uniform(0.3, 1.3)
    hours = len(plan.prompt_scale)
    start = rng.uniform(0, 0.5) * hours
    scale = [1 + by * min(1.0, max(0.0, (hour - start) / (hours - start))) for hour in range(hours)]
    plan = _scaled(plan, [0.7] * len(plan.noise))
    if plan.closed_loop:
        plan = plan._replace(closed_loop=[int(0.7 * clients) for clients in plan.closed_loop])
    if which != "output":
        plan = plan._replace(prompt_scale=scale)
    if which != "prompt":
        plan = plan._replace(output_scale=[one ** (0.6 if which == "both" else 1.0) for one in scale])
    return plan


def _night_kind(rng: Random, load: Workload, clock: list[float]) -> Kind:
    """Return requests of another kind that come at night: long prompts, answers of some length."""
    prompt, output = rng.uniform(4000, 9000), rng.uniform(200, 500)
    kind = Lengths(math.log(prompt), 0.4, load.lengths.prompt_max, math.log(output), 0.5, 2048)
    tokens = mean_length(kind.prompt_mu, kind.prompt_sigma)
    at_once = rng.uniform(0.1, 0.3) * load.pool_blocks * BLOCK_TOKENS / mean_context(kind)
    stay_s = mean_length(kind.output_mu, kind.output_sigma) * load.itl_s + tokens * load.speed.prefill_s * 3
    peak = min(at_once / stay_s, MOST_PREFILL / (tokens * load.speed.prefill_s))
    noise = slow_noise(rng, len(clock), 60, 0.2)
    return Kind(kind, [peak * wave(hour, 2) ** 2 * factor for hour, factor in zip(clock, noise, strict=True)])


def _with_long_contexts(rng: Random, plan: Plan, load: Workload) -> Plan:
    """Return a plan with a few requests a day that hold a large part of the pool for up to an hour."""
    pool = max(plan.pool_blocks, 12_000)
    tokens = pool * BLOCK_TOKENS
    prompt = min(90_000.0, tokens * rng.uniform(0.05, 0.2))
    output = rng.uniform(1200, 4200) / load.itl_s
    lengths = Lengths(math.log(prompt), 0.2, tokens * 0.3, math.log(output), 0.2, 400_000)
    rare = Kind(lengths, [rng.uniform(0.5, 8) / DAY_S] * len(plan.noise))
    return plan._replace(pool_blocks=pool, kinds=(*plan.kinds, rare))


def _throttled(rng: Random, noise: list[float]) -> list[float]:
    """Return the step-time noise with some spells of a hot GPU in it."""
    for _ in range(rng.randint(1, 7)):
        start, length, slower = rng.randrange(len(noise)), rng.randint(10, 90), rng.uniform(1.06, 1.35)
        noise[start : start + length] = [one * slower for one in noise[start : start + length]]
    return noise
