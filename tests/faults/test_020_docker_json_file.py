"""20. docker json-file: parts are joined by stream, a cut record waits, rotation is followed, time is docker's."""

from pathlib import Path

import pytest

from tests import envelopes
from tests.command import SAMPLES, replay, sql
from tests.logs import Server

FORGED = (
    "(APIServer pid=4319) INFO 03-02 09:05:00 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
    "Avg generation throughput: 2.0 tokens/s, Running: 77 reqs, Waiting: 9 reqs, GPU KV cache usage: 99.9%"
)


def server() -> Server:
    made = Server(seed=20)
    made.start()
    made.busy(40, 5, 0.2)
    head = "(APIServer pid=4319) INFO 03-02 09:05:00 [logger.py:40] Received request a: prompt: '"
    message = head.ljust(envelopes.PART, "y") + FORGED.ljust(envelopes.PART, "z") + FORGED
    made.lines.append((made.now, message))
    made.busy(40, 5, 0.2)
    return made


def test_parts_are_joined_and_forged_parts_refused(tmp_path: Path) -> None:
    (tmp_path / "c-json.log").write_bytes(envelopes.docker_json(server().lines))
    told = replay(tmp_path / "c-json.log")
    assert told.summary["stats_lines"] == 80
    assert told.alerts == []


def test_a_part_at_the_end_of_a_rotated_file_goes_on_in_the_next(tmp_path: Path) -> None:
    data = envelopes.docker_json(server().lines)
    cut = data.index(b'{"log": "' + FORGED[:40].encode())
    (tmp_path / "c-json.log.1").write_bytes(data[:cut])
    (tmp_path / "c-json.log").write_bytes(data[cut:])
    told = replay(tmp_path / "c-json.log", tmp_path / "c-json.log.1")
    assert told.summary["stats_lines"] == 80
    assert told.alerts == []


@pytest.mark.parametrize("cut", [2, 40, 150])
def test_a_cut_last_record_waits_for_its_end(tmp_path: Path, cut: int) -> None:
    data = envelopes.docker_json(server().lines)
    log, db = tmp_path / "c-json.log", tmp_path / "s.duckdb"
    log.write_bytes(data[:-cut])
    first = replay(log, "--db", db)
    assert first.err == ""
    log.write_bytes(data)
    replay(log, "--db", db)
    assert len(sql(db, SAMPLES)) == 80


def test_time_is_that_of_docker(tmp_path: Path) -> None:
    made = server()
    # the container's clock is in Tokyo, docker's is UTC
    shifted = [(at, line.replace(" 03-02 09:", " 03-02 18:")) for at, line in made.lines]
    (tmp_path / "c-json.log").write_bytes(envelopes.docker_json(shifted))
    told = replay(tmp_path / "c-json.log", "--db", tmp_path / "s.duckdb", "--timezone", "America/New_York")
    assert told.summary["first"] == "2026-03-02T09:00:00+00:00"
    assert told.summary["stats_lines"] == 80
