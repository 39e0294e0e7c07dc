"""The store on real files: round trips, all or nothing, locks, damage, migration, a full disk."""

import hashlib
import math
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd.alerts import Standing
from kvlogd.errors import StoreError
from kvlogd.model import AlertEvent, AlertKey, AlertState, Engine, Event, EventKind, Gap, Run, Severity, Stats
from kvlogd.reading import GpuSample, HostSample
from kvlogd.rows import Batch, Memory, Position
from kvlogd.schema import SCHEMA_VERSION
from kvlogd.store import Store

T0 = 1_764_400_000.0
ENGINE = Engine(1, "vllm.log", 0, "vllm.log/0")
RUN = Run(7, 1, 1, T0, True, model="m", kv_tokens=32768, blocks=2048, block_size=16, gpu_memory_utilization=0.9)
KEY = AlertKey("kv-leak", "vllm.log/0", 7)


def sample(i: int, **more: Any) -> Stats:
    return Stats(T0 + 10 * i + 0.123, None, 0, None, 12.5, 300.25, 8, 2, 0.25)._replace(**more)


def samples(n: int) -> Batch:
    return Batch(samples=[sample(i) for i in range(n)], sample_runs=[7] * n, positions=[Position("vllm.log", "f", n)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        opened.commit(Batch(engines=[ENGINE], runs=[RUN]))
        yield opened


def rows(store: Store, sql: str) -> list[tuple[object, ...]]:
    with store.query(sql, limit_s=30) as answer:
        return list(answer.rows)


def test_everything_comes_back_as_it_went_in(path: Path) -> None:
    event = AlertEvent(
        KEY, AlertState.FIRING, "kv-leak", Severity.CRITICAL, "vllm.log", 0, T0 + 9, T0, -0.02, {"slope": -0.02}
    )
    facts = ("kv-leak", Severity.CRITICAL, "vllm.log", 0, -0.02, {"n": 3})
    standing = Standing(KEY, AlertState.FIRING, T0 + 9, T0, T0 + 9, 4.5, None, *facts)
    place = Position("vllm.log", "f", 42, "1024:ab", "512:cd", None, True, T0)
    memory = Memory("vllm.log", "code", b"\x00\xff")
    gap = Gap("vllm.log", None, "line too long", 2, 1 << 40, T0)
    with Store.open(path) as store:
        store.commit(
            Batch([ENGINE], [RUN], [sample(0), sample(1)], [7, 7], alert_events=[event], standings=[standing],
                  gaps=[gap], positions=[place], memories=[memory])
        )  # fmt: skip
    with Store.open(path, read_only=True) as store:
        assert store.engines() == [ENGINE]
        assert store.runs() == [RUN]
        assert list(store.samples_of(7)) == [sample(0), sample(1)]
        assert list(store.samples_of(7, T0 + 5)) == [sample(1)]
        assert store.alert_events("vllm.log") == [event]
        assert store.alert_events("other") == []
        assert store.standings() == [standing]
        assert store.places() == [place]
        assert store.memories() == [memory]
        assert store.gaps() == [gap]
        assert store.positions() == {"f": 42}
        assert store.positions("other") == {}


counts = st.one_of(st.none(), st.integers(0, 2**40))
shares = st.one_of(st.none(), st.floats(0, 1))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(
            Stats, st.integers(0, 4 * 10**15).map(lambda us: us / 1e6), st.none(), st.just(0), counts,
            st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0, 1),
            counts, counts, counts, counts, shares, shares, shares, shares, counts, counts, counts,
        ),
        min_size=1, max_size=600,
    )
)  # fmt: skip
def test_samples_survive_the_trip_in_their_order(tmp_path_factory: pytest.TempPathFactory, many: list[Stats]) -> None:
    with Store.open(tmp_path_factory.mktemp("s") / "kv.duckdb") as store:
        store.commit(Batch([ENGINE], [RUN], many, [7] * len(many)))
        back = list(store.samples_of(7))
    assert [s[1:] for s in back] == [s[1:] for s in many]
    assert [s.ts_s for s in back] == pytest.approx([s.ts_s for s in many], abs=1e-6)


def test_unknown_is_null_and_no_nan_gets_in(store: Store) -> None:
    many = [sample(0, prefix_hit_rate=0.5), sample(1), sample(2, prompt_tps=math.nan, preemptions=4)]
    store.commit(Batch(samples=many, sample_runs=[7, 7, 7]))
    assert rows(store, "SELECT prefix_hit_rate, prompt_tps, preemptions, swapped FROM samples") == [
        (0.5, 12.5, None, None),
        (None, 12.5, None, None),
        (None, None, 4, None),
    ]


