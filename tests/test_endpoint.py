"""The daemon's socket: what it answers, whom it refuses, and that nothing a peer does stops it."""

import io
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvlogd import ask, caller, endpoint, sheet, sqlgate, wire
from kvlogd.endpoint import Endpoint
from kvlogd.errors import KvlogdError, StoreError
from kvlogd.sheet import Format
from kvlogd.store import Store
from tests import host, waiting
from tests.host import opened_elsewhere
from tests.test_sqlgate import ATTACKS, SECRET, TYPES

until = partial(waiting.until, deadline_s=20)
SLOW = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1"
MANY = "FROM range(20000)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kv.duckdb") as store:
        store.commit(host.first_batch(3))
        yield store


@pytest.fixture
def served(store: Store) -> Iterator[Endpoint]:
    with Endpoint(store.path.parent / "kvlogd.sock", host.hands(store)) as served:
        yield served


@contextmanager
def connected(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(place))
        yield connection


def request(kind: str = "sql", **more: object) -> dict[str, object]:
    return {"v": 1, "kind": kind, **more}


@contextmanager
def asking(served: Endpoint, sql: str) -> Iterator[socket.socket]:
    """Send a query and read nothing."""
    with connected(served.path) as connection:
        connection.sendall(wire.line(request(store=str(served.path.with_name("kv.duckdb")), sql=sql)))
        yield connection


def rows(served: Endpoint, sql: str, max_rows: int = 1_000_000) -> list[tuple[Any, ...]]:
    with ask.sql([served.path], served.path.with_name("kv.duckdb"), sql, max_rows) as found:
        return list(found.rows)


# --- SQL


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("sql", [TYPES, "FROM samples", "SELECT 1 WHERE false", "EXPLAIN FROM samples", MANY])
def test_the_socket_gives_the_very_answer_of_the_file(store: Store, served: Endpoint, sql: str, form: Format) -> None:
    direct, over_the_socket = io.StringIO(), io.StringIO()
    sqlgate.answer(store, sql, form, direct)
    with ask.sql([served.path], store.path, sql, 1_000_000) as found:
        sheet.write(found, form, over_the_socket, plan=sqlgate.is_plan(sql))
    assert over_the_socket.getvalue() == direct.getvalue()


def test_rows_are_read_only_as_fast_as_they_are_taken(store: Store, tmp_path: Path) -> None:
    taken = 0

    class Counting(Store):
        @contextmanager
        def query(self, sql: str, *, limit_s: float, started: Any = None) -> Iterator[Any]:
            def counted(rows: Iterator[Any]) -> Iterator[Any]:
                nonlocal taken
                for row in rows:
                    taken += 1
                    yield row

            with store.query(sql, limit_s=limit_s, started=started) as found:
                yield found._replace(rows=counted(found.rows))

    counting = Counting(store.path, read_only=False, lock_fd=None)
    lent = host.hands(store)._replace(store=_Gated(store, counting))
    with Endpoint(tmp_path / "kvlogd.sock", lent) as served, asking(served, "FROM range(2000000)") as connection:
        assert b"columns" in connection.recv(1000)
        before = -1
        while taken != before:  # until the socket's buffers are full
            before = taken
            time.sleep(0.2)
        assert 0 < taken < 500_000


class _Gated:
    """A store's gate, and another's queries."""

    def __init__(self, store: Store, queries: Store) -> None:
        self.path = store.path
        self.statement_types = store.statement_types
        self.syntax_tree = store.syntax_tree
        self.query = queries.query


def test_too_many_rows_are_refused_with_the_mend(served: Endpoint) -> None:
    assert len(rows(served, "FROM range(1000)", 1000)) == 1000
    with pytest.raises(StoreError, match="more than 1000 rows: add a LIMIT"):
        rows(served, "FROM range(1001)", 1000)


def test_what_waits_is_committed_before_a_query(store: Store, tmp_path: Path) -> None:
    flushed = []
    lent = host.hands(store, lambda: flushed.append(1))
    with Endpoint(tmp_path / "kvlogd.sock", lent) as served:
        rows(served, "SELECT 1")
    assert flushed == [1]


