"""17. Several writers in one file: engines are kept apart, and glued or cut lines never give a wrong number."""

import random
from pathlib import Path

import pytest

from tests.command import SAMPLES, replay, sql
from tests.logs import Server


def two_engines() -> Server:
    """Return one server with two engines, one nearly full and one nearly empty."""
    server = Server(seed=17)
    server.start()
    for i in range(80):
        server.record(9, 0.80 + 0.001 * (i % 5), engine=0)
        server.record(2, 0.05 + 0.001 * (i % 5), engine=1, step=False)
    return server


def test_engines_of_one_server_are_kept_apart(tmp_path: Path) -> None:
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_bytes(two_engines().text())
    told = replay(log, "--db", db)
    assert told.alerts == []
    assert told.summary["engines"] == 2
    spans = sql(
        db,
        "SELECT label, min(kv_usage) AS low, max(kv_usage) AS high, count(*) AS n "
        "FROM samples JOIN engines USING (engine_id) GROUP BY 1 ORDER BY 1",
    )
    assert [(row["label"], row["low"], row["high"], row["n"]) for row in spans] == [
        ("vllm.log/0", "0.8", "0.804", "80"),
        ("vllm.log/1", "0.05", "0.054", "80"),
    ]


def test_servers_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    lines = []
    for pid, usage in ((1001, 0.80), (2002, 0.05)):
        server = Server(pid, seed=pid)
        server.start()
        server.busy(80, 6, usage, noise=0.001)
        lines += server.lines
    lines.sort(key=lambda line: line[0])
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_text("".join(f"{line}\n" for _, line in lines))
    told = replay(log, "--db", db)
    assert told.alerts == []
    assert told.summary["stats_lines"] == 160
    ranges = sql(db, "SELECT engine_id, max(kv_usage) - min(kv_usage) AS spread FROM samples GROUP BY 1")
    assert len(ranges) == 2
    assert all(float(row["spread"]) < 0.05 for row in ranges)


@pytest.mark.parametrize("seed", range(5))
def test_glued_and_cut_lines_give_no_wrong_number(tmp_path: Path, seed: int) -> None:
    shuffled = random.Random(seed)
    lines = two_engines().text().splitlines(keepends=True)
    torn = b""
    for line in lines:
        fate = shuffled.random()
        if fate < 0.1:
            torn += line.rstrip(b"\n")  # glued to the next one
        elif fate < 0.2:
            torn += line[: shuffled.randrange(len(line))] + b"\n"  # its end is lost
        elif fate < 0.3:
            torn += line[shuffled.randrange(len(line)) :]  # its begin is lost
        else:
            torn += line
    rows = {}
    for name, data in (("whole", b"".join(lines)), ("torn", torn)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vllm.log").write_bytes(data)
        told = replay(tmp_path / name / "vllm.log", "--db", tmp_path / name / "s.duckdb")
        assert told.err == ""
        rows[name] = sql(tmp_path / name / "s.duckdb", SAMPLES)
    # a record whose last field is cut off is whole without it (older versions print none)
    shown = {name: [tuple(v for k, v in row.items() if k != "prefix_hit_rate") for row in rows[name]] for name in rows}
    assert set(shown["torn"]) <= set(shown["whole"])
    assert len(shown["torn"]) == len(set(shown["torn"])) > 60
