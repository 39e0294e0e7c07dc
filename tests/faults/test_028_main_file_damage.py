"""Scenario 28: the main file is damaged; it is refused by name, with the mend, and never written over."""

import random
from pathlib import Path

import pytest

from kvlogd.errors import StoreError
from kvlogd.rows import Batch
from kvlogd.store import Store
from tests.test_store import ENGINE, RUN, samples

BLOCK = 4096


def filled(path: Path) -> None:
    with Store.open(path) as store:
        store.commit(Batch(engines=[ENGINE], runs=[RUN]))
        store.commit(samples(20_000))


def damage(path: Path, block: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[block * BLOCK : (block + 1) * BLOCK] = random.Random(block).randbytes(BLOCK)
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_028_a_file_that_cannot_be_opened_is_left_as_it_is(tmp_path: Path, block: int) -> None:
    path = tmp_path / "kv.duckdb"
    filled(path)
    found = damage(path, block)
    Path(f"{path}.wal").write_bytes(b"as it was")
    with pytest.raises(StoreError) as caught:
        Store.open_or_recover(path, 1_764_500_000.0)
    assert str(path) in str(caught.value)
    assert "kvlogd store salvage" in str(caught.value) or "is no DuckDB file" in str(caught.value)
    assert path.read_bytes() == found
    assert Path(f"{path}.wal").read_bytes() == b"as it was"
    assert {file.name for file in tmp_path.iterdir()} == {"kv.duckdb", "kv.duckdb.lock", "kv.duckdb.wal"}


def test_028_a_block_that_cannot_be_read_says_so_and_the_rest_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "kv.duckdb"
    filled(path)
    sound = path.read_bytes()
    said = []
    for block in range(3, len(sound) // BLOCK, 16):
        path.write_bytes(sound)
        damage(path, block)
        said.append(complaint(path))
    met = [text for text in said if text]
    assert met
    assert [text for text in met if "kvlogd store salvage" not in text] == []


def complaint(path: Path) -> str:
    try:
        with Store.open(path) as store:
            assert len(list(store.samples_of(7))) == 20_000
    except StoreError as error:
        return str(error)
    return ""