def test_events_and_readings_are_stored(store: Store) -> None:
    events = [
        (1, 7, Event(T0, EventKind.ENGINE_START, 99, 0, {"tp": 2, "bad": math.inf}, "0.11.0", "m")),
        (None, None, Event(None, EventKind.SERVER_READY)),
    ]
    gpu = GpuSample(T0, "0", 0.5, 1024.0, 81920.0, None, None, None)
    store.commit(Batch(events=events, gpu_samples=[gpu], host_samples=[HostSample(T0, None, 512.0)]))
    assert rows(store, "SELECT kind, engine_id, pid, numbers, version FROM events ORDER BY ALL") == [
        ("engine_start", 1, 99, '{"tp":2}', "0.11.0"),
        ("server_ready", None, None, "{}", None),
    ]
    assert rows(store, "SELECT ts, gpu, util_share, power_w FROM gpu_samples") == [
        ("2025-11-29T07:06:40+00:00", "0", 0.5, None)
    ]
    assert rows(store, "SELECT rss_mib, source FROM host_samples") == [(512.0, None)]


def test_rows_with_a_key_are_replaced_and_forgotten(store: Store) -> None:
    other = Run(8, 1, 2, T0 + 50, True)
    store.commit(Batch(runs=[RUN._replace(ended_s=T0 + 40, end_reason="stop"), other, other._replace(number=3)]))
    assert store.runs() == [RUN._replace(ended_s=T0 + 40, end_reason="stop"), other._replace(number=3)]
    key = AlertKey("r", "host", None)
    host = Standing(key, AlertState.PENDING, T0, T0, T0, 0.0, T0 + 1, "r", Severity.INFO, "", None, None, {})
    store.commit(Batch(standings=[host]))
    store.commit(Batch(standings=[host._replace(state=AlertState.FIRING)]))
    assert store.standings() == [host._replace(state=AlertState.FIRING)]
    store.commit(Batch(over=[host.key]))
    assert store.standings() == []


def test_views_answer_the_first_questions(store: Store) -> None:
    store.commit(samples(12))
    fired = AlertEvent(KEY, AlertState.FIRING, "kv-leak", Severity.WARNING, "vllm.log", 0, T0, T0, None, {})
    louder = fired._replace(severity=Severity.CRITICAL, at_s=T0 + 30)
    cleared = fired._replace(state=AlertState.RESOLVED, at_s=T0 + 60, reason="cleared")
    again = fired._replace(at_s=T0 + 90)
    store.commit(Batch(alert_events=[fired, louder, cleared, again]))
    assert rows(store, "SELECT DISTINCT engine, free_share, free_blocks, tokens_in_use, load FROM kv") == [
        ("vllm.log/0", 0.75, 1536.0, 8192.0, 8)
    ]
    assert rows(store, "SELECT n, kv_usage_max, running_avg FROM engine_minutes ORDER BY minute") == [
        (2, 0.25, 8.0),
        (6, 0.25, 8.0),
        (4, 0.25, 8.0),
    ]
    history = rows(store, "SELECT severity, epoch(firing_at), epoch(lasted) FROM alert_history ORDER BY firing_at")
    assert history == [("warning", T0, 60.0), ("warning", T0 + 90, None)]


@pytest.mark.parametrize(
    "bad",
    [
        Batch(samples=[sample(0)], sample_runs=[99], positions=[Position("vllm.log", "f", 1)]),
        Batch(samples=[sample(0)], sample_runs=[], positions=[Position("vllm.log", "f", 1)]),
        Batch(samples=[sample(0, running=2**70)], sample_runs=[7], positions=[Position("vllm.log", "f", 1)]),
        Batch(
            positions=[Position("vllm.log", "f", 1)],
            gpu_samples=[GpuSample(math.inf, "0", None, None, None, None, None, None)],
        ),
    ],
    ids=["unknown run", "no run", "number too large", "time too large"],
)
def test_a_batch_that_fails_leaves_nothing_behind(store: Store, bad: Batch) -> None:
    with pytest.raises(StoreError, match="read the positions again"):
        store.commit(bad)
    assert store.positions() == {}
    assert list(store.samples_of(7)) == []
    store.commit(samples(3))
    assert store.positions() == {"f": 3}


