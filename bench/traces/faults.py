"""Draws what goes wrong: leaks, creep, hangs, and who restarts the server then."""

import math
from random import Random

from bench.traces.chance import loguniform
from bench.traces.labels import TraceClass
from bench.traces.plan import Burst, Creep, Hang, Leak, LeakMode, Plan, Recovery
from bench.traces.workload import Workload

LEAST_LOST = 0.10
"""Share of the pool that a leak has lost by the end of its trace."""


def with_leak(rng: Random, plan: Plan, load: Workload) -> Plan:
    """Return the server with a leak of its trace's class."""
    trace_class = plan.trace.trace_class
    if trace_class is TraceClass.LEAK_BURST:
        return plan._replace(leak=_bursts(rng, plan), recovery=_when_stuck(rng))
    cycle = trace_class is TraceClass.LEAK_CYCLE
    share = 0.0 if rng.random() < (0.7 if cycle else 0.5) else rng.uniform(0.1, 0.3 if cycle else 0.55)
    from_s = share * plan.duration_s
    left_h = (plan.duration_s - from_s) / 3600
    fill_h = loguniform(rng, 5, 60) if cycle else min(loguniform(rng, 8, 24 * 16), left_h / LEAST_LOST)
    cap = rng.uniform(0.07, 0.30) if trace_class is TraceClass.LEAK_BOUNDED else 0.97
    mode = _mode(rng, trace_class)
    plan = plan._replace(recovery=_when_leaked(rng) if cycle else _when_stuck(rng))
    per_s = plan.pool_blocks / fill_h / 3600
    if mode is LeakMode.ABORT:
        return _by_abort(plan, load, Leak(mode, from_s, cap), per_s)
    return plan._replace(leak=_by_end(rng, load, Leak(mode, from_s, cap), per_s))


def _mode(rng: Random, trace_class: TraceClass) -> LeakMode:
    if trace_class is TraceClass.LEAK_ABORT:
        return LeakMode.ABORT
    if trace_class is TraceClass.LEAK_CONCURRENCY:
        return LeakMode.CONCURRENCY
    either = trace_class in (TraceClass.LEAK_BOUNDED, TraceClass.LEAK_CYCLE)
    return LeakMode.ABORT if either and rng.random() < 0.5 else LeakMode.REQUEST


def _by_abort(plan: Plan, load: Workload, leak: Leak, per_s: float) -> Plan:
    """Lose all blocks of some of the requests that are aborted; make more of them abort where they are too few."""
    aborts = max(plan.abort_share, 0.02)
    needed = per_s / (load.ends_per_s * aborts * load.request_blocks)
    if needed > 1:
        aborts = min(0.5, aborts * needed)
        needed = per_s / (load.ends_per_s * aborts * load.request_blocks)
    return plan._replace(abort_share=aborts, leak=leak._replace(probability=min(1.0, needed)))


def _by_end(rng: Random, load: Workload, leak: Leak, per_s: float) -> Leak:
    """Lose a few blocks at the end of some requests: of all, or of those that end while many run."""
    busy = leak.mode is LeakMode.CONCURRENCY
    blocks = rng.choice([1, 2, 4, 16] if busy else [1, 1, 2, 4])
    often = 0.4 if busy else 1.0
    needed = per_s / (load.ends_per_s * often * blocks)
    if needed > 1:
        blocks = math.ceil(blocks * needed)
        needed = per_s / (load.ends_per_s * often * blocks)
    above = max(1, int(load.concurrency * (1.0 if load.sessions else rng.uniform(0.35, 0.75)))) if busy else 0
    return leak._replace(probability=min(1.0, needed), blocks=blocks, above_running=above)


def _bursts(rng: Random, plan: Plan) -> Leak:
    """Lose many blocks at once, several times."""
    from_s = 0.0 if rng.random() < 0.5 else rng.uniform(0.1, 0.55) * plan.duration_s
    count, whole = rng.randint(3, 13), rng.uniform(0.10, 0.8) * plan.pool_blocks
    at_s = sorted(from_s + 0.95 * rng.random() * (plan.duration_s - from_s) for _ in range(count))
    weights = [rng.uniform(0.3, 1.0) for _ in range(count)]
    sizes = [int(whole * weight / sum(weights)) for weight in weights]
    bursts = [Burst(then_s, size) for then_s, size in zip(at_s, sizes, strict=True)]
    return Leak(LeakMode.BURST, at_s[0], 0.97, bursts=bursts)


def _when_stuck(rng: Random) -> Recovery:
    """Nobody looks before the server answers nothing any more."""
    return Recovery(None, None, rng.uniform(1800, 6 * 3600))


def _when_leaked(rng: Random) -> Recovery:
    return Recovery(rng.uniform(0.45, 0.95), None, loguniform(rng, 300, 7200))


def with_creep(rng: Random, plan: Plan) -> Plan:
    """Return the server with steps that take ever longer, restarted again and again in the class of cycles."""
    cycle = plan.trace.trace_class is TraceClass.CREEP_CYCLE
    from_s = 0.0 if rng.random() < 0.5 else rng.uniform(0.1, 0.4) * plan.duration_s
    cap = rng.uniform(0.25, 1.5)
    grows_h = loguniform(rng, 6, 72) if cycle else (plan.duration_s - from_s) / 3600
    creep = Creep(cap / (grows_h * rng.uniform(0.5, 1.0)), from_s, cap)
    recovery = Recovery(None, cap * rng.uniform(0.6, 0.95), loguniform(rng, 300, 7200)) if cycle else None
    return plan._replace(creep=creep, recovery=recovery)


def with_hang(rng: Random, plan: Plan) -> Plan:
    """Return the server with one hang, and a restart after it."""
    return plan._replace(hang=Hang(rng.uniform(0.3, 0.9) * plan.duration_s, rng.uniform(600, 7200)))
