import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.envelope import Unwrapper
from kvlogd.model import Event, EventKind, Stats
from kvlogd.scan import Found, Scanner
from tests.lines import line_of, logged, new_parser, record

LEASE = "Releasing expired KV blocks for request cmpl-{} which were retrieved by 0 decode worker(s) within 480 seconds."
PREEMPTED = (
    "Sequence group cmpl-7f is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
    "total_num_cumulative_preemption=51"
)
ARGS = logged("non-default args: {'model': 'm', 'max_num_seqs': 8}", -60)
TRANSFER = "KV Transfer metrics: Num successful transfers=18"


def busy(at_s: float, pid: int | None = 1, index: int = 0) -> bytes:
    return line_of(record(at_s, running=3, generation_tps=50.0, kv_usage=0.2, pid=pid, index=index))


def chatter(at_s: float) -> bytes:
    return logged(f"Received request cmpl-{at_s}: prompt: 'Dear doctor', params: SamplingParams(n=1)", at_s)


def log(*lines: bytes) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def scanned(data: bytes, cuts: list[int] | None = None, *, plain: bool = True) -> list[Found]:
    """Return what a scanner finds where `data` is cut behind the newlines whose numbers are given."""
    scanner = Scanner(new_parser(), Unwrapper())
    scanner.plain = plain
    ends = [i + 1 for i, byte in enumerate(data) if byte == 0x0A]
    places = [0, *(ends[cut] for cut in sorted(set(cuts or [])) if cut < len(ends)), len(data)]
    found: list[Found] = []
    for start, end in pairwise(places):
        found += scanner.feed(data[start:end])
    return found + scanner.finish()


def stats_of(found: list[Found]) -> list[Stats]:
    return [one for one in found if isinstance(one, Stats)]


def kinds_of(found: list[Found]) -> list[EventKind]:
    return [one.kind for one in found if isinstance(one, Event)]


START = [
    ARGS,
    logged("Initializing a V1 LLM engine (v0.32.0) with config: model='m', seed=0", -50, process="EngineCore", pid=9),
    logged("GPU KV cache size: 32,768 tokens", -20, process="EngineCore", pid=9),
    b"INFO:     Application startup complete.",
]
DENSE = [line for i in range(12) for line in (busy(10.0 * i), chatter(10.0 * i + 1), chatter(10.0 * i + 7))]
STALL = [logged("No available shared memory broadcast block found in 60 seconds", 170, process="EngineCore", pid=9)]
CRASH = [
    logged("EngineCore encountered a fatal error.", 400, process="EngineCore", pid=9),
    b"torch.OutOfMemoryError: CUDA out of memory.",
    b"INFO:     Shutting down",
]
WHOLE = log(*START, *DENSE, *STALL, busy(300), *CRASH)
WANTED_KINDS = [
    EventKind.ARGS,
    EventKind.ENGINE_START,
    EventKind.KV_TOKENS,
    EventKind.SERVER_READY,
    EventKind.HANG_HINT,
    EventKind.CRASH,
    EventKind.OOM,
    EventKind.STOP,
]
BUSY_EVENT = logged("Successfully reset prefix cache", 35)


def test_everything_in_gaps_is_read_in_the_order_of_the_file() -> None:
    found = scanned(WHOLE)
    assert len(stats_of(found)) == 13
    assert kinds_of(found) == WANTED_KINDS
    assert isinstance(found[-4], Stats)  # the crash stands behind the last record
    assert found.index(stats_of(found)[0]) == 4


def test_the_fast_way_finds_what_reading_each_line_finds() -> None:
    assert scanned(WHOLE) == scanned(WHOLE, plain=False)


@given(st.lists(st.integers(0, 60)))
def test_where_a_log_is_cut_changes_nothing_outside_dense_stretches(cuts: list[int]) -> None:
    assert scanned(WHOLE, cuts) == scanned(WHOLE)


def test_cut_at_every_newline() -> None:
    assert scanned(WHOLE, list(range(100))) == scanned(WHOLE)


@given(st.lists(st.integers(0, 60)))
def test_events_of_a_busy_engine_may_be_missed_but_never_its_records(cuts: list[int]) -> None:
    lines = [*DENSE[:10], BUSY_EVENT, *DENSE[10:]]
    found = scanned(log(*lines), cuts)
    assert stats_of(found) == stats_of(scanned(log(*DENSE)))
    assert set(kinds_of(found)) <= {EventKind.RESET_OK}


def test_a_dense_stretch_is_passed_over() -> None:
    lines = [*DENSE[:18], BUSY_EVENT, *DENSE[18:]]
    assert kinds_of(scanned(log(*lines))) == []  # a promise not made; it shows that the fast way is at work
    assert kinds_of(scanned(log(*lines), plain=False)) == [EventKind.RESET_OK]


# --- what must be found even between two records of a busy engine


