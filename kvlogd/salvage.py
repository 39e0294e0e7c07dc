"""`kvlogd store salvage`: a new store from what can be read of a damaged one and from its daily exports.

Promises that the damaged files stay as they are, that no row comes twice, and that what could not be got is told.
Damage costs whole blocks: up to some thousand rows of a table each. Not promised: what the rules remembered.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvlogd import bookkeeping, days, disk, export, lock, schema, telemetry
from kvlogd.errors import StoreError
from kvlogd.store import Store, readable, workshop
from kvlogd.table import Table, quoted
from kvlogd.transaction import Connection

_STEP_ROWS = 122_880
_LEAST_ROWS = 2048


class Got(NamedTuple):
    """What came of one table."""

    table: str
    rows: int
    lost_at_most: int | None
    """Rows of blocks that could not be read and that no export had; None where nobody knows how many there were."""
    from_export: int = 0


class Salvaged(NamedTuple):
    """What was built."""

    target: Path
    tables: tuple[Got, ...]
    has_positions: bool
    """False where it is not known how far the logs were read."""


def salvage(path: Path) -> Salvaged:
    """Build the new store beside the old one. Raises StoreError, also while a daemon has the old one open."""
    target = path.with_name(f"{path.name}.salvaged")
    disk.refuse_absent(path)
    if target.exists():
        raise StoreError("is there already", where=str(target), mend="put it in place or remove it")
    fd = lock.take(path)
    try:
        Store.open(target).close()
        with workshop(target) as con:
            return Salvaged(target, *_build(con, path, target))
    finally:
        os.close(fd)
        Path(f"{target}.lock").unlink(missing_ok=True)


def _build(con: Connection, path: Path, target: Path) -> tuple[tuple[Got, ...], bool]:
    is_readable = _tried(con, target, f"ATTACH {quoted(str(path.absolute()))} AS old (READ_ONLY)")
    tables = [table for table in schema.TABLES if table not in (bookkeeping.META, bookkeeping.EXPORTS)]
    lost = {table.name: _copy(con, target, table) if is_readable else None for table in tables}
    if is_readable:
        _tried(con, target, "INSERT INTO meta SELECT * FROM old.meta WHERE key <> 'schema_version'")
    folder = export.folder_of(path)
    added = dict.fromkeys(lost, 0)
    for table in export.WHOLE:
        if lost[table.name] != 0:
            added[table.name] = _add_missing(con, target, table, folder / f"{table.name}.parquet")
    has_positions = lost[bookkeeping.POSITIONS.name] == 0
    if not has_positions:
        _cut_back(con, folder)
        has_positions = bool(_count(con, bookkeeping.POSITIONS.name))
    got = []
    for table in tables:
        if table in schema.EXPORTED:
            added[table.name] = sum(_fill_days(con, target, table, folder))
        unread = lost[table.name]
        left = None if unread is None else max(unread - added[table.name], 0)
        got.append(Got(table.name, _count(con, table.name), left, added[table.name]))
    con.execute("CHECKPOINT")
    return tuple(got), has_positions


def _copy(con: Connection, target: Path, table: Table) -> int | None:
    """Copy the rows that can be read; return at most how many could not, None where that is not known."""
    found = "FROM duckdb_columns() WHERE database_name = 'old' AND table_name = ?"
    there = {name for (name,) in con.execute(f"SELECT column_name {found}", [table.name]).fetchall()}
    names = ", ".join(column.name for column in table.columns if column.name in there)
    if not names:
        return 0
    try:
        with readable(target):
            ((last,),) = con.execute(f"SELECT max(rowid) FROM old.{table.name}").fetchall()  # noqa: S608
    except StoreError:
        return None
    ranges = [(at, at + _STEP_ROWS) for at in range(0, (-1 if last is None else last) + 1, _STEP_ROWS)]
    lost = 0
    while ranges:
        low, high = ranges.pop()
        sql = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM old.{table.name}"  # noqa: S608
        if _tried(con, target, f"{sql} WHERE rowid >= {low} AND rowid < {high}"):
            continue
        if high - low <= _LEAST_ROWS:
            lost += min(high, last + 1) - low
        else:
            middle = low + (high - low) // 2
            ranges += [(low, middle), (middle, high)]
    return lost


def _add_missing(con: Connection, target: Path, table: Table, file: Path) -> int:
    """Add the rows of a whole table's export whose key is not there; return how many."""
    before = _count(con, table.name)
    key = table.key or tuple(column.name for column in table.columns)
    same = " AND ".join(f"there.{name} IS NOT DISTINCT FROM found.{name}" for name in key)
    sql = f"SELECT found.* FROM read_parquet({quoted(str(file))}) found ANTI JOIN {table.name} there ON {same}"  # noqa: S608
    if file.is_file():
        _tried(con, target, f"INSERT INTO {table.name} BY NAME {sql}")
    return _count(con, table.name) - before


def _cut_back(con: Connection, folder: Path) -> None:
    """Drop what was read after the last exported day: with the positions of the export it would come twice."""
    last = max((day for table in schema.EXPORTED for day, _ in _exported(folder, table)), default=None)
    if last is None:
        return
    for table in schema.EXPORTED:
        con.execute(f"DELETE FROM {table.name} WHERE ts >= DATE '{last}' + 1")  # noqa: S608


def _fill_days(con: Connection, target: Path, table: Table, folder: Path) -> Iterator[int]:
    """Take each day from its export where that has more rows; yield how many more."""
    found = con.execute("SELECT value FROM meta WHERE key = 'raw_from'").fetchone()
    kept_from = days.name(days.of(float(found[0]))) if found and table in telemetry.RAW else ""
    for day, file in _exported(folder, table):
        if day < kept_from:
            continue
        source = f"read_parquet({quoted(str(file))})"
        of_day = f"ts >= DATE '{day}' AND ts < DATE '{day}' + 1"
        try:
            with readable(target):
                ((more,),) = con.execute(
                    f"SELECT (SELECT count(*) FROM {source}) - (SELECT count(*) FROM {table.name} WHERE {of_day})"  # noqa: S608
                ).fetchall()
        except StoreError:
            continue
        if more > 0 and _tried(
            con, target,
            f"DELETE FROM {table.name} WHERE {of_day}",  # noqa: S608
            f"INSERT INTO {table.name} BY NAME SELECT * FROM {source}",  # noqa: S608
        ):  # fmt: skip
            yield more


def _exported(folder: Path, table: Table) -> list[tuple[str, Path]]:
    files = sorted(folder.glob(f"{table.name}-????-??-??.parquet"))
    return [(file.stem.removeprefix(f"{table.name}-"), file) for file in files]


def _count(con: Connection, table: str) -> int:
    ((count,),) = con.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608
    return int(count)


def _tried(con: Connection, target: Path, *statements: str) -> bool:
    """Run the statements, more than one in a transaction; tell whether all went well."""
    alone = len(statements) == 1
    try:
        with readable(target):
            for sql in statements if alone else ("BEGIN TRANSACTION", *statements, "COMMIT"):
                con.execute(sql)
    except StoreError:
        if not alone:
            con.execute("ROLLBACK")
        return False
    return True
