"""Minutes, exports and what is forgotten, on a real store."""

import io
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from kvlogd import days, retention
from kvlogd.errors import StoreError
from kvlogd.model import AlertEvent, AlertKey, AlertState, Event, EventKind, Gap, Severity
from kvlogd.reading import GpuSample, HostSample
from kvlogd.retention import Keep
from kvlogd.rows import Batch, Memory, Position
from kvlogd.sheet import Format
from kvlogd.sqlgate import answer
from kvlogd.store import Store
from tests.test_store import ENGINE, RUN, rows, sample

DAY_S = 86400.0
T0 = 20_000 * DAY_S  # midnight
KEEP = Keep(raw_s=3 * DAY_S, minutes_s=10 * DAY_S)
SUMS = "SELECT count(*), sum(n) FROM minutes"
LEFT = "SELECT count(*), min(ts)::VARCHAR, (SELECT count(*) FROM minutes) FROM samples"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kv.duckdb") as opened:
        opened.commit(Batch(engines=[ENGINE], runs=[RUN]))
        yield opened


def fill(store: Store, first_s: float, count: int, every_s: float = 20.0, run: int = 7) -> None:
    many = [sample(0, ts_s=first_s + every_s * i, running=i % 3, kv_usage=i % 5 / 10) for i in range(count)]
    store.commit(Batch(samples=many, sample_runs=[run] * count))


def files(store: Store) -> list[str]:
    return sorted(path.name for path in (store.path.parent / "export").glob("*"))


def test_each_minute_that_is_over_is_filled_once(store: Store) -> None:
    fill(store, T0, 31)  # ten minutes and one record
    retention.tend(store, T0 + 600, KEEP)
    assert rows(store, SUMS) == [(9, 27)]
    retention.tend(store, T0 + 600, KEEP)
    assert rows(store, SUMS) == [(9, 27)]
    fill(store, T0 + 620, 5)
    retention.tend(store, T0 + 3600, KEEP)
    assert rows(store, SUMS) == [(10, 30)]
    found = rows(store, "SELECT n, kv_usage_min, kv_usage_avg, kv_usage_max, running_avg, running_max FROM minutes")
    assert found[0] == (3, 0.0, 0.1, 0.2, 1.0, 2)


def test_it_goes_on_where_it_was_after_a_restart(store: Store) -> None:
    fill(store, T0, 31)
    retention.tend(store, T0 + 600, KEEP)
    store.close()
    with Store.open(store.path) as again:
        fill(again, T0 + 620, 5)
        retention.tend(again, T0 + 3600, KEEP)
        assert rows(again, SUMS) == [(10, 30)]


def test_rows_that_come_late_are_counted_once(store: Store) -> None:
    fill(store, T0, 31)
    retention.tend(store, T0 + 600, KEEP)
    fill(store, T0 + 5, 10)
    retention.tend(store, T0 + 600, KEEP)
    assert rows(store, SUMS) == [(9, 37)]
    assert rows(store, "SELECT sum(n) FROM engine_minutes") == [(41,)]


def test_rows_that_come_late_for_a_day_that_is_gone_join_its_minutes(store: Store) -> None:
    fill(store, T0, 30)
    fill(store, T0 + 6 * DAY_S, 30)
    fill(store, T0 + 8 * DAY_S, 30)
    retention.tend(store, T0 + 8 * DAY_S + 600, KEEP)
    assert rows(store, "SELECT count(*) FROM samples") == [(60,)]
    assert rows(store, "SELECT n, running_avg FROM minutes ORDER BY minute LIMIT 1") == [(3, 1.0)]
    store.commit(Batch(samples=[sample(0, ts_s=T0 + 7, running=9)], sample_runs=[7]))
    retention.tend(store, T0 + 8 * DAY_S + 600, KEEP)
    assert rows(store, "SELECT count(*) FROM samples") == [(60,)]
    assert rows(store, "SELECT n, running_avg, running_max FROM minutes ORDER BY minute LIMIT 1") == [(4, 3.0, 9)]