@given(st.integers(7, 30), st.lists(st.integers(0, 60)))
def test_expired_leases_of_a_busy_engine_are_found(at: int, cuts: list[int]) -> None:
    lease = logged(LEASE.format("a"), 10.0 * (at // 3), process="EngineCore", pid=9)
    data = log(ARGS, *DENSE[:at], lease, *DENSE[at:])
    assert kinds_of(scanned(data, cuts)) == [EventKind.ARGS, EventKind.KV_EXPIRED]


def test_a_lease_just_before_the_cut_is_found() -> None:
    lease = logged(LEASE.format("a"), 50, process="EngineCore", pid=9)
    data = log(ARGS, *DENSE[:17], lease, *DENSE[17:])
    for cut in range(len(DENSE)):
        assert kinds_of(scanned(data, [cut, cut + 1])) == [EventKind.ARGS, EventKind.KV_EXPIRED], cut


def v0(at_s: float) -> bytes:
    body = (
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.0 tokens/s, Running: 1 reqs, Swapped: 0 "
        "reqs, Pending: 0 reqs, GPU KV cache usage: 99.8%, CPU KV cache usage: 0.0%."
    )
    return logged(body, at_s, pid=None, file="metrics.py")


@given(st.integers(5, 23), st.lists(st.integers(0, 60)))
def test_preemption_warnings_of_a_busy_v0_engine_are_found(at: int, cuts: list[int]) -> None:
    lines = [line for i in range(12) for line in (v0(5.0 * i), chatter(5.0 * i + 1))]
    lines.insert(at, logged(PREEMPTED, 5.0 * (at // 2), pid=None))
    found = scanned(log(*lines), cuts)
    assert len(stats_of(found)) == 12
    assert kinds_of(found) == [EventKind.PREEMPTION]


# --- companions, other writers, other envelopes


def test_the_line_right_behind_a_record_is_read_even_of_a_busy_engine() -> None:
    lines = [line for i in range(8) for line in (busy(10.0 * i), logged(TRANSFER, 10.0 * i), chatter(10.0 * i + 5))]
    found = scanned(log(*lines))
    assert kinds_of(found) == [EventKind.KV_TRANSFER] * 8
    assert [type(one) for one in found] == [Stats, Event] * 8


def test_the_record_of_the_next_engine_is_no_companion() -> None:
    lines = [busy(10.0 * i, index=index) for i in range(8) for index in range(4)]
    assert [one.engine_index for one in stats_of(scanned(log(*lines)))] == [0, 1, 2, 3] * 8


def rust(at_s: float) -> bytes:
    body = (
        "Avg prompt tput: 812.4 toks/s, Avg generation tput: 96.3 toks/s, Reqs Running: 7, Waiting: 3, "
        "GPU KV cache used: 61.2%"
    )
    return logged(body, at_s, pid=740, process="RustFrontend", file="log_stats.rs")


@given(st.lists(st.integers(0, 30)))
def test_the_rust_front_end_is_read_however_it_is_cut(cuts: list[int]) -> None:
    lines = [line for i in range(10) for line in (rust(10.0 * i), chatter(10.0 * i + 1))]
    found = scanned(log(*lines), cuts)
    assert stats_of(found) == stats_of(scanned(log(*lines), plain=False))
    assert len(stats_of(found)) == 10


@given(st.lists(st.integers(0, 40)))
def test_a_log_that_changes_its_writer_is_read_on(cuts: list[int]) -> None:
    lines = [busy(10.0 * i) for i in range(8)] + [rust(1000 + 10.0 * i) for i in range(8)]
    lines += [busy(2000 + 10.0 * i, pid=3) for i in range(8)]
    assert len(stats_of(scanned(log(*lines), cuts))) == 24


def colour(line: bytes) -> bytes:
    head, rest = line.split(b") ", 1)
    return b"\x1b[1;36m" + head + b")\x1b[0;0m " + rest


@pytest.mark.parametrize("wrap", [colour, lambda line: b"node7|" + line, lambda line: line + b"\r"])
@given(cuts=st.lists(st.integers(0, 40)))
def test_single_odd_lines_inside_a_plain_log_are_read(wrap: Callable[[bytes], bytes], cuts: list[int]) -> None:
    lines = [busy(10.0 * i) for i in range(12)]
    lines[5], lines[7] = wrap(lines[5]), wrap(lines[7])
    found = scanned(log(*lines), cuts)
    assert stats_of(found) == stats_of(scanned(log(*[busy(10.0 * i) for i in range(12)])))


def test_an_enveloped_log_is_read_line_by_line() -> None:
    lines = [b"2026-11-29T14:00:%02d.5Z stdout F " % (2 * i) + busy(2.0 * i) for i in range(10)]
    found = scanned(log(*lines), plain=False)
    assert [one.ts_s for one in stats_of(found)] == [
        one.ts_s for one in stats_of(scanned(log(*[busy(2.0 * i) for i in range(10)])))
    ]


def test_an_event_without_a_stamp_takes_that_of_its_envelope() -> None:
    data = log(b"Nov 29 14:16:25 gpu01 vllm[811]: INFO:     Shutting down")
    [event] = scanned(data, plain=False)
    assert isinstance(event, Event)
    assert (event.kind, event.pid) == (EventKind.STOP, 811)
    assert event.ts_s == record(16 * 60 + 25).ts_s


def test_a_last_line_without_a_newline_is_read() -> None:
    data = log(*[busy(10.0 * i) for i in range(5)])[:-1]
    assert len(stats_of(scanned(data))) == 5
    assert len(stats_of(scanned(data, list(range(10))))) == 5


def test_a_record_inside_a_prompt_is_none_however_it_is_cut() -> None:
    forged = logged(f"Received request x: prompt: '{busy(5).decode()}'", 5)
    lines = [line for i in range(10) for line in (busy(10.0 * i), forged, forged)]
    for cuts in ([], list(range(50)), random.Random(3).sample(range(30), 9)):
        assert len(stats_of(scanned(log(*lines), cuts))) == 10


@given(st.lists(st.binary(max_size=80).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.lists(st.integers(0, 40)))
def test_bytes_of_any_kind_between_records_take_none_of_them_away(noise: list[bytes], cuts: list[int]) -> None:
    lines = [busy(10.0 * i) for i in range(8)]
    for i, piece in enumerate(noise):
        lines.insert(2 * i, b"~" + piece)
    assert len(stats_of(scanned(log(*lines), cuts))) == 8
