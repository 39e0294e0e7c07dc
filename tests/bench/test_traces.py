"""The simulated vLLM keeps the laws of a scheduler, and its log is read back to the numbers it was written from."""

from collections import Counter
from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.traces.decoding import Decoders, Request, blocks_for
from bench.traces.labels import MIX, TICK_S, Stream, Tick, TraceClass, TraceId, mixed
from bench.traces.logline import START_S, lines
from bench.traces.plan import Hang, Leak, LeakMode, Plan
from bench.traces.scheduler import Engine
from bench.traces.server import run
from kvlogd.envelope import Unwrapper
from kvlogd.model import Event, EventKind, Stats
from kvlogd.parse import Parser
from kvlogd.stamp import Stamper
from tests.bench.streams import HOUR_S, QUIET, engine_of, plan_of, stream_of

RICH = [
    TraceClass.CAPACITY,
    TraceClass.AGENTS,
    TraceClass.TENANTS,
    TraceClass.DELAYED_FREE,
    TraceClass.LEAK_ABORT,
    TraceClass.LEAK_BURST,
    TraceClass.LONG_CONTEXT,
]


@pytest.mark.parametrize("trace_class", TraceClass)
def test_a_trace_is_a_function_of_seed_class_and_number(trace_class: TraceClass) -> None:
    first = run(plan_of(trace_class, duration_s=600))
    assert run(plan_of(trace_class, duration_s=600)) == first
    assert run(plan_of(trace_class, number=1, duration_s=600)) != first
    assert all(len(stream.ticks) == 600 / TICK_S for stream in first)


def test_a_mixed_set_has_each_class_in_its_share() -> None:
    counts = Counter(trace.trace_class for trace in mixed(5, sum(MIX.values())))
    assert counts == MIX
    assert min(Counter(trace.trace_class for trace in mixed(5, 10)).values()) == 1


def crowded(plan: Plan) -> Plan:
    """Return a plan with so small a pool that requests are preempted."""
    return plan._replace(pool_blocks=plan.pool_blocks // 3, abort_share=0.1)


def held_blocks(engine: Engine) -> int:
    """Count the blocks in use one request at a time."""
    private = 0
    for request in engine.running:
        if request.ends < 0:
            private += request.reserved
        else:
            tokens = request.prompt + engine.decoders.made(request)
            private += blocks_for(tokens, engine.pool.size_of(request.tenant))
    return engine.pool.set_aside + private


@pytest.mark.parametrize("trace_class", RICH)
def test_blocks_and_seats_are_never_overbooked(trace_class: TraceClass) -> None:
    plan = crowded(plan_of(trace_class))
    engine = engine_of(plan)
    for start_s in range(0, HOUR_S // 2, TICK_S):
        engine.tick(float(start_s))
        assert 0 <= engine.used <= plan.pool_blocks
        assert engine.used == held_blocks(engine)
        assert len(engine.running) <= plan.max_num_seqs
        assert engine.decoders.count == sum(request.ends >= 0 for request in engine.running)
    assert engine.counts.finished


def drained(plan: Plan) -> Engine:
    """Return an engine after half an hour of requests, and as long as they took to end."""
    kinds = [
        kind._replace(per_s=[rate * (minute < 30) for minute, rate in enumerate(kind.per_s)]) for kind in plan.kinds
    ]
    engine = engine_of(plan._replace(kinds=kinds, sessions=None, closed_loop=None))
    for start_s in range(0, 4 * HOUR_S, TICK_S):
        engine.tick(float(start_s))
        if start_s > 2400 and not engine.running and not engine.waiting:
            break
    return engine


@pytest.mark.parametrize("trace_class", [TraceClass.TENANTS, TraceClass.DELAYED_FREE, TraceClass.RAMP])
def test_without_a_leak_nothing_is_left_and_all_tokens_are_told(trace_class: TraceClass) -> None:
    engine = drained(crowded(plan_of(trace_class, duration_s=4 * HOUR_S)))
    engine.pool.release(5.0 * HOUR_S)
    assert engine.used == 0
    counts = engine.counts
    assert counts.finished > 10
    assert counts.prompt_tokens == counts.finished_prompt_tokens
    assert counts.generation_tokens == counts.finished_generation_tokens


def test_preempted_requests_end_with_all_their_tokens() -> None:
    plan = plan_of(TraceClass.CAPACITY, number=2, duration_s=4 * HOUR_S)
    engine = drained(plan._replace(queue_timeout_s=1e9))
    assert engine.counts.preemptions > 0
    assert engine.used == 0
    assert engine.counts.generation_tokens == engine.counts.finished_generation_tokens


def test_what_is_left_after_a_leak_is_what_leaked() -> None:
    plan = plan_of(TraceClass.RAMP, duration_s=4 * HOUR_S)._replace(leak=Leak(LeakMode.REQUEST, 0.0, 0.2, 0.5, 1))
    engine = drained(plan)
    assert engine.used == engine.pool.leaked > 0


class Life:
    """A request as a plain list of steps would have it, beside the sums."""

    def __init__(self, request: Request, shared: int) -> None:
        self.request = request
        self.shared = shared


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 60), st.integers(0, 2), st.integers(0, 40)),
        min_size=1,
        max_size=20,
    )
)
def test_sums_over_requests_are_what_one_by_one_gives(arrivals: list[tuple[int, int, int, int]]) -> None:
    decoders, alive = Decoders(), list[Life]()
    for prompt, stop, shared, steps in arrivals:
        life = Life(Request(0.0, prompt + 16 * shared, stop, False), shared)
        decoders.add(life.request, decoders.steps, shared)
        alive.append(life)
        decoders.steps += steps
        for request in decoders.ended():
            (ended,) = (one for one in alive if one.request is request)
            alive.remove(ended)
            decoders.remove(request, ended.shared)
            assert request.made == request.stop
        contexts = [one.request.prompt + decoders.made(one.request) for one in alive]
        assert decoders.context == sum(contexts)
        assert decoders.blocks == sum(
            blocks_for(tokens, one.shared) for tokens, one in zip(contexts, alive, strict=True)
        )