def test_a_full_disk_is_an_error_with_nothing_half_written(store: Store, path: Path) -> None:
    store.commit(samples(3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        size = Path(f"{path}.wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2000, limits[1]))
        with pytest.raises(StoreError, match="cannot commit"):
            store.commit(samples(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert store.positions() == {"f": 3}
    assert len(list(store.samples_of(7))) == 3
    store.commit(samples(4))
    assert len(list(store.samples_of(7))) == 7


CHILD = """
import sys
from pathlib import Path
from tests.test_store import Batch, ENGINE, RUN, Store, samples
store = Store.open(Path(sys.argv[1]))
store.commit(Batch(engines=[ENGINE], runs=[RUN]))
store.commit(samples(100))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def writer(path: Path) -> Iterator["subprocess.Popen[str]"]:
    root = Path(__file__).parent.parent
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def test_another_writer_or_reader_is_told_who_has_it(path: Path, writer: "subprocess.Popen[str]") -> None:
    for read_only in (False, True):
        with pytest.raises(StoreError, match=rf"process {writer.pid} has the store open.*stop that process"):
            Store.open(path, read_only=read_only)


def test_what_was_committed_survives_a_kill(path: Path, writer: "subprocess.Popen[str]") -> None:
    writer.kill()
    writer.wait()
    with Store.open(path) as store:
        assert store.positions() == {"f": 100}
        assert len(list(store.samples_of(7))) == 100


def test_a_second_writer_in_the_same_process_is_refused(store: Store, path: Path) -> None:
    with pytest.raises(StoreError, match="has the store open"):
        Store.open(path)


def test_closing_lets_the_next_one_in_and_leaves_one_file(path: Path) -> None:
    with Store.open(path) as store:
        store.commit(Batch([ENGINE], [RUN]))
        assert Path(f"{path}.wal").exists()
        assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o640}
    assert not Path(f"{path}.wal").exists()
    with Store.open(path) as store:
        assert store.runs() == [RUN]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_text_file_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("no database\n" * 1000)
    before = digest(path)
    with pytest.raises(StoreError, match=r"is no DuckDB file.*left as it is"):
        Store.open(path)
    assert digest(path) == before


def test_a_foreign_database_is_refused_and_left_alone(path: Path) -> None:
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE t (i INTEGER)")
    before = digest(path)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="no kvlogd store"):
            Store.open(path, read_only=read_only)
    assert digest(path) == before


@pytest.mark.parametrize("damage", [0, 4096, 8192])
def test_a_damaged_header_is_one_line_with_a_mend(path: Path, damage: int) -> None:
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[damage + 20] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"restore a snapshot|give another path") as caught:
        Store.open(path)
    assert "\n" not in str(caught.value)


def stamp(path: Path, version: int) -> None:
    Store.open(path).close()
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE meta SET value = ?", [str(version)])


def test_a_newer_store_is_refused_untouched(path: Path) -> None:
    stamp(path, SCHEMA_VERSION + 1)
    before = digest(path)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="install a newer kvlogd"):
            Store.open(path, read_only=read_only)
    assert digest(path) == before


def test_an_older_store_is_migrated_in_one_transaction(path: Path) -> None:
    stamp(path, SCHEMA_VERSION - 1)
    with pytest.raises(StoreError, match="old schema version"):
        Store.open(path, read_only=True)
    with pytest.raises(StoreError, match="no way leads"):
        Store.open(path, migrations={})
    with pytest.raises(StoreError, match="nonsense"):
        Store.open(path, migrations={SCHEMA_VERSION - 1: ("CREATE TABLE extra (i INTEGER)", "nonsense")})
    with Store.open(path, migrations={SCHEMA_VERSION - 1: ("CREATE TABLE extra (i INTEGER)",)}) as store:
        assert rows(store, "SELECT value FROM meta") == [(str(SCHEMA_VERSION),)]
        assert rows(store, "SELECT count(*) FROM extra") == [(0,)]


def test_a_missing_file_or_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no such store.*--db"):
        Store.open(tmp_path / "none.duckdb", read_only=True)
    with pytest.raises(StoreError, match="create the folder"):
        Store.open(tmp_path / "none" / "kv.duckdb")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_half_way_does_not_stop_a_failed_commit_from_reopening(store: Store) -> None:
    store.commit(samples(10_000))
    reading = store.samples_of(7)
    next(reading)
    with pytest.raises(StoreError):
        store.commit(Batch(samples=[sample(0)], sample_runs=[99]))
    with pytest.raises(StoreError):
        list(reading)
    assert len(list(store.samples_of(7))) == 10_000


def test_a_query_that_takes_too_long_is_ended(store: Store) -> None:
    sql = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 3"
    with pytest.raises(StoreError, match=r"longer than 0\.2 s.*narrow it down"), store.query(sql, limit_s=0.2) as found:
        list(found.rows)
    assert rows(store, "SELECT 1") == [(1,)]


def test_a_file_of_this_duckdb_is_one_that_1_5_reads(store: Store) -> None:
    ((tags,),) = rows(store, "SELECT tags FROM duckdb_databases() WHERE database_name = 'kv'")
    assert "v1.5" in str(tags)


def test_a_killed_writers_log_is_read_without_writing(path: Path, writer: "subprocess.Popen[str]") -> None:
    writer.kill()
    writer.wait()
    before = digest(path), digest(Path(f"{path}.wal"))
    with Store.open(path, read_only=True) as store:
        assert store.positions() == {"f": 100}
    assert (digest(path), digest(Path(f"{path}.wal"))) == before
