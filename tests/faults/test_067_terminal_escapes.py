"""67d. Escapes in labels never reach a terminal: not from a model name, a version, a file name or a query."""

from pathlib import Path

import pytest

from tests.command import kvlogd, replay
from tests.logs import Server

ESCAPES = ["\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\u202e", "\r", "\x08"]


@pytest.mark.parametrize("escape", ESCAPES, ids=ascii)
def test_no_escape_from_a_label(tmp_path: Path, escape: str) -> None:
    server = Server(seed=67)
    server.version = f"0.20{escape}.0"
    server.start()
    server.busy(60, 8, 0.3)
    server.busy(150, 8, 0.3, grows=0.003)
    log, db = tmp_path / f"v{escape}llm.log", tmp_path / "s.duckdb"
    log.write_bytes(server.text().replace(b"acme/chat-8b", f"acme/ch{escape}at".encode()))
    said = replay(log, "--db", db).out + kvlogd("replay", "--timezone", "UTC", "--year", "2026", log).out
    said += "".join(
        kvlogd("sql", "--db", db, "--format", form, "SELECT * FROM runs JOIN engines USING (engine_id)").out
        for form in ("table", "json")
    )
    assert "kv-leak" in said
    assert escape not in said
