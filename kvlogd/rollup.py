"""Fills the table `minutes` from the samples, each minute once it is over.

Promises that a minute is right again at the next call when rows came late to it, and that no sample counts twice, also
across restarts: what a day's rows count up to is compared with its samples. Days whose samples are gone are merged.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kvlogd import days, minutes

_LATE = "kvlogd_late"
_WAIT_S = 60
_MOST_DAYS = 8
RAW_FROM = "raw_from"


class Tables(Protocol):
    """What is needed of a store."""

    def read(self, sql: str, parameters: Sequence[object] = (), /) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        ...

    def transact(self, statements: Sequence[tuple[str, Sequence[object]]], /) -> None:
        """Run statements in one transaction."""
        ...

    def newest_s(self) -> float | None:
        """Return the time of the newest record."""
        ...


class _Day(NamedTuple):
    day: int
    upto_s: float | None
    """Up to where its minutes are filled."""
    is_in_step: bool
    """Whether they hold all samples up to there."""


def raw_from_s(store: Tables) -> float:
    """Return since when samples are kept as they were read; older ones are in `minutes` alone."""
    found = store.read("SELECT value FROM meta WHERE key = ?", [RAW_FROM])
    return float(found[0][0]) if found else 0.0


def fill(store: Tables, wall_s: float) -> bool:
    """Roll up each minute that is over, of some days at a time; return False where more are left.

    Raises StoreError.
    """
    newest_s = store.newest_s()
    if newest_s is None:
        return True
    from_s = raw_from_s(store)
    _merge_late(store, from_s)
    # A straggler of another source is caught by the next call; waiting a little makes that rare.
    end_s = min(wall_s, newest_s) // 60 * 60 - _WAIT_S
    behind = _behind(store, from_s, end_s)
    for day in behind[:_MOST_DAYS]:
        store.transact(_fill_day(day, end_s))
    return len(behind) <= _MOST_DAYS


def _behind(store: Tables, from_s: float, end_s: float) -> list[_Day]:
    sql = f"""WITH filled AS (
  SELECT {days.sql("minute")} AS day, sum(n) AS n, max(minute) + INTERVAL 1 MINUTE AS upto
  FROM minutes WHERE minute >= to_timestamp(?::DOUBLE) GROUP BY 1
), there AS (
  SELECT {days.sql("ts")} AS day, count(*) AS n, count(*) FILTER (ts < upto) AS below, any_value(upto) AS upto,
    any_value(filled.n) AS filled
  FROM samples LEFT JOIN filled ON filled.day = {days.sql("ts")}
  WHERE ts >= to_timestamp(?::DOUBLE) AND ts < to_timestamp(?::DOUBLE) GROUP BY 1
)
SELECT day, epoch(upto), below = filled FROM there WHERE filled IS DISTINCT FROM n ORDER BY day"""  # noqa: S608
    return [_Day(day, upto, bool(same)) for day, upto, same in store.read(sql, [from_s, from_s, end_s])]


def _fill_day(day: _Day, end_s: float) -> list[tuple[str, Sequence[object]]]:
    first_s, last_s = day.day * days.DAY_S, min((day.day + 1) * days.DAY_S, end_s)
    between = "{0} >= to_timestamp(?::DOUBLE) AND {0} < to_timestamp(?::DOUBLE)"
    insert = f"INSERT INTO minutes {minutes.of_samples(between.format('ts'))}"
    if day.is_in_step and day.upto_s is not None:
        return [(insert, [day.upto_s, last_s])]
    delete = f"DELETE FROM minutes WHERE {between.format('minute')}"  # noqa: S608
    return [(delete, [first_s, (day.day + 1) * days.DAY_S]), (insert, [first_s, last_s])]


def _merge_late(store: Tables, from_s: float) -> None:
    """Move samples of days that are in `minutes` alone there."""
    ((late,),) = store.read("SELECT count(*) FROM samples WHERE ts < to_timestamp(?::DOUBLE)", [from_s])
    if not late:
        return
    key = "minute, engine_id, run_id"
    # A date as text, since a statement that creates a table takes no parameter in the middle of it.
    condition = f"ts < to_timestamp({from_s!r}::DOUBLE)"
    fresh = minutes.of_samples(condition)
    both = f"{fresh} UNION ALL SELECT * FROM minutes SEMI JOIN ({fresh}) USING ({key})"  # noqa: S608
    same = " AND ".join(f"minutes.{name} = {_LATE}.{name}" for name in key.split(", "))
    store.transact([
        (f"CREATE TEMP TABLE {_LATE} AS {minutes.merged(both)}", []),
        (f"DELETE FROM minutes USING {_LATE} WHERE {same}", []),  # noqa: S608
        (f"INSERT INTO minutes SELECT * FROM {_LATE}", []),  # noqa: S608
        (f"DELETE FROM samples WHERE {condition}", []),  # noqa: S608
        (f"DROP TABLE {_LATE}", []),
    ])  # fmt: skip
