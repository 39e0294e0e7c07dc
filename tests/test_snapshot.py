"""A copy of the live store, made by a child process."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from kvlogd.errors import StoreError
from kvlogd.rows import Batch, Position
from kvlogd.store import Store
from tests.test_store import ENGINE, RUN, samples


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kv.duckdb") as opened:
        opened.commit(Batch(engines=[ENGINE], runs=[RUN], positions=[Position("vllm.log", "f", 0)]))
        yield opened


def counted(path: Path) -> tuple[object, ...]:
    with duckdb.connect(str(path), read_only=True) as con:
        row = con.execute("SELECT (SELECT count(*) FROM samples), (SELECT byte_offset FROM positions)").fetchone()
    assert row is not None
    return row


def test_a_snapshot_opens_in_any_client_and_holds_what_was_committed(store: Store, tmp_path: Path) -> None:
    store.commit(samples(300))
    target = tmp_path / "copy.duckdb"
    store.snapshot(target)
    assert counted(target) == (300, 300)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.duckdb", "kv.duckdb", "kv.duckdb.lock"]
    # the writer's locks hold, and it goes on
    store.commit(samples(7)._replace(positions=[Position("vllm.log", "f", 307)]))
    with pytest.raises(StoreError, match="has the store open"):
        Store.open(store.path)


def test_a_snapshot_takes_no_files_place(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for there in (target, link, store.path):
        with pytest.raises(StoreError, match="is there already"):
            store.snapshot(there)
    assert target.read_text() == "mine"
    with pytest.raises(StoreError, match="cannot"):
        store.snapshot(tmp_path / "no" / "such" / "folder")
    assert store.positions() == {"f": 0}


def test_snapshots_beside_a_busy_writer_are_whole(store: Store, tmp_path: Path) -> None:
    errors: list[StoreError] = []
    is_over = threading.Event()

    def take() -> None:
        for i in range(6):
            try:
                store.snapshot(tmp_path / f"copy{i}")
            except StoreError as error:
                if "too fast" not in str(error):
                    errors.append(error)
        is_over.set()

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    at = 0
    while not is_over.is_set():
        at += 50
        store.commit(samples(50)._replace(positions=[Position("vllm.log", "f", at)]))
        if at % 2000 == 0:
            store.checkpoint()
    taker.join(60)
    assert errors == []
    found = [counted(copy) for copy in sorted(tmp_path.glob("copy*"))]
    assert found
    assert [row for row in found if row[0] != row[1]] == []
