import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.model import Event, Stats
from kvlogd.pipeline import UNSTORED
from tests.lines import GOOD, START_S, logged, new_parser, numbers_only, parsed

DIALECTS = Path(__file__).parent / "data" / "dialects"
LINES = [
    (f"{path.stem}:{number}", json.loads(text))
    for path in sorted(DIALECTS.glob("*.jsonl"))
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
]
REAL = [case["line"].encode() for _, case in LINES]
CASES = [pytest.param(case["line"].encode(), case["expect"], id=name) for name, case in LINES]


SHARES = {
    "kv_pct": "kv_usage",
    "cpu_swap_pct": "cpu_swap_usage",
    "prefix_hit_pct": "prefix_hit_rate",
    "ext_hit_pct": "external_prefix_hit_rate",
    "mm_hit_pct": "mm_hit_rate",
}
NOT_KEPT = {"kind", "ts", "src", "level", "proc", "kv_device", "note", "reason", "envelope", "env_ts", "user_prefix"}
WORDS_OF_EVENTS = {"engine_gen", "graceful", "where", "state", "mode", "what", "count"}
"""What the corpus says in words, or that each such line counts once: the event's kind has it."""


def wanted_stats(expect: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `Stats` that a corpus line asks for; None for all others."""
    wanted: dict[str, Any] = dict.fromkeys(Stats._fields[1:])
    for key, value in expect.items():
        if key in NOT_KEPT:
            continue
        if key == "engine":
            wanted["engine_index"] = value if isinstance(value, int) else None
        elif key == "kv_fetch":
            wanted |= {f"kv_fetch_{name.split('_')[0]}": n for name, n in value.items() if name != "in_progress"}
            wanted["kv_fetch_in_progress"] = value["in_progress"]
        elif key in SHARES:
            wanted[SHARES[key]] = pytest.approx(value / 100, abs=1e-9)
        else:
            wanted["generation_tps" if key == "gen_tps" else key] = value
    if expect.get("engine") == "aggregated":
        wanted["engines"] = expect.get("engines", 0)
    return wanted


@pytest.mark.parametrize(("line", "expect"), CASES)
def test_each_dialect_gives_its_values(line: bytes, expect: dict[str, Any]) -> None:
    parser = new_parser()
    found = parsed(line, parser)
    assert numbers_only(found)
    if expect["kind"] in ("drop", "ignore"):
        assert not isinstance(found, Stats)
        assert found is None or found.kind in UNSTORED
        return
    assert found is not None
    if expect["kind"] == "stats":
        assert isinstance(found, Stats)
        got = found._asdict()
        del got["ts_s"]
        wanted = wanted_stats(expect)
        if "env_ts" in expect or "envelope" in expect or "note" in expect:
            wanted["pid"] = wanted["pid"] or got["pid"]  # the corpus gives none for the enveloped ones
        assert got == wanted
        assert not {name: n for name, n in parser.counts.items() if n}
        return
    assert isinstance(found, Event)
    assert found.kind.value == expect["kind"]
    wanted_numbers = dict(expect.get("values", {}))
    for i, value in enumerate(expect.get("per_pos", [])):
        wanted_numbers[f"per_pos_{i}"] = value
    for key, value in expect.items():
        if key == "version":
            assert found.version == value
        elif key == "engine":
            assert found.engine_index == value
        elif key == "pid":
            assert found.pid == value
        elif key not in NOT_KEPT | WORDS_OF_EVENTS | {"values", "per_pos"}:
            wanted_numbers[key] = value
    assert {name: found.numbers.get(name) for name in wanted_numbers} == pytest.approx(wanted_numbers)


@pytest.mark.parametrize(("line", "expect"), CASES)
def test_a_second_line_of_a_shape_is_read_like_the_first(line: bytes, expect: dict[str, Any]) -> None:
    parser = new_parser()
    assert parsed(line, parser) == parsed(line, parser)


def test_the_time_is_that_of_the_stamp() -> None:
    found = parsed(GOOD)
    assert found is not None
    assert found.ts_s == START_S + 25


# --- forgeries (dialects.md 5): a record inside other text is none

FORGED = GOOD.decode()
RUST = "(RustFrontend pid=740) INFO 06-04 11:58:06 [log_stats.rs:240] "


@pytest.mark.parametrize(
    "line",
    [
        f"(APIServer pid=1) INFO 11-29 14:00:25 [request_logger.py:65] {FORGED}",
        f"(APIServer pid=1) INFO 11-29 14:00:25 [request_logger.py:65] Received request x\r{FORGED}",
        f"(APIServer pid=1) INFO 11-29 14:00:25 [loggers.py:335] Received request x: {FORGED}",
        f"(APIServer pid=1) INFO 11-29 14:00:25 [fake_loggers.py:335] {FORGED.split('] ')[1]}",
        f"(APIServer pid=1) ERROR 11-29 14:00:25 [serving.py:7] Failed to parse tool call from: {FORGED}",
        f'INFO:     203.0.113.9:0 - "GET /v1/models?x={FORGED} HTTP/1.1" 200 OK',
        f"ValueError: {FORGED}",
        f"  {FORGED}",
        f"\t{FORGED}",
        f"prompt text that ends here{FORGED}",
        f"Dear doctor, {FORGED}",
        FORGED.split("] ")[1],
        FORGED[20:],
        FORGED.split(") ", 1)[1][3:],
        f"{FORGED}\r\r",
        f"{FORGED}\x00",
        f"{FORGED}, params: SamplingParams(n=1)",
        f"{RUST}Received request {FORGED}",
        "{" + FORGED + "}",
        json.dumps({"name": "vllm.entrypoints.x", "asctime": "2026-11-29 15:35:20,141", "message": FORGED}),
        json.dumps({"name": "vllm.v1.metrics.loggers", "asctime": "2026-11-29 15:35:20,141", "message": f"x {FORGED}"}),
        json.dumps({"name": "app", "asctime": "2026-11-29 15:35:20,141", "message": FORGED, "x": "vllm."}),
    ],
)
def test_a_record_inside_other_text_is_none(line: str) -> None:
    parser = new_parser()
    assert isinstance(parsed(GOOD, parser), Stats)
    assert not isinstance(parsed(line.encode(), parser), Stats)


def test_a_quotation_is_counted_apart_from_an_unknown_dialect() -> None:
    parser = new_parser()
    parsed(b"instance id: 7 Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs, GPU KV cache usage: 1.0%", parser)
    assert dict(parser.counts) == {"unparsed": 1}
    parser = new_parser()
    parsed(b"x" * 200 + GOOD, parser)
    assert dict(parser.counts) == {"quoted": 1}


# --- JSON and custom formats


def json_line(message: str, *, name: str = "vllm.v1.metrics.loggers", **more: object) -> bytes:
    return json.dumps({"asctime": "2026-11-29 14:00:25,141", "name": name, "message": message, **more}).encode()


BODY = GOOD.decode().split("] ", 1)[1]


def test_a_json_record_has_its_own_year_and_milliseconds() -> None:
    found = parsed(json_line(BODY, process=77))
    assert isinstance(found, Stats)
    assert found.ts_s == pytest.approx(START_S + 25.141)
    assert (found.pid, found.running, found.kv_usage) == (77, 1, 0.075)


@pytest.mark.parametrize(
    "line",
    [
        b'{"name": "vllm.v1.metrics.loggers", "message": "' + BODY.encode() + b'"}',
        json_line(BODY).replace(b"2026-11-29 14:00:25,141", b"yesterday"),
        json_line(BODY)[:-5],
        json_line("a line\n" + BODY),
        b'["vllm.v1.metrics.loggers", 1]',
        b'{"vllm": ' + b"[" * 50_000,
        b'{"vllm": ' + b"9" * 5_000 + b"}",
        json_line(BODY).replace(b"2026-11-29 14:00:25,141", b"0001-01-01T00:00:00+14:00"),
        json_line(BODY).replace(b"2026-11-29 14:00:25,141", b"9999-12-31T23:59:59-12:00"),
    ],
)
def test_a_broken_json_record_is_none(line: bytes) -> None:
    assert parsed(line) is None


@pytest.mark.parametrize("process", [True, -4, 10**30, "77", 7.0, None])
def test_an_odd_process_number_is_none(process: object) -> None:
    found = parsed(json_line(BODY, process=process))
    assert isinstance(found, Stats)
    assert found.pid is None


@pytest.mark.parametrize(
    "head",
    [
        "2026-11-29 14:00:25,141 INFO vllm.v1.metrics.loggers: ",
        "2026-11-29T14:00:25.141Z - vllm.v1.metrics.loggers - INFO - ",
        "2026-11-29 15:00:25.141+01:00 [INFO] vllm.v1.metrics.loggers:120 ",
    ],
)
def test_custom_formats_are_read_by_logger_name(head: str) -> None:
    found = new_parser().line((head + BODY).encode())
    assert isinstance(found, Stats)
    assert found.ts_s == pytest.approx(START_S + 25.141)
    assert new_parser().line((head.replace("metrics.loggers", "core.scheduler") + BODY).encode()) is None


@pytest.mark.parametrize(
    "stamp",
    ["0001-01-01 00:00:00+14:00", "9999-12-31 23:59:59-12:00", "9999-12-31 23:59:59+00:00", "2026-02-30 00:00:00Z"],
)
def test_a_custom_stamp_that_no_clock_has_is_counted(stamp: str) -> None:
    parser = new_parser()
    assert parser.line(f"{stamp} INFO vllm.v1.metrics.loggers: {BODY}".encode()) is None
    assert dict(parser.counts) == {"broken_stamp": 1}


# --- anything at all


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_raise(line: bytes) -> None:
    assert numbers_only(parsed(line))


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line)))
        piece = draw(
            st.one_of(
                st.binary(max_size=6),
                st.text(alphabet="0123456789.,:-+%()[]{}' \"", max_size=6).map(str.encode),
                st.sampled_from(REAL).map(lambda other: other[:120]),
            )
        )
        end = draw(st.integers(at, min(len(line), at + 12)))
        line[at:end] = piece
    return bytes(line)


@given(st.lists(mutations(), min_size=1, max_size=3))
def test_mutated_real_lines_never_raise_and_give_numbers_only(lines: list[bytes]) -> None:
    parser = new_parser()
    for line in lines:
        found = parsed(line, parser)
        assert numbers_only(found)
        if isinstance(found, Stats):
            rates = (found.kv_usage, found.prefix_hit_rate, found.external_prefix_hit_rate, found.mm_hit_rate)
            assert all(0.0 <= rate <= 1.0 for rate in rates if rate is not None)


@pytest.mark.parametrize(
    "line",
    [
        b"(" * 100_000,
        b" " * 100_000,
        b"(A pid=" * 15_000,
        logged("Sequence group " + "x" * 100_000),
        logged("Sequence group " + "x is preempted by PreemptionMode.SWAP mode because " * 2_000),
        logged("Releasing expired KV blocks for request " + "which were retrieved by " * 4_000),
        logged("Initializing a V1 LLM engine (v1) with config: " + "model='" * 15_000),
        logged("KV Transfer metrics: " + "a=1, " * 20_000),
        logged(" ▄ version " + "  version 0.1 " * 8_000),
        logged("Avg prompt throughput: " * 5_000, file="loggers.py"),
        logged("Avg prompt throughput: 1.0 tokens/s" + ", A: 1" * 17_000, file="loggers.py"),
        b'{"vllm' + b'\\"' * 50_000,
    ],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_a_line_of_100_kb_is_read_in_bounded_work(line: bytes) -> None:
    found = parsed(line)  # a pattern that backtracks would not come back within the test's patience
    assert not isinstance(found, Stats)
    assert numbers_only(found)
