"""Scenario 30: 90 days of 16 engines; once retention is reached the file does not grow any more."""

from pathlib import Path

from kvlogd import retention
from kvlogd.model import Engine, Run
from kvlogd.rows import Batch, Position
from kvlogd.store import Store
from tests.test_store import sample

DAY_S = 86400
T0 = 20_000.0 * DAY_S
ENGINES = [Engine(i, f"s{i}", 0, f"s{i}/0") for i in range(1, 17)]
RUNS = [Run(i, i, 1, T0, True) for i in range(1, 17)]
EVERY_S = 600
DAYS, RAW_DAYS, MINUTES_DAYS = 90, 12, 40


def test_030_the_file_is_flat_once_retention_is_reached(tmp_path: Path) -> None:
    count = DAY_S // EVERY_S
    sizes = []
    with Store.open(tmp_path / "kv.duckdb") as store:
        store.commit(Batch(engines=ENGINES, runs=RUNS))
        for day in range(DAYS):
            start_s = T0 + day * DAY_S
            values = [
                sample(0, ts_s=start_s + EVERY_S * i, kv_usage=(i * 37 + day) % 1000 / 1000, running=i % 50,
                       prompt_tps=(i * 7919) % 50_000 / 10, generation_tps=(i * 104_729 + day) % 9000 / 10)
                for i in range(count)
            ]  # fmt: skip
            many = [value for value in values for _ in ENGINES]
            runs = [run.run_id for _ in values for run in RUNS]
            store.commit(Batch(samples=many, sample_runs=runs, positions=[Position("s1", "f", day)]))
            keep = retention.Keep(RAW_DAYS * DAY_S, MINUTES_DAYS * DAY_S)
            retention.tend(store, start_s + DAY_S - 60, keep)
            sizes.append(store.path.stat().st_size)
        ((oldest_s,),) = store.read("SELECT epoch(min(ts)) FROM samples")
        assert oldest_s == T0 + (DAYS - 1 - RAW_DAYS) * DAY_S
        assert store.read("SELECT count(DISTINCT time_bucket(INTERVAL 1 DAY, minute)) FROM minutes") == [
            (MINUTES_DAYS + 1,)
        ]
        constraints = store.read("SELECT count(*) FROM duckdb_indexes()")
        assert constraints == [(0,)]
    reached = MINUTES_DAYS + 5
    assert max(sizes[reached:]) <= 1.1 * sizes[reached], [size >> 10 for size in sizes]
