"""What stands in the store, as records.

Knows SQL and the tables, and no database: who inherits from it runs the queries.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from kvlogd import alerting, bookkeeping, rows, statements, telemetry
from kvlogd.alerts import Standing
from kvlogd.model import AlertEvent, Engine, Event, Gap, MemorySight, Run, Scrape, Sight, Stats
from kvlogd.outbox import Case, Notice, NoticeState, Silence
from kvlogd.reading import Gpu, GpuSample, HostSample
from kvlogd.rows import Memory, Position

_SIGHTS = """WITH cell AS (
  SELECT arg_min(ts, kv_usage) AS low_ts, min(kv_usage) AS low, arg_max(ts, kv_usage) AS high_ts,
    max(kv_usage) AS high, avg(running) AS running, max(waiting)::DOUBLE AS waiting
  FROM samples JOIN engines USING (engine_id)
  WHERE label = $1 AND ts BETWEEN to_timestamp($2::DOUBLE) AND to_timestamp($3::DOUBLE) AND isfinite(kv_usage)
  GROUP BY engine_id, floor((epoch(ts) - $2) / greatest(1e-6, $3 - $2) * $4)
)
SELECT epoch(low_ts) AS t, low, running, waiting FROM cell
UNION SELECT epoch(high_ts), high, running, waiting FROM cell ORDER BY t"""
_MINE = """SELECT engine_id FROM engines WHERE $1 IN (label, source)
  UNION SELECT engine_id FROM gpu_processes WHERE 'gpu/' || gpu = $1 AND engine_id IS NOT NULL"""
_STARTS = f"""SELECT DISTINCT epoch(started) AS t FROM runs
WHERE number > 1 AND started BETWEEN to_timestamp($2::DOUBLE) AND to_timestamp($3::DOUBLE) AND engine_id IN ({_MINE})
ORDER BY t"""  # noqa: S608
_MEMORY_SIGHTS = f"""WITH mine AS ({_MINE}), reading AS (
  SELECT ts, memory_used_mib AS used, memory_total_mib AS most FROM gpu_samples WHERE 'gpu/' || gpu = $1
  UNION ALL SELECT ts, rss_mib, limit_mib FROM host_samples WHERE coalesce(source, 'host') = $1
), held AS (
  SELECT floor((epoch(ts) - $2) / $4) AS cell, max(used) AS used, max(most) AS most FROM reading
  WHERE ts BETWEEN to_timestamp($2::DOUBLE) AND to_timestamp($3::DOUBLE) GROUP BY cell
), pool AS (
  SELECT floor((epoch(ts) - $2) / $4) AS cell, avg(kv_usage) AS usage FROM samples
  WHERE ts BETWEEN to_timestamp($2::DOUBLE) AND to_timestamp($3::DOUBLE) AND isfinite(kv_usage)
    AND (engine_id IN (FROM mine) OR NOT EXISTS (FROM mine)) GROUP BY cell
)
SELECT least($3, $2 + (cell + 0.5) * $4) AS t, used, most, usage FROM held FULL JOIN pool USING (cell)
ORDER BY t"""  # noqa: S608


class History:
    """The reading half of a store. Each method raises StoreError."""

    def _stream(self, sql: str, parameters: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        raise NotImplementedError

    def positions(self, source: str | None = None) -> dict[str, int]:
        """Return the bytes read by file_id, of one source or of all (the furthest, where sources share a file)."""
        found = self.read(
            "SELECT file_id, max(byte_offset) FROM positions WHERE source = coalesce(?, source) GROUP BY file_id",
            [source],
        )
        return dict(found)

    def engines(self) -> list[Engine]:
        """Return all engines."""
        return [Engine(*row) for row in self.read(f"{statements.select(telemetry.ENGINES)} ORDER BY engine_id")]

    def runs(self) -> list[Run]:
        """Return all runs."""
        return [Run(*row) for row in self.read(f"{statements.select(telemetry.RUNS)} ORDER BY run_id")]

    def gaps(self) -> list[Gap]:
        """Return all gaps, oldest first."""
        return [Gap(*row) for row in self.read(statements.select(bookkeeping.GAPS))]

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""
        return [
            rows.standing(row)
            for row in self.read(f"{statements.select(alerting.ALERTS)} ORDER BY rule, scope, run_id")
        ]

    def cases(self) -> list[Case]:
        """Return what each channel knows of each alert, in the order in which that was learnt."""
        sql = f"{statements.select(alerting.CASES)} ORDER BY seen, rule, scope, run_id"
        return [rows.case(row) for row in self.read(sql)]

    def notices(self, state: NoticeState | None = None) -> list[Notice]:
        """Return the notices in one state or in all, oldest first."""
        sql = f"{statements.select(alerting.NOTICES)} WHERE state = coalesce(?, state) ORDER BY notice_id"
        return [rows.notice(row) for row in self.read(sql, [None if state is None else state.value])]

    def last_notice_id(self) -> int:
        """Return the highest number that a notice has, 0 where there is none."""
        ((found,),) = self.read("SELECT max(notice_id) FROM notices")
        return int(found or 0)

    def silences(self) -> list[Silence]:
        """Return all silences, those that have ended among them."""
        return [Silence(*row) for row in self.read(f"{statements.select(alerting.SILENCES)} ORDER BY silence_id")]

    def places(self) -> list[Position]:
        """Return all positions, with what identifies a tailed file."""
        return [Position(*row) for row in self.read(statements.select(bookkeeping.POSITIONS))]

    def memories(self, source: str | None = None) -> list[Memory]:
        """Return what the rules of one source, or of each, remember."""
        sql = f"{statements.select(bookkeeping.MEMORIES)} WHERE source = coalesce(?, source)"
        return [Memory(*row) for row in self.read(sql, [source])]

    def alert_events(self, source: str | None = None) -> list[AlertEvent]:
        """Return the alert events of one source or of all, oldest first."""
        sql = f"{statements.select(alerting.ALERT_EVENTS)} WHERE source = coalesce(?, source) ORDER BY ts, rowid"
        return [rows.alert_event(row) for row in self.read(sql, [source])]

    def samples_of(self, run_id: int, since_s: float | None = None) -> Iterator[Stats]:
        """Yield the samples of one run as they were read, from `since_s` on; their `pid` is not known any more."""
        special = {"ts_s": "epoch(s.ts)", "pid": "NULL", "engine_index": "e.engine_index"}
        names = ", ".join(special.get(name, f"s.{name}") for name in Stats._fields)
        sql = (
            f"SELECT {names} FROM samples s LEFT JOIN engines e USING (engine_id) "  # noqa: S608
            "WHERE s.run_id = ? AND s.ts >= coalesce(to_timestamp(?::DOUBLE), '-infinity'::TIMESTAMPTZ)"
        )
        yield from (Stats(*row) for row in self._stream(sql, [run_id, since_s]))

    def lines_of(self, run_id: int, after_s: float | None = None) -> Iterator[Stats | Event | Scrape]:
        """Yield what is stored of one run in order of time, from behind `after_s` on where it is given."""
        samples: Iterator[Stats | Event | Scrape] = self.samples_of(run_id, after_s)
        scrapes = self.scrapes_of(run_id, after_s)
        merged = heapq.merge(samples, self.events_of(run_id), scrapes, key=lambda line: line.ts_s or 0.0)
        yield from (line for line in merged if after_s is None or (line.ts_s or 0.0) > after_s)

    def events_of(self, run_id: int) -> list[Event]:
        """Return the events of one run in order of time: their kind and numbers."""
        sql = "SELECT epoch(ts), kind, numbers FROM events WHERE run_id = ? ORDER BY ts"
        return [rows.event(row) for row in self.read(sql, [run_id])]

    def sights(self, label: str, start_s: float, end_s: float, cells: int) -> list[Sight]:
        """Return what was seen of an engine in a time cut into cells: the moments of lowest and highest usage in each.

        What ran then is the cell's mean, what waited its most.
        """
        found = self.read(_SIGHTS, [label, start_s, end_s, cells])
        return [Sight(*row) for row in found]

    def memory_sights(self, scope: str, start_s: float, end_s: float, cell_s: float) -> list[MemorySight]:
        """Return the memory of a GPU or a server in a time cut into cells: the most in each.

        Beside it stands the mean usage of its engines; of all engines where none is known to be its.
        """
        return [MemorySight(*row) for row in self.read(_MEMORY_SIGHTS, [scope, start_s, end_s, cell_s])]

    def starts(self, scope: str, start_s: float, end_s: float) -> list[float]:
        """Return when lives of an engine, or of the engines of a server or GPU, began in a time, but for the first."""
        return [at_s for (at_s,) in self.read(_STARTS, [scope, start_s, end_s])]

    def scrapes_of(self, run_id: int, since_s: float | None = None) -> Iterator[Scrape]:
        """Yield what /metrics told of one run, from `since_s` on, oldest first."""
        times = "epoch(ts) AS at, * EXCLUDE (ts, engine_id, run_id)"
        since = "WHERE run_id = ? AND ts >= coalesce(to_timestamp(?::DOUBLE), '-infinity'::TIMESTAMPTZ) ORDER BY ts"
        sql = f"SELECT {times} REPLACE (epoch(since) AS since) FROM scrapes {since}"  # noqa: S608
        spreads = groupby(
            self._stream(f"SELECT {times} FROM latency {since}", [run_id, since_s]),  # noqa: S608
            key=itemgetter(0),
        )
        latest = next(spreads, None)
        for row in self._stream(sql, [run_id, since_s]):
            its: list[tuple[Any, ...]] = []
            if latest is not None and latest[0] == row[0]:
                its = list(latest[1])
                latest = next(spreads, None)
            yield rows.scrape(row, its)

    def gpus(self) -> list[Gpu]:
        """Return the GPUs that were read."""
        return [Gpu(*row) for row in self.read(statements.select(telemetry.GPUS))]

    def readings(self, since_s: float) -> Iterator[GpuSample | HostSample]:
        """Yield the readings of GPUs and hosts from a time on, in order of time."""
        after = "WHERE ts >= to_timestamp(?::DOUBLE) ORDER BY ts"
        gpus = self._stream(f"{statements.select(telemetry.GPU_SAMPLES)} {after}", [since_s])
        hosts = self._stream(f"{statements.select(telemetry.HOST_SAMPLES)} {after}", [since_s])
        feeds: list[Iterator[GpuSample | HostSample]] = [
            (GpuSample(*row) for row in gpus),
            (HostSample(*row) for row in hosts),
        ]
        return heapq.merge(*feeds, key=lambda sample: sample.ts_s)

    def device_memory(self, scope: str, since_s: float, until_s: float) -> tuple[float, float, float] | None:
        """Return the least and the most memory in use of a GPU, or beside an engine or a server, and how much there is.

        In MiB. Of several GPUs the one that changed most; of all GPUs where none is known to be its; None where
        nothing was read.
        """
        sql = """WITH reading AS (
  FROM gpu_samples WHERE ts BETWEEN to_timestamp($2::DOUBLE) AND to_timestamp($3::DOUBLE)
    AND memory_total_mib IS NOT NULL AND memory_used_mib IS NOT NULL
), mine AS (
  SELECT gpu FROM gpu_processes JOIN engines USING (engine_id) WHERE $1 IN (label, engines.source)
  UNION SELECT gpu FROM reading WHERE 'gpu/' || gpu = $1
)
SELECT min(memory_used_mib) AS low, max(memory_used_mib) AS high, max(memory_total_mib) FROM reading
WHERE gpu IN (FROM mine) OR NOT EXISTS (FROM mine)
GROUP BY gpu ORDER BY high - low DESC, gpu LIMIT 1"""
        found = self.read(sql, [scope, since_s, until_s])
        return (float(found[0][0]), float(found[0][1]), float(found[0][2])) if found else None

    def newest_s(self) -> float | None:
        """Return the time of the newest record of a log."""
        sql = "SELECT epoch(max(ts)) FROM (SELECT max(ts) AS ts FROM samples UNION ALL SELECT max(ts) FROM events)"
        ((found,),) = self.read(sql)
        return None if found is None else float(found)

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query of our own; text of users goes through `sqlgate`."""
        return list(self._stream(sql, parameters))