def test_a_commit_that_fails_does_not_keep_the_rows_back(store: Store, tmp_path: Path) -> None:
    def full() -> None:
        raise StoreError("cannot commit: no space left on device")

    with Endpoint(tmp_path / "kvlogd.sock", host.hands(store, full)) as served:
        assert rows(served, "SELECT count(*) FROM samples") == [(3,)]


def test_no_attack_passes_the_socket(
    store: Store, served: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n", encoding="utf-8")
    (tmp_path / "secret.json").write_text(f'{{"a": "{SECRET}"}}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVLOGD_TEST_SECRET", SECRET)
    names = {path.name for path in tmp_path.iterdir()}
    everything = "SELECT (SELECT count(*) FROM samples), (SELECT string_agg(key || value) FROM meta)"
    before = rows(served, everything)
    assert len(ATTACKS) >= 50
    for sql in ATTACKS:
        with pytest.raises(KvlogdError) as caught:
            rows(served, sql)
        assert "\n" not in str(caught.value), sql
        assert SECRET not in str(caught.value), sql
    assert rows(served, everything) == before
    assert {path.name for path in tmp_path.iterdir()} == names
    for read_only in (True, False):
        assert "Could not set lock" in opened_elsewhere(store.path, read_only=read_only)
    assert served.health().faults == 0


BOMBS = [
    "SELECT * FROM range(100000000) ORDER BY hash(range)",
    "SELECT string_agg(range::VARCHAR, ',') FROM range(30000000)",
    "WITH RECURSIVE t(i) AS (SELECT 'x' UNION ALL SELECT i || i FROM t) SELECT max(length(i)) FROM t",
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT x FROM t, unnest([1,2,3,4,5,6,7]) u(x)) SELECT count(*) FROM t",
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t",
    SLOW,
]


@pytest.mark.parametrize("sql", BOMBS)
def test_a_bomb_ends_by_itself(served: Endpoint, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlgate, "LIMIT_S", 3.0)
    with pytest.raises(StoreError, match=r"Out of Memory|longer than 3 s|wrote more than") as caught:
        rows(served, sql)
    assert "\n" not in str(caught.value)
    assert "Possible solutions" not in str(caught.value)
    assert rows(served, "SELECT count(*) FROM samples") == [(3,)]


def test_a_query_ends_before_it_takes_the_daemons_own_space(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_SPILL_BYTES", 2**20)
    with pytest.raises(StoreError, match=r"^the query wrote more than 1 MiB of what memory could not hold: narrow it"):
        rows(served, "SELECT * FROM range(100000000) ORDER BY hash(range)")
    assert rows(served, "SELECT count(*) FROM samples") == [(3,)]


# --- who asks, and how


NO_REQUESTS = [
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\xff\xfe\n",
    b"[1]\n",
    b'"sql"\n',
    b"{}\n",
    b'{"v":2,"kind":"status"}\n',
    b'{"v":1,"kind":"drop"}\n',
    b'{"v":1,"kind":["sql"]}\n',
    b'{"v":1,"kind":"sql"}\n',
    b'{"v":1,"kind":"sql","sql":7}\n',
    b'{"v":1,"kind":"status","store":"/etc/passwd"}\n',
    b'{"v":1,"kind":"status","store":"\\u0000"}\n',
    b'{"v":1,"kind":"status","store":7}\n',
    b"[" * 100_000 + b"\n",
    b"x" * (wire.MAX_REQUEST_BYTES + 1),
]


@pytest.mark.parametrize("sent", NO_REQUESTS, ids=[repr(sent[:40]) for sent in NO_REQUESTS])
def test_what_is_no_request_gets_one_line(served: Endpoint, sent: bytes) -> None:
    with connected(served.path) as connection:
        connection.sendall(sent)
        (line,) = connection.makefile("rb").read().splitlines()
    assert json.loads(line)["error"]["what"]
    assert rows(served, "SELECT 1") == [(1,)]
    assert served.health().faults == 0


def test_who_says_nothing_is_dropped(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "REQUEST_S", 0.1)
    with connected(served.path) as connection:
        connection.sendall(b'{"v":1,')
        assert connection.recv(1) == b""
    until(lambda: served.health().dropped == 1 and served.health().callers == 0)


def test_who_does_not_read_is_dropped(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "_STALL_S", 0.2)
    with asking(served, "FROM range(2000000)") as one, asking(served, "FROM range(2000000)") as two:
        until(lambda: served.health().dropped == 2 and served.health().callers == 0)
        assert one.fileno() != two.fileno()
    assert rows(served, "SELECT 1") == [(1,)]


def test_no_more_than_so_many_at_once(served: Endpoint) -> None:
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(endpoint.MOST_CALLERS)]
    try:
        for one in waiting:
            one.connect(str(served.path))
        until(lambda: served.health().callers == endpoint.MOST_CALLERS)
        with pytest.raises(StoreError, match="ask the daemon already: try again"):
            rows(served, "SELECT 1")
    finally:
        for one in waiting:
            one.close()
    until(lambda: served.health().callers == 0)
    assert rows(served, "SELECT 1") == [(1,)]


def test_a_third_query_is_told_to_wait(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WAIT_S", 0.3)
    monkeypatch.setattr(sqlgate, "LIMIT_S", 4.0)
    with asking(served, SLOW), asking(served, SLOW):
        # whichever comes too early is answered itself
        until(lambda: is_refused(served), deadline_s=5)
        assert ask.status([served.path], served.path.with_name("kv.duckdb")).pid == os.getpid()


def is_refused(served: Endpoint) -> bool:
    try:
        rows(served, "SELECT 1")
    except StoreError as error:
        return str(error) == "2 queries run already: try again in a moment"
    return False


def test_who_goes_ends_the_query(served: Endpoint) -> None:
    for _ in range(3):
        with asking(served, SLOW), asking(served, SLOW):
            until(lambda: served.health().callers == 2)
            time.sleep(0.3)
        assert rows(served, "SELECT 1") == [(1,)]
    until(lambda: served.health().callers == 0)
    assert served.health().faults == 0


def test_closing_ends_the_queries(store: Store, tmp_path: Path) -> None:
    with Endpoint(tmp_path / "kvlogd.sock", host.hands(store)) as served, asking(served, SLOW) as connection:
        until(lambda: served.health().callers == 1)
        time.sleep(0.3)
        served.close()
        assert b"rows" not in connection.makefile("rb").read()
    assert served.health().callers == 0


def test_a_fault_of_ours_is_counted_and_lives_on(store: Store, tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise ZeroDivisionError(SECRET)

    lent = host.hands(store)._replace(status=broken)
    with Endpoint(tmp_path / "kvlogd.sock", lent) as served:
        for times in (1, 2):
            with pytest.raises(StoreError, match=r"^the daemon failed to answer: `kvlogd status` says where$"):
                ask.status([served.path], store.path)
            until(lambda times=times: served.health().faults == times)  # type: ignore[misc]
        assert served.health().last_fault is not None
        assert str(served.health().last_fault).startswith("ZeroDivisionError in broken, line ")
        assert rows(served, "SELECT 1") == [(1,)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_strangers_are_refused(store: Store) -> None:
    code = (
        "import os, socket, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try:\n s.connect(sys.argv[1])\n print(s.recv(1000).decode())\nexcept OSError as e:\n print(e.strerror)"
    )

    def stranger(place: Path) -> str:
        command = [sys.executable, "-I", "-S", "-c", code, str(place)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with Endpoint(Path(folder) / "kvlogd.sock", host.hands(store)) as served:
            assert stranger(served.path) == "Permission denied\n"
            served.path.chmod(0o666)
            assert "you may not ask this daemon" in stranger(served.path)
            assert served.health().refused == 1


# --- status, alerts, snapshot


def test_status_and_alerts_come_from_the_daemon(store: Store, served: Endpoint) -> None:
    assert ask.status([served.path], store.path) == host.status(store)
    standing = ask.alerts([served.path], store.path, also_over=False)
    assert [alert["state"] for alert in standing] == ["firing"]
    assert len(ask.alerts([served.path], store.path, also_over=True)) == 2


def test_a_snapshot_is_the_store_and_leaves_nothing_behind(store: Store, served: Endpoint, tmp_path: Path) -> None:
    store.checkpoint()
    names = {path.name for path in tmp_path.iterdir()}
    target = tmp_path / "elsewhere"
    target.mkdir()
    size = ask.snapshot([served.path], store.path, target / "copy.duckdb")
    assert [path.name for path in target.iterdir()] == ["copy.duckdb"]
    assert size == (target / "copy.duckdb").stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == names | {"elsewhere"}
    with (
        Store.open(target / "copy.duckdb", read_only=True) as copy,
        copy.query("SELECT count(*) FROM samples", limit_s=9) as found,
    ):
        assert list(found.rows) == [(3,)]
    assert "Could not set lock" in opened_elsewhere(store.path, read_only=True)
    with pytest.raises(StoreError, match="is there already"):
        ask.snapshot([served.path], store.path, target / "copy.duckdb")
    with pytest.raises(StoreError, match="cannot write: No such file"):
        ask.snapshot([served.path], store.path, tmp_path / "nowhere" / "copy.duckdb")
    until(lambda: served.health().callers == 0)
    assert {path.name for path in tmp_path.iterdir()} == names | {"elsewhere"}


def test_what_a_killed_daemon_left_is_removed(store: Store, tmp_path: Path) -> None:
    left = [tmp_path / ".snapshot-7.duckdb", tmp_path / "..snapshot-7.duckdb.8"]
    for path in left:
        path.write_bytes(b"x")
    with Endpoint(tmp_path / "kvlogd.sock", host.hands(store)):
        assert not any(path.exists() for path in left)


# --- the socket itself


def test_the_socket_comes_and_goes(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "kvlogd.sock"
    with Endpoint(place, host.hands(store)):
        assert stat.filemode(place.stat().st_mode) == "srw-rw----"
    assert not place.exists()
    assert not list(tmp_path.glob(".kvlogd*"))


def test_a_dead_socket_is_replaced_and_a_living_one_is_not(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "kvlogd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    with Endpoint(place, host.hands(store)) as served:
        with pytest.raises(StoreError, match=f"process {os.getpid()} listens there: stop it"):
            Endpoint(place, host.hands(store))
        assert rows(served, "SELECT 1") == [(1,)]


def test_no_file_is_taken_for_a_socket(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "kvlogd.sock"
    place.write_text("precious")
    with pytest.raises(StoreError, match="is there already and is no socket"):
        Endpoint(place, host.hands(store))
    assert place.read_text() == "precious"
    with pytest.raises(StoreError, match="cannot listen: No such file or directory: create the folder"):
        Endpoint(tmp_path / "nowhere" / "kvlogd.sock", host.hands(store))


def test_a_socket_of_another_daemon_is_left_alone_at_the_end(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "kvlogd.sock"
    with Endpoint(place, host.hands(store)):
        place.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(place))
    assert place.exists()


def test_a_path_may_be_longer_than_an_address(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with (
        Endpoint(folder / "kvlogd.sock", host.hands(store)) as served,
        ask.sql([served.path], store.path, "SELECT 1", 9) as found,
    ):
        assert list(found.rows) == [(1,)]


def test_many_ask_at_once(store: Store, served: Endpoint) -> None:
    found: list[int] = []

    def one() -> None:
        found.append(rows(served, "SELECT sum(range) FROM range(100000)")[0][0])

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [4999950000] * 12


def test_another_store_is_another_daemon(store: Store, served: Endpoint, tmp_path: Path) -> None:
    with (
        pytest.raises(ask.AbsentError, match="no daemon serves this store"),
        ask.sql([served.path, tmp_path / "nowhere.sock"], tmp_path / "other.duckdb", "SELECT 1", 9),
    ):
        pass
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert ask.status([served.path], link / "kv.duckdb").pid == os.getpid()
