"""Each day's rows as Parquet files beside the store: a backup, and what other engines read.

Promises one file a table and day, whole or not there at all, written once the day is over, also after downtime, and
anew where rows came late. Beside them lie the small tables as they stand, which say what the rows are about.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from kvlogd import bookkeeping, days, rollup, schema, telemetry
from kvlogd.errors import StoreError

FOLDER = "export"
WHOLE = (telemetry.ENGINES, telemetry.RUNS, bookkeeping.POSITIONS, bookkeeping.GAPS)
_MOST_FILES = 16
_FOLDER_MODE = 0o750


class Source(rollup.Tables, Protocol):
    """What is needed of a store."""

    path: Path

    def copy_out(self, select: str, target: Path, /) -> None:
        """Write the rows of a query to a Parquet file."""
        ...


class _Due(NamedTuple):
    table: str
    day: int
    rows: int


def folder_of(store: Path) -> Path:
    """Return where the exports of a store lie."""
    return store.absolute().parent.resolve() / FOLDER


def write(store: Source, wall_s: float, keep_s: float) -> bool:
    """Write what is due, back to `keep_s` ago, some files at a time; return False where more are left.

    Raises StoreError.
    """
    folder = folder_of(store.path)
    due = [day for table in schema.EXPORTED for day in _due(store, folder, table.name, wall_s, keep_s)]
    if not due:
        return True
    try:
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        for table, day, rows in due[:_MOST_FILES]:
            between = f"ts >= to_timestamp({day * days.DAY_S}) AND ts < to_timestamp({(day + 1) * days.DAY_S})"
            _write(store, f"SELECT * FROM {table} WHERE {between}", file_of(folder, table, day))  # noqa: S608
            _note(store, table, day, rows)
        for whole in WHOLE:
            _write(store, f"SELECT * FROM {whole.name}", folder / f"{whole.name}.parquet")  # noqa: S608
    except OSError as error:
        raise StoreError(f"cannot export: {error.strerror}", where=str(folder), mend="free disk space") from error
    return len(due) <= _MOST_FILES


def prune(store: Path, before_day: int) -> None:
    """Remove the files of days before `before_day`."""
    for table in schema.EXPORTED:
        first = file_of(Path(), table.name, before_day).name
        for path in folder_of(store).glob(f"{table.name}-????-??-??.parquet"):
            if path.name < first:
                path.unlink(missing_ok=True)


def file_of(folder: Path, table: str, day: int) -> Path:
    """Return the file of one table and day."""
    return folder / f"{table}-{days.name(day)}.parquet"


def _due(store: Source, folder: Path, table: str, wall_s: float, keep_s: float) -> Iterator[_Due]:
    # What is left in the table of a day whose rows are gone would take the place of the whole day.
    from_s = max(rollup.raw_from_s(store), (days.of(wall_s - keep_s) + 1) * days.DAY_S)
    sql = f"""SELECT there.day, there.n, exports.n FROM (
  SELECT {days.sql("ts")} AS day, count(*) AS n FROM {table}
  WHERE ts >= to_timestamp(?::DOUBLE) AND ts < to_timestamp(?::DOUBLE) GROUP BY 1
) there LEFT JOIN exports ON exports.name = ? AND exports.day = DATE '1970-01-01' + there.day::INTEGER
ORDER BY there.day"""  # noqa: S608
    for day, rows, exported in store.read(sql, [from_s, days.of(wall_s) * days.DAY_S, table]):
        if exported != rows or not file_of(folder, table, day).is_file():
            yield _Due(table, day, rows)


def _write(store: Source, select: str, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    store.copy_out(select, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


def _note(store: Source, table: str, day: int, rows: int) -> None:
    name = [table, days.name(day)]
    store.transact(
        [
            ("DELETE FROM exports WHERE name = ? AND day = ?::DATE", name),
            ("INSERT INTO exports VALUES (?, ?::DATE, ?)", [*name, rows]),
        ]
    )