def test_a_hang_prints_one_record_without_throughput_and_falls_silent() -> None:
    plan = plan_of(TraceClass.HANG)._replace(hang=Hang(1800.0, 900.0), missing_share=0.0)
    (stream,) = run(plan)
    hung = [tick for tick in stream.ticks if tick.hung]
    assert len(hung) == 90
    assert [tick.printed for tick in hung] == [stream.ticks[179].generation_tps > 0] + [False] * 89
    assert all(tick.generation_tps == 0 for tick in hung)
    assert stream.ticks[-1].life == 1


def test_an_idle_engine_prints_one_more_record_and_no_other() -> None:
    (stream,) = run(plan_of(TraceClass.BATCH, duration_s=6 * HOUR_S)._replace(missing_share=0.0))
    moves = [tick.prompt_tps > 0 or tick.generation_tps > 0 for tick in stream.ticks]
    assert any(moves)
    assert not all(tick.printed for tick in stream.ticks)
    for tick, before, now in zip(stream.ticks, [False, *moves], moves, strict=False):
        assert tick.printed == (before or now) or not tick.up


def test_a_restart_gives_back_what_leaked() -> None:
    plan = plan_of(TraceClass.LEAK_REQUEST, duration_s=2 * HOUR_S)
    leak = Leak(LeakMode.REQUEST, 0.0, 0.5, 1.0, 2)
    (stream, *_) = run(plan._replace(leak=leak, restarts_s=[3000.0], leaking_engine=None))
    by_life = [[tick.leaked_blocks for tick in stream.ticks if tick.up and tick.life == life] for life in (0, 1)]
    assert all(lost == sorted(lost) and lost[-1] > 0 for lost in by_life)
    assert by_life[1][0] < by_life[0][-1]
    assert not any(tick.printed for tick in stream.ticks if not tick.up)


def read(stream: Stream) -> list[Stats | Event]:
    """Return what kvlogd reads from the log of a stream."""
    parser, unwrapper = Parser(Stamper(year=2026, zone=UTC, mtime_s=None)), Unwrapper()
    inner = (unwrapper.feed(line.encode()) for line in lines(stream))
    found = (parser.line(one.text, envelope_s=one.ts_s, envelope_pid=one.pid) for one in inner if one)
    kept = [one for one in found if one is not None]
    assert not parser.counts["unparsed"]
    return kept


def told(share: float) -> float:
    """Return a share as its per cent are printed and read."""
    return round(float(f"{100 * share:.1f}") / 100, 3)


def as_printed(tick: Tick, pid: int | None) -> Stats:
    """Return the record of a tick, with as many digits as vLLM prints."""
    return Stats(
        START_S + tick.at_s,
        pid,
        0,
        None,
        round(tick.prompt_tps, 1),
        round(tick.generation_tps, 1),
        tick.running,
        tick.waiting,
        told(tick.kv_usage),
        preemptions=tick.preemptions or None,
        prefix_hit_rate=None if tick.hit_rate is None else told(tick.hit_rate),
    )


def rounded(stats: Stats) -> Stats:
    hit_rate = None if stats.prefix_hit_rate is None else round(stats.prefix_hit_rate, 3)
    return stats._replace(kv_usage=round(stats.kv_usage, 3), prefix_hit_rate=hit_rate)


@pytest.mark.parametrize(
    ("trace_class", "number"), [(TraceClass.CAPACITY, 1), (TraceClass.TENANTS, 0), (TraceClass.MISSING_LINES, 1)]
)
def test_a_log_is_read_back_to_the_numbers_it_was_written_from(trace_class: TraceClass, number: int) -> None:
    (stream,) = run(plan_of(trace_class, number, 1800))
    found = [one for one in read(stream) if isinstance(one, Stats)]
    printed = [tick for tick in stream.ticks if tick.printed]
    assert len(printed) > 20
    assert [rounded(stats) for stats in found] == [as_printed(tick, found[0].pid) for tick in printed]


def test_start_up_lines_tell_the_pool_and_the_connector_and_each_life_is_one() -> None:
    plan = plan_of(TraceClass.DELAYED_FREE)._replace(restarts_s=[1800.0], tells_pool=True, keeps_pid=False)
    (stream,) = run(plan)
    events = [one for one in read(stream) if isinstance(one, Event)]
    tokens = [event.numbers["tokens"] for event in events if event.kind is EventKind.KV_TOKENS]
    assert tokens == [plan.pool_blocks * 16] * 2
    assert sum(event.numbers.get("kv_connector") == 1 for event in events) == 2
    kinds = Counter(event.kind for event in events)
    assert kinds[EventKind.BANNER] == kinds[EventKind.SERVER_READY] == 2
    assert kinds[EventKind.STOP] == 1


def test_a_hung_server_is_killed_without_a_word() -> None:
    ticks = [QUIET, QUIET._replace(hung=True), QUIET._replace(up=False, printed=False), QUIET._replace(life=1)]
    kinds = Counter(one.kind for one in read(stream_of(ticks)) if isinstance(one, Event))
    assert kinds[EventKind.STOP] == 0
    assert kinds[EventKind.BANNER] == 2


def test_names_tell_traces_apart() -> None:
    assert TraceId(3, TraceClass.CREEP, 4).name == "creep-3-004"
