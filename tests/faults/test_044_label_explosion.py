"""44. A log that invents names, processes and engines by the thousand: memory and tables stay small."""

from pathlib import Path

from tests.command import replay, sql
from tests.logs import Server


def test_ten_thousand_model_names_are_one_engine(tmp_path: Path) -> None:
    server = Server(seed=44)
    server.start()
    server.busy(30, 5, 0.2)
    for number in range(10_000):
        server.log("utils.py:233", f"non-default args: {{'model': 'acme/m{number}', 'max_model_len': 8192}}")
    server.busy(30, 5, 0.2)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_bytes(server.text())
    told = replay(log, "--db", db)
    assert told.err == ""
    assert told.summary["engines"] == 1
    assert told.summary["runs"] <= 3
    assert int(sql(db, "SELECT count(DISTINCT model) AS n FROM runs")[0]["n"]) <= 3
