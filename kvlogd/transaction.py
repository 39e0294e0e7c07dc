"""Writes a batch into the tables, in a transaction that the store has opened.

Knows SQL and the columns, and no database: a connection is what can execute and register.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvlogd import alerting, arrow, bookkeeping, rows, statements, table, telemetry
from kvlogd.model import AlertKey, Stats
from kvlogd.rows import Batch

_IN = "kvlogd_incoming"
_AT_ONCE = 32
_CLOSE = (
    "DELETE FROM cases WHERE channel = ? AND topic = ? AND rule = ? AND scope = ? AND run_id IS NOT DISTINCT FROM ?"
)


class Connection(Protocol):
    """What of a DuckDB connection is used here."""

    def execute(self, query: str, parameters: Any = ..., /) -> Any: ...  # noqa: D102
    def register(self, view_name: str, python_object: object, /) -> Any: ...  # noqa: D102
    def unregister(self, view_name: str, /) -> Any: ...  # noqa: D102


def write(con: Connection, batch: Batch) -> None:
    """Write the batch in the transaction that is open. Raises ValueError, OverflowError for what does not fit."""
    _replace(con, telemetry.ENGINES, batch.engines)
    _replace(con, telemetry.RUNS, batch.runs)
    _append_samples(con, batch.samples, batch.sample_runs)
    _append(con, telemetry.EVENTS, [rows.event_values(*event) for event in batch.events])
    _append(con, alerting.ALERT_EVENTS, [rows.alert_event_values(event) for event in batch.alert_events])
    _forget(con, batch.over)
    _replace(con, alerting.ALERTS, [rows.standing_values(standing) for standing in batch.standings])
    for key in batch.closed:
        con.execute(_CLOSE, [key.channel, key.topic.value, *key.alert])
    _replace(con, alerting.CASES, [rows.case_values(case) for case in batch.cases])
    _replace(con, alerting.NOTICES, [rows.notice_values(notice) for notice in batch.notices])
    _replace(con, alerting.SILENCES, batch.silences)
    _append(con, bookkeeping.GAPS, batch.gaps)
    _replace(con, bookkeeping.POSITIONS, batch.positions)
    _replace(con, bookkeeping.MEMORIES, batch.memories)
    _append(con, telemetry.GPU_SAMPLES, _fresh(con, telemetry.GPU_SAMPLES, batch.gpu_samples))
    _replace(con, telemetry.GPUS, batch.gpus)
    _append(con, telemetry.GPU_PROCESSES, batch.gpu_processes)
    _append(con, telemetry.HOST_SAMPLES, _fresh(con, telemetry.HOST_SAMPLES, batch.host_samples))
    _append(con, telemetry.SCRAPES, [rows.scrape_values(*scrape) for scrape in batch.scrapes])
    _append(con, telemetry.LATENCY, [row for scrape in batch.scrapes for row in rows.latency_values(*scrape)])


def _fresh(con: Connection, table: table.Table, readings: Sequence[Any]) -> Sequence[Any]:
    """Return the readings whose time and device are not in the table yet: a CSV file may be given twice."""
    if not readings:
        return readings
    times = [reading[0] for reading in readings]
    sql = f"SELECT epoch_us(ts), {table.columns[1].name} FROM {table.name} WHERE epoch_us(ts) BETWEEN ? AND ?"  # noqa: S608
    there = set(con.execute(sql, [round(min(times) * 1e6), round(max(times) * 1e6)]).fetchall())
    return [reading for reading in readings if (round(reading[0] * 1e6), reading[1]) not in there]


def _append_samples(con: Connection, samples: Sequence[Stats], runs: Sequence[int]) -> None:
    if len(samples) != len(runs):
        raise ValueError(f"{len(samples)} samples, but {len(runs)} runs")
    if not samples:
        return
    columns = dict(zip(Stats._fields, arrow.transposed(samples), strict=True))
    engine_of = dict(con.execute("SELECT run_id, engine_id FROM runs").fetchall())
    if unknown := set(runs) - engine_of.keys():
        raise ValueError(f"samples of runs that are unknown: {sorted(unknown)[:5]}")
    columns |= {"ts": columns["ts_s"], "run_id": list(runs), "engine_id": list(map(engine_of.__getitem__, runs))}
    _insert(con, telemetry.SAMPLES, columns)


def _append(con: Connection, table: table.Table, records: Sequence[tuple[Any, ...]]) -> None:
    if records:
        _insert(con, table, arrow.columns_of(table, records))


def _insert(con: Connection, table: table.Table, columns: Mapping[str, Sequence[Any]]) -> None:
    stream, values = arrow.incoming(table, columns)
    con.register(_IN, stream)
    con.execute(statements.insert(table, values, _IN))
    con.unregister(_IN)


def _replace(con: Connection, table: table.Table, records: Sequence[tuple[Any, ...]]) -> None:
    # One statement for many rows costs what it does for one; a primary key is not worth its index.
    at = [index for index, column in enumerate(table.columns) if column.name in table.key]
    latest = list({tuple(record[i] for i in at): record for record in records}.values())
    for start in range(0, len(latest), _AT_ONCE):
        some = latest[start : start + _AT_ONCE]
        parameters = [value for record in some for value in record]
        changed = con.execute(statements.update(table, len(some)), parameters).fetchone()
        if changed != (len(some),):
            con.execute(statements.add(table, len(some)), parameters)


def _forget(con: Connection, keys: Sequence[AlertKey]) -> None:
    for key in keys:
        con.execute("DELETE FROM alerts WHERE rule = ? AND scope = ? AND run_id IS NOT DISTINCT FROM ?", list(key))
