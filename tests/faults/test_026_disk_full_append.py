"""Scenario 26: the disk is full while rows are appended; the log is the buffer, and sums match in the end."""

import random
from pathlib import Path

import pytest

from kvlogd.errors import StoreError
from kvlogd.rows import Batch, Memory, Position
from kvlogd.store import Store
from tests.faults.full_disk import fill_up, small_disk
from tests.test_store import ENGINE, RUN, digest, sample

BATCH = 2000


def batch(at: int) -> Batch:
    many = [sample(at + i, prompt_tps=(at + i) * 1.37, running=at + i) for i in range(BATCH)]
    return Batch(samples=many, sample_runs=[7] * BATCH, positions=[Position("vllm.log", "f", at + BATCH)])


def test_026_a_commit_is_refused_with_what_is_lacking_and_goes_on_by_itself(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk, Store.open(disk / "kv.duckdb") as store:
        store.commit(Batch(engines=[ENGINE], runs=[RUN], positions=[Position("vllm.log", "f", 0)]))
        at, refused = 0, []
        ballast = fill_up(disk, 20 * 2**20)
        for _ in range(200):
            try:
                store.commit(batch(at))
            except StoreError as error:
                refused.append(str(error))
                before = digest(disk / "kv.duckdb.wal")
                with pytest.raises(StoreError, match=r"the disk is full: \d+ MB more are needed"):
                    store.commit(batch(at))
                assert digest(disk / "kv.duckdb.wal") == before
                assert store.positions() == {"f": at}
                if len(refused) == 3:
                    break
                ballast.unlink()
                ballast = fill_up(disk, 24 * 2**20)
                store.checkpoint()
            else:
                at += BATCH
                assert store.positions() == {"f": at}
        assert len(refused) == 3, (at, refused)
        ballast.unlink()
        store.commit(batch(at))
        at += BATCH
        assert store.read("SELECT count(*), sum(running)::BIGINT FROM samples") == [(at, at * (at - 1) // 2)]
    assert not disk.joinpath("kv.duckdb").exists()


def test_026_where_the_disk_fills_up_under_a_commit_nothing_is_half_there(tmp_path: Path) -> None:
    # Somebody else takes the room between our asking and DuckDB's writing: it is less than the batch takes.
    with small_disk(tmp_path / "disk", 64) as disk, Store.open(disk / "kv.duckdb") as store:
        store.commit(Batch(engines=[ENGINE], runs=[RUN], positions=[Position("vllm.log", "f", 0)]))
        huge = batch(0)._replace(memories=[Memory("vllm.log", "c", random.Random(26).randbytes(22 * 2**20))])
        ballast = fill_up(disk, 17 * 2**20)
        with pytest.raises(StoreError, match="cannot commit"):
            store.commit(huge)
        assert store.positions() == {"f": 0}
        assert store.read("SELECT count(*) FROM samples") == [(0,)]
        ballast.unlink()
        store.commit(batch(0))
        assert store.positions() == {"f": BATCH}
        assert store.read("SELECT count(*) FROM samples") == [(BATCH,)]
