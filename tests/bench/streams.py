"""Makes short traces, and streams of hand-made ticks, for the tests of the benchmark."""

from collections.abc import Iterable
from random import Random

from bench.traces.arrivals import Arrivals
from bench.traces.classes import draw
from bench.traces.labels import TICK_S, Stream, Tick, TraceClass, TraceId
from bench.traces.plan import Plan
from bench.traces.scheduler import Engine

HOUR_S = 3600
QUIET = Tick(0.0, 0, True, True, 0.0, 0.0, 0, 0, 0, 0.0, None, 0, 1.0, False, False)
"""A tick of an idle engine, to change."""
POOL = 1000


def plan_of(trace_class: TraceClass, number: int = 0, duration_s: int = HOUR_S) -> Plan:
    return draw(TraceId(7, trace_class, number), duration_s)


def engine_of(plan: Plan) -> Engine:
    rng = Random(1)
    return Engine(plan, Arrivals(plan, rng), rng, leaks=True)


def stream_of(ticks: Iterable[Tick], trace_class: TraceClass = TraceClass.NORMAL) -> Stream:
    """Return a stream of ticks, each put into its place in time."""
    timed = [tick._replace(at_s=float(TICK_S * number)) for number, tick in enumerate(ticks, 1)]
    return Stream(TraceId(7, trace_class, 0), 0, "constant", POOL, True, False, False, 8192, timed)
