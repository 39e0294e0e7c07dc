"""Where the socket lies, and how a message looks on it."""

from pathlib import Path

import pytest

from kvlogd import wire
from kvlogd.errors import KvlogdError, StoreError

STORE = Path("/srv/kv/kvlogd.duckdb")


def test_where_the_daemon_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RUNTIME_DIRECTORY": "/run/other"}
    monkeypatch.setattr(wire, "RUN_FOLDER", tmp_path / "run")
    assert wire.place(STORE, None, {}) == Path("/srv/kv/kvlogd.sock")
    assert wire.place(STORE, None, given) == Path("/run/other/kvlogd.sock")
    assert wire.place(STORE, Path("/my/sock"), given) == Path("/my/sock")
    (tmp_path / "run").mkdir()
    assert wire.place(STORE, None, {}) == tmp_path / "run" / "kvlogd.sock"
    assert wire.place(STORE, None, {}) in wire.places(STORE, None)
    assert wire.places(STORE, None)[0] == Path("/srv/kv/kvlogd.sock")
    assert wire.places(STORE, Path("/my/sock")) == [Path("/my/sock")]


def test_a_message_is_one_line() -> None:
    told = {"v": 1, "sql": "a\n\u2028\0é"}
    assert wire.line(told).count(b"\n") == 1
    assert wire.message(wire.line(told)) == told


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"1"])
def test_what_is_no_message(sent: bytes) -> None:
    with pytest.raises(KvlogdError, match="no message of kvlogd"):
        wire.message(sent)


def test_another_version_is_told() -> None:
    with pytest.raises(KvlogdError, match="speaks version 3 of the protocol, not 1: restart the daemon"):
        wire.message(b'{"v": 3}')


def test_an_error_keeps_its_parts() -> None:
    told = wire.message(wire.failure(StoreError("full", where="s.duckdb", mend="free space")))
    assert told["error"] == {"what": "full", "where": "s.duckdb", "mend": "free space"}
