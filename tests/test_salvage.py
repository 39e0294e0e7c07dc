"""A new store from a damaged one, on real damage."""

import random
from pathlib import Path

import pytest

from kvlogd import export, retention
from kvlogd.retention import Keep
from kvlogd.rows import Batch, Position
from kvlogd.salvage import salvage
from kvlogd.store import Store
from tests.command import kvlogd
from tests.test_store import ENGINE, RUN, digest, sample

DAY_S = 86400.0
T0 = 20_000 * DAY_S
DAYS, A_DAY = 6, 30_000
KEEP = Keep(30 * DAY_S, 400 * DAY_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of six days, the last of which is not exported."""
    noise = random.Random(1)
    with Store.open(tmp_path / "kv.duckdb") as store:
        store.commit(Batch(engines=[ENGINE], runs=[RUN]))
        for day in range(DAYS):
            many = [sample(0, ts_s=T0 + day * DAY_S + 2 * i, prompt_tps=noise.random() * 999) for i in range(A_DAY)]
            place = Position("vllm.log", "f", (day + 1) * A_DAY)
            store.commit(Batch(samples=many, sample_runs=[7] * A_DAY, positions=[place]))
            store.checkpoint()
        retention.tend(store, T0 + (DAYS - 1) * DAY_S + 70_000, KEEP)
    return tmp_path / "kv.duckdb"


def damage(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    at = int(len(content) * share)
    content[at : at + 4096] = random.Random(2).randbytes(4096)
    path.write_bytes(content)


def samples_of(path: Path) -> list[tuple[object, ...]]:
    with Store.open(path, read_only=True) as store:
        return store.read("SELECT count(*), count(DISTINCT ts), count(DISTINCT prompt_tps) FROM samples")


def in_place(path: Path) -> Path:
    target = Path(f"{path}.salvaged")
    assert target.is_file()
    path.unlink()
    return target.rename(path)


def test_exports_fill_what_a_damaged_block_took(path: Path) -> None:
    damage(path, 0.6)
    before = digest(path)
    told = kvlogd("store", "salvage", "--db", path)
    assert digest(path) == before
    assert "from the exports" in told.out
    assert told.status in (0, 1)
    with Store.open(in_place(path)) as store:
        ((count, distinct),) = store.read("SELECT count(*), count(DISTINCT ts) FROM samples")
        assert count == distinct == DAYS * A_DAY
        assert store.positions() == {"f": DAYS * A_DAY}
        assert store.runs() == [RUN]
        retention.tend(store, T0 + DAYS * DAY_S + 70_000, KEEP)


def test_without_exports_the_loss_is_a_part_and_is_told(path: Path) -> None:
    for file in export.folder_of(path).iterdir():
        file.unlink()
    damage(path, 0.6)
    told = kvlogd("store", "salvage", "--db", path)
    assert told.status == 1
    assert "lost at most" in told.out
    ((count, distinct, _),) = samples_of(in_place(path))
    assert count == distinct
    assert 0 < int(str(count)) < DAYS * A_DAY


def test_a_file_that_cannot_be_opened_comes_back_from_its_exports(path: Path) -> None:
    damage(path, 0.0)
    told = kvlogd("store", "salvage", "--db", path)
    assert told.status == 1
    with Store.open(in_place(path)) as store:
        ((count, distinct),) = store.read("SELECT count(*), count(DISTINCT ts) FROM samples")
        assert count == distinct == (DAYS - 1) * A_DAY
        assert store.positions() == {"f": DAYS * A_DAY}
        assert store.runs() == [RUN]


def test_a_sound_store_is_copied_whole(path: Path) -> None:
    sound = samples_of(path)
    got = salvage(path)
    assert got.has_positions
    assert {each.lost_at_most for each in got.tables} == {0}
    assert samples_of(got.target) == sound
    assert "is there already" in kvlogd("store", "salvage", "--db", path).complaint


def test_it_is_refused_while_a_daemon_has_the_store(path: Path) -> None:
    with Store.open(path):
        assert "has the store open" in kvlogd("store", "salvage", "--db", path).complaint
    assert not Path(f"{path}.salvaged").exists()
    assert "no such store" in kvlogd("store", "salvage", "--db", path.with_name("none")).complaint