def test_the_view_of_minutes_reads_on_over_the_border(store: Store) -> None:
    before = "SELECT minute, engine, n, round(kv_usage_avg, 5), round(running_avg, 2) FROM engine_minutes ORDER BY ALL"
    for day in range(6):
        fill(store, T0 + day * DAY_S, 30)
    seen = rows(store, before)
    retention.tend(store, T0 + 5 * DAY_S + 600, KEEP)
    assert rows(store, LEFT)[0][:2] == (120, "2024-10-06 00:00:00+00")
    assert rows(store, before) == seen
    assert len(seen) == 60


def test_what_is_kept_for_good_stays(store: Store) -> None:
    key = AlertKey("kv-leak", "vllm.log/0", 7)
    alert = AlertEvent(key, AlertState.FIRING, "v", Severity.INFO, "vllm.log", 0, T0, T0, None, {})
    places = [
        Position("vllm.log", "old", 1, done=True, seen_s=T0),
        Position("vllm.log", "live", 1, seen_s=T0),
        Position("vllm.log", "new", 1, done=True, seen_s=T0 + 90 * DAY_S),
    ]
    event = Event(T0, EventKind.STOP)
    undated = Event(None, EventKind.SERVER_READY)
    store.commit(
        Batch(
            runs=[RUN._replace(ended_s=T0)],
            alert_events=[alert],
            gaps=[Gap("vllm.log", T0, "cut", 1)],
            positions=places,
            events=[(1, 7, event), (1, 7, undated)],
            gpu_samples=[GpuSample(T0, "0", 0.5, None, None, None, None, None)],
            host_samples=[HostSample(T0, "vllm.log", 5.0)],
        )
    )
    fill(store, T0, 3)
    fill(store, T0 + 98 * DAY_S, 30)
    fill(store, T0 + 100 * DAY_S, 30)
    store.commit(
        Batch(
            positions=[Position("gone.log", "gone", 1, done=True, seen_s=T0)],
            memories=[Memory(log, "code", b"") for log in ("vllm.log", "gone.log", "metrics only")],
        )
    )
    retention.tend(store, T0 + 100 * DAY_S + 600, KEEP)
    assert sorted(one.source for one in store.memories()) == ["metrics only", "vllm.log"]
    for table, left in (("events", 0), ("gpu_samples", 0), ("host_samples", 0), ("samples", 60), ("alert_events", 1),
                        ("runs", 1), ("engines", 1), ("gaps", 1)):  # fmt: skip
        assert rows(store, f"SELECT count(*) FROM {table}") == [(left,)], table
    assert sorted(store.positions()) == ["live", "new"]
    assert rows(store, "SELECT count(*) FROM minutes WHERE minute < to_timestamp(1800000000)") == [(20 - 2,)]


def stored(store: Store) -> int:
    ((count,),) = store.read("SELECT count(*) FROM samples")
    return int(count)


@pytest.mark.parametrize("ahead_days", [1, 40, 365])
def test_a_clock_that_jumped_ahead_deletes_nothing_more(store: Store, ahead_days: int) -> None:
    for day in range(4):
        fill(store, T0 + day * DAY_S, 30)
    retention.tend(store, T0 + 3 * DAY_S + 600, KEEP)
    kept = stored(store)
    retention.tend(store, T0 + (3 + ahead_days) * DAY_S, KEEP)
    assert stored(store) in (kept, kept - 30)
    # the server's clock jumped as well, so that its log says the same
    fill(store, T0 + (3 + ahead_days) * DAY_S, 30)
    kept = stored(store)
    retention.tend(store, T0 + (3 + ahead_days) * DAY_S + 600, KEEP)
    assert stored(store) in (kept, kept - 30)


def test_time_is_trusted_no_further_than_the_records_go() -> None:
    day = days.DAY_S
    assert days.trusted_s([], 5.0) is None
    assert days.trusted_s([10, 11], 11.5 * day) == 11.5 * day
    assert days.trusted_s([10, 11], 400 * day) == 12 * day
    assert days.trusted_s([10, 11, 376], 376.5 * day) == 12 * day
    assert days.trusted_s([10, 11, 376, 377, 378], 378.5 * day) == 378.5 * day
    assert days.trusted_s([376], 376.5 * day) == 376.5 * day


