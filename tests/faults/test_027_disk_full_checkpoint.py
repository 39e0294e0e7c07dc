"""Scenario 27: the disk is full at a checkpoint. The row count never falls; on DuckDB 1.4 the table was empty.

A limit on the size of files stands for the full disk: it hits the main file only, as it grows.
"""

import contextlib
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from kvlogd.errors import StoreError
from kvlogd.rows import Batch, Memory, Position
from kvlogd.store import Store
from tests.faults.full_disk import fill_up, small_disk
from tests.test_store import ENGINE, RUN, samples

MIB = 2**20


@contextlib.contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def memory(name: str, size: int) -> Memory:
    return Memory(name, "c", random.Random(name).randbytes(size))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kv.duckdb") as opened:
        opened.commit(Batch(engines=[ENGINE], runs=[RUN], memories=[memory("first", 20 * MIB)]))
        opened.commit(samples(1000))
        assert opened.checkpoint()
        yield opened


def test_027_a_checkpoint_that_fails_loses_nothing(store: Store) -> None:
    store.commit(samples(500)._replace(memories=[memory("second", 10 * MIB)]))
    with files_no_larger_than(store.path.stat().st_size + MIB), pytest.raises(StoreError, match="FATAL") as caught:
        store.checkpoint()
    assert isinstance(caught.value.__cause__, duckdb.FatalException)
    assert store.read("SELECT count(*) FROM samples") == [(1500,)]
    store.commit(samples(700))
    assert store.checkpoint()
    assert store.read("SELECT count(*) FROM samples") == [(2200,)]
    assert [len(found.memory) for found in store.memories()] == [20 * MIB, 10 * MIB]


@pytest.mark.parametrize(("count", "at"), [(5, 1005), (500, 1000)], ids=["small: durable", "large: undone"])
def test_027_what_became_of_a_commit_that_raised_is_told_by_its_position(store: Store, count: int, at: int) -> None:
    for name in "abcd":
        store.commit(Batch(memories=[memory(name, 18 * MIB)]))
    # The log is larger than DuckDB's own threshold by now, so that the commit itself checkpoints. A large one skips
    # the log then, and is gone; a small one is in it, and stays.
    batch = samples(count)._replace(positions=[Position("vllm.log", "f", 1000 + count)])
    with files_no_larger_than(85 * MIB), pytest.raises(StoreError, match="read the positions again") as caught:
        store.commit(batch)
    assert isinstance(caught.value.__cause__, duckdb.FatalException)
    assert store.positions() == {"f": at}
    assert store.read("SELECT count(*) FROM samples") == [(at,)]
    assert len(store.memories()) == 5


def test_027_a_checkpoint_waits_for_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk, Store.open(disk / "kv.duckdb") as store:
        store.commit(Batch(engines=[ENGINE], runs=[RUN]))
        store.commit(samples(1000))
        ballast = fill_up(disk, 4 * MIB)
        assert not store.checkpoint()
        ballast.unlink()
        assert store.checkpoint()
        assert store.read("SELECT count(*) FROM samples") == [(1000,)]
