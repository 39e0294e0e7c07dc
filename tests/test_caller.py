"""Whoever asks the daemon where the system has no thread for them: refused, and nothing else."""

import socket
import threading
from pathlib import Path

import pytest

from kvlogd import ask, endpoint
from kvlogd.endpoint import Endpoint
from kvlogd.errors import StoreError
from kvlogd.store import Store
from tests import host


def refused(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_system_without_a_thread_to_spare_refuses_and_keeps_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kv.duckdb"
    with Store.open(path) as store, Endpoint(tmp_path / "kvlogd.sock", host.hands(store)) as served:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            for _ in range(endpoint.MOST_CALLERS + 1):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(20)
                    connection.connect(str(served.path))
                    assert b"no thread to spare" in connection.recv(4096)
        with ask.sql([served.path], path, "SELECT 1", 10) as found:
            assert list(found.rows) == [(1,)]
        assert served.health().faults == 0


def test_a_query_without_a_thread_to_spare_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon asks for the rules in its own loop: nothing else may come out of it."""
    with Store.open(tmp_path / "kv.duckdb") as store:
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreError, match="no thread to spare"), store.query("SELECT 1", limit_s=1.0):
            pass
