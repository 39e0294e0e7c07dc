"""A live log between bytes and rows: what is held back, what may be stored, and what a new format does."""

from datetime import UTC
from pathlib import Path

from kvlogd.engines import Ids
from kvlogd.model import Run
from kvlogd.piece import Piece
from kvlogd.pipeline import Pipeline
from kvlogd.rows import Position
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.stream import HELD_BYTES, REST_S, Stream
from tests.lines import START_S, line_of, logged, record
from tests.live import Live

CHATTER = b'(APIServer pid=1) INFO:     10.0.0.7:51234 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def stream() -> Stream:
    found = Stream("chat", UTC, Pipeline("chat", Ids(), load_rules([shipped_folder()])))
    for _ in found.pipeline.recall([], []):
        pass
    found.go_on()
    return found


def piece(data: bytes, end: int, *, is_last: bool = False) -> Piece:
    return Piece("chat", data, Position("chat", "1-1-1-1", end), is_last=is_last, mtime_s=START_S)


def line(number: int) -> bytes:
    return line_of(record(10.0 * number, running=2, prompt_tps=5.0, generation_tps=50.0)) + b"\n"


def ends(found: Stream) -> list[int]:
    return [position.offset for position in found.harvest().positions]


def test_chatter_waits_for_a_record_and_its_position_with_it() -> None:
    found = stream()
    found.take(piece(line(0), 100), 0.0, START_S)
    assert ends(found) == [100]
    found.take(piece(CHATTER, 200), 1.0, START_S)
    assert ends(found) == []
    found.take(piece(line(1), 300), 10.0, START_S)
    reaped = found.harvest()
    assert (len(reaped.harvest.samples), [p.offset for p in reaped.positions]) == (1, [300])


def test_chatter_alone_is_read_after_a_while_or_when_it_is_much() -> None:
    found = stream()
    found.take(piece(CHATTER, 200), 0.0, START_S)
    assert not found.is_due(REST_S - 1)
    assert found.is_due(REST_S)
    found.rest(REST_S)
    assert ends(found) == [200]
    many = CHATTER * (HELD_BYTES // len(CHATTER) + 1)
    found.take(piece(many, 900), 20.0, START_S)
    assert ends(found) == [900]


def test_a_last_line_without_newline_counts_where_it_is_a_record() -> None:
    found = stream()
    found.take(piece(line(0)[:-1], 99, is_last=True), 0.0, START_S)
    assert len(found.harvest().harvest.samples) == 1
    found.take(piece(logged("Shutting down", 20.0), 150, is_last=True), 1.0, START_S)
    assert found.harvest().harvest.events == []


def test_a_new_vllm_that_writes_other_lines_is_told_whatever_was_read_before() -> None:
    found = stream()
    for number in range(2000):
        found.take(piece(line(number), number), 10.0 * number, START_S)
    found.harvest()
    found.take(piece(logged("  version 0.99.0", 20_010.0, file="utils.py") + b"\n", 1), 20_010.0, START_S)
    start = logged("Initializing a V1 LLM engine (v0.99.0) with config: model='m'", 20_020.0, process="EngineCore")
    found.take(piece(start + b"\n" + line(2003), 2), 20_030.0, START_S)
    assert any(isinstance(run, Run) and run.ended_s is not None for run in found.harvest().harvest.runs)
    odd = line(0).replace(b"GPU KV cache usage", b"KV pool of this engine, GPU KV cache usage now")
    for number in range(100):
        found.take(piece(odd, 3 + number), 20_040.0 + 10 * number, START_S)
        found.take(piece(line(2004 + number) if number % 2 else odd, 3 + number), 20_041.0 + 10 * number, START_S)
    assert [event.key.rule for event in found.harvest().harvest.alert_events] == ["data-source"]


def test_lines_without_a_stamp_do_not_stop_the_clock(tmp_path: Path) -> None:
    """A hung server goes on answering probes and scrapes, and uvicorn writes a line of each, without its time."""
    log = tmp_path / "vllm.log"
    jam = record(20.0, running=0, waiting=3, kv_usage=0.985)
    log.write_bytes(line(0) + line(1) + line_of(jam) + b"\n")
    live = Live(log, tmp_path / "kv.duckdb", wall_s=log.stat().st_mtime)
    live.read_all()
    for _ in range(60):
        with log.open("ab") as out:
            out.write(CHATTER.replace(b"POST /v1/completions", b"GET /metrics"))
        live.turn(2.0)
    live.commit()
    fired = [(one.rule, one.at_s - START_S) for one in live.told() if one.state == "firing"]
    live.kill()
    assert [rule for rule, _ in fired] == ["engine-stall"]
    assert 80 <= fired[0][1] <= 110


def test_what_was_read_counts_although_the_log_cannot_be_seen_any_more() -> None:
    found = stream()
    found.take(piece(line(0), 100), 0.0, START_S)
    found.take(piece(CHATTER, 200), 1.0, START_S)
    assert ends(found) == [100]
    found.hold(1.0 + REST_S)
    assert not found.is_settled
    assert ends(found) == [200]
    assert found.is_settled


def test_after_the_clock_was_set_back_no_silence_is_seen_where_records_come() -> None:
    found = stream()
    for number in range(30):
        found.take(piece(line(number), number), 10.0 * number, START_S)
    found.caught_up(300.0)
    # an hour back, and a long prefill: its record shows no throughput
    back = b"".join(line(number - 360) for number in range(30, 33))
    found.take(piece(back, 40), 330.0, START_S)
    found.take(piece(line_of(record(-3270.0, running=1)) + b"\n", 41), 340.0, START_S)
    found.rest(345.0)
    found.take(piece(line(34 - 360), 42), 350.0, START_S)
    assert found.pipeline.now_s == START_S - 3260.0
    assert found.harvest().harvest.alert_events == []
