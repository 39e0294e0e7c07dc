"""The store with real threads: others query while one thread commits, checkpoints and reopens."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.errors import StoreError
from kvlogd.rows import Batch, Position
from kvlogd.store import Store
from tests.test_store import ENGINE, RUN, sample, samples

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 3"
BAD = Batch(samples=[sample(0)], sample_runs=[99])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kv.duckdb") as opened:
        opened.commit(Batch(engines=[ENGINE], runs=[RUN]))
        yield opened


class Asker(threading.Thread):
    """Runs one query and keeps what came of it."""

    def __init__(self, store: Store, sql: str) -> None:
        super().__init__(daemon=True)
        self.store, self.sql = store, sql
        self.has_row = threading.Event()
        self.go_on = threading.Event()
        self.error: StoreError | None = None

    def run(self) -> None:
        try:
            with self.store.query(self.sql, limit_s=600) as answer:
                for _ in answer.rows:
                    self.has_row.set()
                    self.go_on.wait(60)
        except StoreError as error:
            self.error = error


def fail_a_commit(store: Store) -> None:
    with pytest.raises(StoreError, match="read the positions again"):
        store.commit(BAD)


def test_a_query_that_runs_is_ended_when_the_writer_must_reopen(store: Store) -> None:
    asker = Asker(store, ENDLESS)
    asker.start()
    for _ in range(600):
        fail_a_commit(store)
        asker.join(0.1)
        if not asker.is_alive():
            break
    assert "reopened" in str(asker.error)
    store.commit(samples(3))
    assert store.positions() == {"f": 3}


def test_an_answer_that_is_half_read_ends_when_the_writer_must_reopen(store: Store) -> None:
    asker = Asker(store, "SELECT range FROM range(1000000)")
    asker.start()
    assert asker.has_row.wait(60)
    fail_a_commit(store)
    asker.go_on.set()
    asker.join(60)
    assert "reopened" in str(asker.error)


def test_a_commit_and_a_checkpoint_do_not_wait_for_a_query(store: Store) -> None:
    asker = Asker(store, ENDLESS)
    asker.start()
    store.commit(samples(100))
    assert store.checkpoint()
    assert store.positions() == {"f": 100}
    assert asker.is_alive()
    fail_a_commit(store)
    asker.join(60)
    assert not asker.is_alive()


def test_readers_see_whole_batches_while_the_writer_commits_checkpoints_and_fails(store: Store) -> None:
    over = threading.Event()
    torn: list[tuple[object, ...]] = []
    answers = [0, 0]
    store.commit(Batch(positions=[Position("vllm.log", "f", 0)]))

    def ask(reader: int) -> None:
        sql = "SELECT (SELECT count(*) FROM samples), (SELECT max(byte_offset) FROM positions)"
        while not over.is_set():
            try:
                with store.query(sql, limit_s=60) as answer:
                    torn.extend(row for row in answer.rows if row[0] != row[1])
                answers[reader] += 1
            except StoreError as error:
                if "reopened" not in str(error):
                    torn.append((str(error),))

    readers = [threading.Thread(target=ask, args=[reader], daemon=True) for reader in range(2)]
    for reader in readers:
        reader.start()
    for i in range(1, 121):
        store.commit(samples(7)._replace(positions=[Position("vllm.log", "f", 7 * i)]))
        if i % 10 == 0:
            store.checkpoint()
        if i % 15 == 0:
            fail_a_commit(store)
    over.set()
    for reader in readers:
        reader.join(60)
    assert torn == []
    assert min(answers) > 0
    assert store.positions() == {"f": 7 * 120}
    assert store.read("SELECT count(*) FROM samples") == [(7 * 120,)]


def test_closing_the_store_ends_the_queries_of_others(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "kv.duckdb")
    asker = Asker(store, "SELECT range FROM range(1000000)")
    asker.start()
    assert asker.has_row.wait(60)
    store.close()
    asker.go_on.set()
    asker.join(60)
    assert asker.error is not None
    Store.open(tmp_path / "kv.duckdb").close()


def test_what_duckdb_keeps_is_given_back_unless_somebody_reads(store: Store) -> None:
    store.commit(samples(3))
    asker = Asker(store, "SELECT * FROM range(100000)")
    asker.start()
    assert asker.has_row.wait(60)
    assert not store.renew()
    asker.go_on.set()
    asker.join(60)
    assert asker.error is None
    assert store.renew()
    store.commit(samples(4))
    assert store.positions() == {"f": 4}
