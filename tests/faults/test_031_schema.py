"""Scenario 31: a store of the version before is lifted in one transaction; a newer one is refused untouched.

`v1.duckdb.gz` was written by kvlogd's commit 1270639, the last with schema version 1, `v2.duckdb.gz` by b2a7ea1, the
last with version 2.
"""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from kvlogd.errors import StoreError
from kvlogd.model import AlertState, Gap
from kvlogd.rows import Batch, Memory, Position
from kvlogd.schema import SCHEMA_VERSION, TABLES, VIEWS
from kvlogd.store import Store
from tests.test_store import RUN, T0, digest, rows, sample

ROOT = Path(__file__).parent.parent.parent
OLD = ROOT / "tests" / "data" / "stores"
COUNTS = {"samples": 500, "events": 1, "alert_events": 2, "gaps": 1, "gpu_samples": 1, "host_samples": 1, "runs": 1}


def unpacked(version: int, folder: Path) -> Path:
    target = folder / "kv.duckdb"
    with gzip.open(OLD / f"v{version}.duckdb.gz") as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return target


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return unpacked(1, tmp_path)


def version(path: Path) -> str:
    with duckdb.connect(str(path)) as con:
        ((found,),) = con.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    return str(found)


def test_031_every_row_of_the_old_store_is_there(path: Path) -> None:
    assert version(path) == "1"
    with Store.open(path) as store:
        for table, count in COUNTS.items():
            assert rows(store, f"SELECT count(*) FROM {table}") == [(count,)], table
        assert store.positions() == {"f": 500}
        assert store.places() == [Position("vllm.log", "f", 500, done=None)]  # type: ignore[arg-type]
        assert store.gaps() == [Gap("vllm.log", T0 + 5, "line too long", 2)]
        assert [event.state for event in store.alert_events()] == [AlertState.FIRING, AlertState.RESOLVED]
        assert rows(store, "SELECT sum(n), min(engine) FROM engine_minutes") == [(500, "vllm.log/0")]
        store.commit(Batch(samples=[sample(600)], sample_runs=[7], memories=[Memory("vllm.log", "c", b"m")]))
        assert store.runs()[0].run_id == RUN.run_id
    with Store.open(path, read_only=True) as store:
        assert rows(store, "SELECT count(*) FROM samples") == [(501,)]


def test_031_every_row_of_version_2_is_there(tmp_path: Path) -> None:
    with Store.open(unpacked(2, tmp_path)) as store:
        for table in ("events", "alert_events", "alerts", "gaps", "gpu_samples", "host_samples", "positions"):
            assert rows(store, f"SELECT count(*) FROM {table}") == [(1,)], table
        [standing] = store.standings()
        assert (standing.state, standing.evidence) == (AlertState.FIRING, {"shift": 0.1})
        assert rows(store, "SELECT count(*) FROM kv") == [(200,)]


@pytest.mark.parametrize("old_version", [1, 2])
def test_031_a_migrated_store_has_the_tables_of_a_new_one(old_version: int, tmp_path: Path) -> None:
    path = unpacked(old_version, tmp_path)
    sql = "SELECT table_name, column_name, data_type, is_nullable, comment FROM duckdb_columns() WHERE NOT internal"
    with Store.open(path) as old, Store.open(tmp_path / "new.duckdb") as new:
        migrated, fresh = set(rows(old, sql)), set(rows(new, sql))
    assert {row[0] for row in migrated} == {what.name for what in (*TABLES, *VIEWS)}
    # a comment may be worded better since
    assert {row[:4] for row in migrated} == {row[:4] for row in fresh}


KILLED = """
import os, signal, sys
from pathlib import Path
from kvlogd import schema
from kvlogd.store import Store
steps = list(schema.migrations()[1])
half = int(sys.argv[2])
class Deadly(list):
    def __iter__(self):
        for at, step in enumerate(steps):
            if at == half:
                os.kill(os.getpid(), signal.SIGKILL)
            yield step
schema.upgrade = lambda found, migrations: Deadly(steps)
Store.open(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("half", [1, 5, 20])
def test_031_a_kill_in_the_middle_leaves_the_old_version(path: Path, half: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(half)], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert version(path) == "1"
    with Store.open(path) as store:
        assert rows(store, "SELECT count(*) FROM samples") == [(500,)]
    assert version(path) == str(SCHEMA_VERSION)


def test_031_a_newer_store_is_refused_untouched(path: Path) -> None:
    Store.open(path).close()
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [str(SCHEMA_VERSION + 1)])
    before = digest(path)
    with pytest.raises(StoreError, match="install a newer kvlogd"):
        Store.open_or_recover(path, T0)
    assert digest(path) == before
