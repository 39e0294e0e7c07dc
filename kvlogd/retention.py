"""What is done for the store each half hour: minutes are filled, days exported, and what is old is forgotten.

Promises that nothing is forgotten by a clock alone: what is old is told by the records (see `days.trusted_s`), and
samples go only once they are in `minutes`. Alerts, runs, engines and gaps are kept for
good, and so is what channels were told of alerts that fire.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kvlogd import days, export, rollup, telemetry
from kvlogd.errors import StoreError

_KEEP_DONE_S = 90 * days.DAY_S


class Keep(NamedTuple):
    """For how long what is kept."""

    raw_s: float
    """Samples, events and readings as they were read."""
    minutes_s: float
    """One row a minute, and the exported files."""


class Tended(export.Source, Protocol):
    """What is needed of a store."""

    def checkpoint(self) -> bool:
        """Write the log into the file."""
        ...


def tend(store: Tended, wall_s: float, keep: Keep) -> bool:
    """Do what is due: cheap where nothing is, and enough each half hour; return False where more is left to do.

    Raises StoreError for the first thing that failed, after the rest was tried; call it again later.
    """
    failed: list[StoreError] = []

    def done(step: Callable[[], bool]) -> bool:
        try:
            return step()
        except StoreError as error:
            failed.append(error)
            return False

    is_filled = done(lambda: rollup.fill(store, wall_s))
    is_exported = done(lambda: export.write(store, wall_s, keep.minutes_s))
    # An export that fails, on a disk that is full for instance, does not stop what makes room.
    if is_filled and (is_exported or failed):
        done(lambda: forget(store, wall_s, keep))
    done(store.checkpoint)
    if failed:
        raise failed[0]
    return is_filled and is_exported


def forget(store: Tended, wall_s: float, keep: Keep) -> bool:
    """Delete whole days that are older than they are kept. Their samples must be in `minutes`."""
    ts = days.sql("ts")
    sql = f"SELECT {ts} AS day FROM samples UNION SELECT {ts} FROM events WHERE ts IS NOT NULL ORDER BY day"  # noqa: S608
    found = store.read(sql)
    now_s = days.trusted_s([day for (day,) in found], wall_s)
    if now_s is None:
        return True
    raw_s = days.of(now_s - keep.raw_s) * days.DAY_S
    if raw_s <= rollup.raw_from_s(store):
        return True
    minutes_day = days.of(now_s - max(keep.minutes_s, keep.raw_s))
    store.transact([
        *((f"DELETE FROM {table.name} WHERE ts < to_timestamp(?::DOUBLE)", [raw_s]) for table in telemetry.RAW),  # noqa: S608
        # lines without a stamp, of lives that are over
        ("DELETE FROM events WHERE ts IS NULL AND run_id IN "
         "(SELECT run_id FROM runs WHERE ended < to_timestamp(?::DOUBLE))", [raw_s]),
        ("DELETE FROM minutes WHERE minute < to_timestamp(?::DOUBLE)", [minutes_day * days.DAY_S]),
        # what the rules remember of logs all of whose files are gone; before their positions go, too
        ("DELETE FROM memories WHERE source IN (SELECT source FROM positions GROUP BY source "
         "HAVING bool_and(done) AND max(seen) < to_timestamp(?::DOUBLE))", [max(raw_s, now_s - _KEEP_DONE_S)]),
        ("DELETE FROM positions WHERE done AND seen < to_timestamp(?::DOUBLE)", [now_s - _KEEP_DONE_S]),
        ("DELETE FROM notices WHERE state <> 'waiting' AND planned < to_timestamp(?::DOUBLE)", [raw_s]),
        ("DELETE FROM silences WHERE until < to_timestamp(?::DOUBLE)", [raw_s]),
        ("DELETE FROM exports WHERE day < ?::DATE", [days.name(minutes_day)]),
        ("DELETE FROM meta WHERE key = ?", [rollup.RAW_FROM]),
        ("INSERT INTO meta VALUES (?, ?)", [rollup.RAW_FROM, str(raw_s)]),
    ])  # fmt: skip
    export.prune(store.path, minutes_day)
    return True