def test_each_day_is_exported_once_it_is_over(store: Store) -> None:
    fill(store, T0, 30)
    fill(store, T0 + DAY_S, 30)
    retention.tend(store, T0 + DAY_S + 600, KEEP)
    small = ["engines.parquet", "gaps.parquet", "positions.parquet", "runs.parquet"]
    assert files(store) == [*small, "samples-2024-10-04.parquet"]
    # downtime of a day, and late rows
    fill(store, T0 + 3 * DAY_S, 30)
    fill(store, T0 + 30, 1)
    retention.tend(store, T0 + 3 * DAY_S + 600, KEEP)
    assert files(store) == [*small, "samples-2024-10-04.parquet", "samples-2024-10-05.parquet"]
    with duckdb.connect() as con:
        first_day = store.path.parent / "export" / "samples-2024-10-04.parquet"
        one = f"SELECT count(*), min(ts)::VARCHAR, max(running) FROM '{first_day}'"
        con.execute("SET TimeZone = 'UTC'")
        assert con.execute(one).fetchall() == [(31, "2024-10-04 00:00:00+00", 2)]
        assert con.execute(f"SELECT label FROM '{store.path.parent}/export/engines.parquet'").fetchall() == [
            ("vllm.log/0",)
        ]
    old = (store.path.parent / "export" / "samples-2024-10-04.parquet").stat()
    retention.tend(store, T0 + 4 * DAY_S, KEEP)
    assert (store.path.parent / "export" / "samples-2024-10-04.parquet").stat() == old


def test_users_sql_cannot_write_or_read_where_the_export_may(store: Store) -> None:
    fill(store, T0, 30)
    fill(store, T0 + DAY_S, 30)
    retention.tend(store, T0 + DAY_S + 600, KEEP)
    before = files(store)
    folder = store.path.parent / "export"
    for sql in (
        f"COPY samples TO '{folder}/mine.parquet'",
        f"EXPLAIN ANALYZE COPY samples TO '{folder}/mine.parquet'",
        f"SELECT * FROM read_parquet('{folder}/{before[-1]}')",
        f"SELECT * FROM '{folder}/{before[-1]}'",
        f"SELECT * FROM glob('{folder}/*')",
    ):
        with pytest.raises(StoreError, match="refused"):
            answer(store, sql, Format.CSV, io.StringIO())
    assert files(store) == before


def test_exports_go_with_the_minutes(store: Store) -> None:
    for day in range(14):
        fill(store, T0 + day * DAY_S, 3)
        retention.tend(store, T0 + day * DAY_S + 600, KEEP)
    dated = [name for name in files(store) if name.startswith("samples-")]
    assert dated == [f"samples-{days.name(20_000 + day)}.parquet" for day in range(3, 13)]
    retention.tend(store, T0 + 13 * DAY_S + 900, KEEP)
    assert [name for name in files(store) if name.startswith("samples-")] == dated


def test_a_long_backlog_is_done_in_steps_and_nothing_is_forgotten_before(store: Store) -> None:
    for day in range(20):
        fill(store, T0 + day * DAY_S, 3)
    now_s = T0 + 19 * DAY_S + 600
    assert not retention.tend(store, now_s, KEEP)
    assert stored(store) == 60
    assert not retention.tend(store, now_s, KEEP)
    assert retention.tend(store, now_s, KEEP)
    assert stored(store) == 3 * 4
    assert len([name for name in files(store) if name.startswith("samples-")]) == 9


def test_an_export_that_fails_stops_nothing_else(store: Store) -> None:
    (store.path.parent / "export").write_text("in the way")
    for day in range(6):
        fill(store, T0 + day * DAY_S, 30)
    with pytest.raises(StoreError, match="cannot export"):
        retention.tend(store, T0 + 5 * DAY_S + 600, KEEP)
    assert stored(store) == 120
