"""Scenario 25: the write-ahead log is cut, flipped, zeroed or gone; the store starts, and says what it gave up."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlogd.errors import StoreError
from kvlogd.recovery import MOST_ASIDE
from kvlogd.rows import Position
from kvlogd.store import Store
from tests.test_store import samples

ROOT = Path(__file__).parent.parent.parent
NOW_S = 1_764_500_000.0
COMMITS, BATCH, BEFORE = 20, 50, 100
WRITER = f"""
import os, sys
from pathlib import Path
from tests.test_store import Batch, ENGINE, Position, RUN, Store, samples
store = Store.open(Path(sys.argv[1]))
store.commit(Batch(engines=[ENGINE], runs=[RUN]))
store.commit(samples({BEFORE}))
store.checkpoint()
for i in range(1, {COMMITS} + 1):
    store.commit(samples({BATCH})._replace(positions=[Position("vllm.log", "f", {BEFORE} + {BATCH} * i)]))
os._exit(0)
"""


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "kv.duckdb"
    subprocess.run([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, check=True)
    return path


@pytest.fixture
def path(left_behind: Path, tmp_path: Path) -> Path:
    for suffix in ("", ".wal"):
        shutil.copy(f"{left_behind}{suffix}", tmp_path / f"kv.duckdb{suffix}")
    return tmp_path / "kv.duckdb"


def flip(file: Path, share: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * share)] ^= 0xFF
    file.write_bytes(content)


def zero_last_page(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4096] + bytes(4096))


def add_zeros(file: Path) -> None:
    file.write_bytes(file.read_bytes() + bytes(4096))


def put_garbage(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 40)


def refusal(path: Path) -> str:
    """Return what a plain opening of a copy says."""
    folder = path.parent.with_name(f"{path.parent.name}-copy")
    shutil.copytree(path.parent, folder)
    try:
        Store.open(folder / path.name).close()
    except StoreError as error:
        return str(error)
    return ""


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": lambda wal: os.truncate(wal, wal.stat().st_size - 7),
    "flipped at the start": lambda wal: flip(wal, 0.001),
    "flipped in the middle": lambda wal: flip(wal, 0.5),
    "flipped near the end": lambda wal: flip(wal, 0.97),
    "last page zeroed": zero_last_page,
    "zeros behind it": add_zeros,
    "nothing but garbage": put_garbage,
    "gone": lambda wal: wal.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_025_it_starts_with_rows_and_position_in_step(path: Path, damage: Callable[[Path], None]) -> None:
    wal = Path(f"{path}.wal")
    damage(wal)
    found = (path.read_bytes(), wal.read_bytes() if wal.exists() else b"")
    complaint = refusal(path)
    is_refused = bool(complaint)
    assert not is_refused or "kvlogd run" in complaint
    store, given_up = Store.open_or_recover(path, NOW_S)
    with store:
        count = len(list(store.samples_of(7)))
        assert store.positions() == {"f": count}
        assert count >= BEFORE
        assert (count - BEFORE) % BATCH == 0
        assert bool(given_up) == is_refused
        assert [gap.lost_bytes for gap in store.gaps()] == [each.lost_bytes for each in given_up]
        for each in given_up:
            assert 0 < each.lost_bytes <= len(found[1])
            assert [file.read_bytes() for file in each.aside] == list(found)
            assert [gap.until_s for gap in store.gaps()] == [NOW_S]
        # what is written now is there after the next start
        store.commit(samples(BATCH)._replace(positions=[Position("vllm.log", "f", count + BATCH)]))
    with Store.open(path) as store:
        assert store.positions() == {"f": count + BATCH}
        assert len(list(store.samples_of(7))) == count + BATCH
    kept = {file.name.split("corrupt-")[0] for file in path.parent.iterdir()}
    assert kept - {"kv.duckdb", "kv.duckdb.lock"} == ({"kv.duckdb.", "kv.duckdb.wal."} if is_refused else set())


def test_025_what_stands_before_the_damage_is_kept(path: Path) -> None:
    zero_last_page(Path(f"{path}.wal"))
    store, given_up = Store.open_or_recover(path, NOW_S)
    with store:
        assert len(given_up) == 1
        kept = store.positions()["f"]
        assert BEFORE + BATCH * (COMMITS - 3) <= kept < BEFORE + BATCH * COMMITS


def test_025_only_the_newest_copies_are_kept(path: Path) -> None:
    other = path.parent / "kv.duckdb.corrupt-by-hand"
    other.touch()
    before, wal = path.read_bytes(), Path(f"{path}.wal")
    flip(wal, 0.97)
    damaged = wal.read_bytes()
    for number in range(MOST_ASIDE + 2):
        path.write_bytes(before)
        wal.write_bytes(damaged)
        # the clock is set back each time: what was set aside now stays all the same
        store, given_up = Store.open_or_recover(path, NOW_S - 3600 * number)
        store.close()
        assert all(file.exists() for one in given_up for file in one.aside)
    copies = {file.name.split("corrupt-")[1] for file in path.parent.iterdir() if "corrupt-2" in file.name}
    assert len(copies) == MOST_ASIDE
    assert other.exists()


def test_025_a_sound_store_is_opened_as_ever(path: Path) -> None:
    store, given_up = Store.open_or_recover(path, NOW_S)
    with store:
        assert given_up == ()
        assert store.positions() == {"f": BEFORE + BATCH * COMMITS}
        assert store.gaps() == []
        with pytest.raises(StoreError, match="has the store open"):
            Store.open_or_recover(path, NOW_S)
