"""The DuckDB file: opens it, commits a batch in one transaction, reads it back, and runs checked read-only SQL.

Promises that a batch is there whole or not at all, also after kill -9 or on a full disk. After a StoreError out of
`commit` nobody knows which (a commit may be durable although it raised): read `positions` and go on from there.
Does not promise two writers at once, nor reading by another process while a writer is there.
Nobody may open the .duckdb file itself in this process: closing it again would drop DuckDB's lock.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb

from kvlogd import lock, rows, schema, transaction
from kvlogd.alerts import Standing
from kvlogd.errors import StoreError
from kvlogd.model import AlertEvent, Engine, Event, Gap, Run, Stats
from kvlogd.rows import Answer, Batch, Memory, Position

_UMASK = 0o027
_CHUNK_ROWS = 4096
_SPARE_BYTES = 64 * 2**20
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": "128MB",
    # so that DuckDB 1.5 opens what 2.0 wrote
    "storage_compatibility_version": "v1.5.0",
}
_SETTINGS = (
    # We checkpoint ourselves, where the disk has room for it.
    "PRAGMA disable_checkpoint_on_shutdown",
    "SET allocator_background_threads = true",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET checkpoint_threshold = '64MB'",
    "SET enable_progress_bar = false",
    "SET max_temp_directory_size = '1GB'",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_RFC3339 = "replace(strftime({0} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%f'), '.000000', '') || '+00:00'"
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"


class Store:
    """One open store; use it as a context manager. One thread at a time."""

    def __init__(self, path: Path, *, read_only: bool, lock_fd: int | None) -> None:
        self.path = path
        self.read_only = read_only
        self._lock_fd = lock_fd
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._cursors: set[duckdb.DuckDBPyConnection] = set()

    @classmethod
    def open(
        cls, path: Path, *, read_only: bool = False, migrations: Mapping[int, Sequence[str]] | None = None
    ) -> Self:
        """Open the store at `path`, creating or migrating it unless `read_only`.

        Raises StoreError where it is locked, damaged, newer than this kvlogd, or no store at all.
        """
        store = cls(path, read_only=read_only, lock_fd=None if read_only else lock.take(path))
        ready = False
        try:
            _prepare(store._connected(), path, read_only, schema.migrations() if migrations is None else migrations)
            ready = True
        except duckdb.Error as error:
            raise StoreError(_one_line(error), where=str(path), mend="restore a snapshot or move it away") from error
        finally:
            if not ready:
                store._disconnect()
                store._unlock()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Checkpoint where the disk has room, close, and let the next writer in."""
        # What a checkpoint could not do is still safe in the write-ahead log, and the next open does it.
        with contextlib.suppress(StoreError):
            self.checkpoint()
        self._disconnect()
        self._unlock()

    def checkpoint(self) -> bool:
        """Write the log into the file; return False where the disk lacks room. Raises StoreError, then reopens."""
        if self.read_only or self._connection is None:
            return False
        disk = os.statvfs(self.path.parent)
        wal = Path(f"{self.path}.wal")
        dirty = wal.stat().st_size if wal.exists() else 0
        if disk.f_bavail * disk.f_frsize < 2 * dirty + _SPARE_BYTES:
            return False
        try:
            with _private_files():
                self._connected().execute("CHECKPOINT")
        except duckdb.Error as error:
            self._reopen()
            raise StoreError(_one_line(error), where=str(self.path), mend="free disk space") from error
        return True

    def commit(self, batch: Batch) -> None:
        """Write the batch in one transaction.

        Raises StoreError; the database has then been reopened, and what is in it must be read again.
        """
        done = False
        try:
            con = self._connected()
            with _private_files():
                con.execute("BEGIN TRANSACTION")
                transaction.write(con, batch)
                con.execute("COMMIT")
            done = True
        except (duckdb.Error, ValueError, OverflowError) as error:
            mend = "the store was reopened: read the positions again"
            raise StoreError(f"cannot commit: {_one_line(error)}", where=str(self.path), mend=mend) from error
        finally:
            if not done:
                self._reopen()

    def positions(self, source: str | None = None) -> dict[str, int]:
        """Return the bytes read by file_id, of one source or of all (the furthest, where sources share a file)."""
        found = self._rows(
            "SELECT file_id, max(byte_offset) FROM positions WHERE source = coalesce(?, source) GROUP BY file_id",
            [source],
        )
        return dict(found)

    def engines(self) -> list[Engine]:
        """Return all engines."""
        return [Engine(*row) for row in self._rows(f"{schema.select(schema.ENGINES)} ORDER BY engine_id")]

    def runs(self) -> list[Run]:
        """Return all runs."""
        return [Run(*row) for row in self._rows(f"{schema.select(schema.RUNS)} ORDER BY run_id")]

    def gaps(self) -> list[Gap]:
        """Return all gaps, oldest first."""
        return [Gap(*row) for row in self._rows(schema.select(schema.GAPS))]

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""
        return [
            rows.standing(row) for row in self._rows(f"{schema.select(schema.ALERTS)} ORDER BY rule, scope, run_id")
        ]

    def places(self) -> list[Position]:
        """Return all positions, with what identifies a tailed file."""
        return [Position(*row) for row in self._rows(schema.select(schema.POSITIONS))]

    def memories(self) -> list[Memory]:
        """Return what the rules of each source remember."""
        return [Memory(*row) for row in self._rows(schema.select(schema.MEMORIES))]

    def alert_events(self, source: str | None = None) -> list[AlertEvent]:
        """Return the alert events of one source or of all, oldest first."""
        sql = f"{schema.select(schema.ALERT_EVENTS)} WHERE source = coalesce(?, source) ORDER BY ts, rowid"
        return [rows.alert_event(row) for row in self._rows(sql, [source])]

    def samples_of(self, run_id: int, since_s: float | None = None) -> Iterator[Stats]:
        """Yield the samples of one run as they were read, from `since_s` on; their `pid` is not known any more."""
        special = {"ts_s": "epoch(s.ts)", "pid": "NULL", "engine_index": "e.engine_index"}
        names = ", ".join(special.get(name, f"s.{name}") for name in Stats._fields)
        sql = (
            f"SELECT {names} FROM samples s LEFT JOIN engines e USING (engine_id) "  # noqa: S608
            "WHERE s.run_id = ? AND s.ts >= coalesce(to_timestamp(?::DOUBLE), '-infinity'::TIMESTAMPTZ)"
        )
        yield from (Stats(*row) for row in self._stream(sql, [run_id, since_s]))

    def events_of(self, run_id: int) -> list[Event]:
        """Return the events of one run in order of time: their kind and numbers."""
        sql = "SELECT epoch(ts), kind, numbers FROM events WHERE run_id = ? ORDER BY ts"
        return [rows.event(row) for row in self._rows(sql, [run_id])]

    def statement_types(self, sql: str) -> list[str]:
        """Return the type of each statement in `sql`, such as SELECT; raises StoreError where it does not parse."""
        with self._cursor() as cursor, _readable(self.path):
            return [statement.type.name for statement in cursor.extract_statements(sql)]

    def syntax_tree(self, sql: str) -> str:
        """Return DuckDB's JSON syntax tree of one SELECT, without running it; an error stands in the JSON."""
        with self._cursor() as cursor, _readable(self.path):
            row = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
        return str(row[0]) if row else "{}"

    @contextlib.contextmanager
    def query(self, sql: str, *, limit_s: float) -> Iterator[Answer]:
        """Run one statement that `sqlgate` has checked, in a read-only transaction, for at most `limit_s` seconds.

        Raises StoreError, also while the rows are read.
        """
        late = threading.Event()
        with self._cursor() as cursor:

            def stop() -> None:
                late.set()
                cursor.interrupt()

            timer = threading.Timer(limit_s, stop)
            timer.daemon = True
            timer.start()
            try:
                with _readable(self.path, late, limit_s):
                    cursor.execute("BEGIN TRANSACTION READ ONLY")
                    columns, types = _run(cursor, sql)
                yield Answer(columns, types, self._chunks(cursor, late, limit_s))
            finally:
                timer.cancel()

    def _rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return list(self._stream(sql, parameters))

    def _stream(self, sql: str, parameters: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        with self._cursor() as cursor:
            with _readable(self.path):
                cursor.execute(sql, list(parameters))
            yield from self._chunks(cursor)

    def _chunks(
        self, cursor: duckdb.DuckDBPyConnection, late: threading.Event | None = None, limit_s: float = 0
    ) -> Iterator[tuple[Any, ...]]:
        while True:
            with _readable(self.path, late, limit_s):
                chunk = cursor.fetchmany(_CHUNK_ROWS)
                if late and late.is_set():
                    raise duckdb.InterruptException("interrupted")
            if not chunk:
                return
            yield from chunk

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with _readable(self.path):
            cursor = self._connected().cursor()
        self._cursors.add(cursor)
        try:
            yield cursor
        finally:
            self._cursors.discard(cursor)
            cursor.close()

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = _connect(self.path, self.read_only)
        return self._connection

    def _reopen(self) -> None:
        # A cursor that stays open would keep the broken instance alive, and the next connect would share it.
        self._disconnect()
        # Where it cannot be opened now, the next call tries again and says why.
        with contextlib.suppress(StoreError):
            self._connected()

    def _disconnect(self) -> None:
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    # The log beside the file is created anew after each checkpoint; it must not be more readable than the file.
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _readable(path: Path, late: threading.Event | None = None, limit_s: float = 0) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        if late and late.is_set():
            what, mend = f"the query took longer than {limit_s:g} s", "narrow it down, by time for instance"
            raise StoreError(what, where=str(path), mend=mend) from error
        raise StoreError(_one_line(error), where=str(path)) from error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in text)


def _connect(path: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
    if read_only and not path.exists():
        raise StoreError("there is no such store", where=str(path), mend="give its path with --db")
    try:
        with _private_files():
            # absolute, so that no prefix such as `md:` is taken for a service
            con = duckdb.connect(str(path.absolute()), read_only=read_only, config=_CONFIG)
    except duckdb.Error as error:
        raise _open_error(path, error) from error
    for setting in _SETTINGS:
        con.execute(setting)
    return con


def _open_error(path: Path, error: duckdb.Error) -> StoreError:
    text = _one_line(error)
    if "Could not set lock" in text:
        found = re.search(r"PID (\d+)", text)
        return lock.held(path, found.group(1) if found else "unknown")
    if "not a valid DuckDB database file" in text:
        return StoreError("is no DuckDB file", where=str(path), mend="give another path; it was left as it is")
    return StoreError(text, where=str(path), mend="restore a snapshot, or move it away and replay the logs")


def _prepare(
    con: duckdb.DuckDBPyConnection, path: Path, read_only: bool, migrations: Mapping[int, Sequence[str]]
) -> None:
    tables = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall()}
    if not tables and not read_only:
        _transact(con, [*schema.ddl(), f"INSERT INTO meta VALUES ('schema_version', '{schema.SCHEMA_VERSION}')"])  # noqa: S608
        return
    found = _version(con, path, tables)
    if found > schema.SCHEMA_VERSION:
        what = f"has schema version {found}, this kvlogd knows {schema.SCHEMA_VERSION}"
        raise StoreError(what, where=str(path), mend="install a newer kvlogd; the store was left as it is")
    if found == schema.SCHEMA_VERSION:
        return
    if read_only:
        raise StoreError(f"has the old schema version {found}", where=str(path), mend="open it with `kvlogd run` once")
    try:
        steps = schema.upgrade(found, migrations)
    except KeyError as error:
        mend = "open it with the kvlogd that wrote it"
        raise StoreError(f"no way leads from schema version {error} on", where=str(path), mend=mend) from error
    _transact(con, [*steps, f"UPDATE meta SET value = '{schema.SCHEMA_VERSION}' WHERE key = 'schema_version'"])  # noqa: S608


def _version(con: duckdb.DuckDBPyConnection, path: Path, tables: set[str]) -> int:
    row = None
    if "meta" in tables:
        row = con.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise StoreError("is a DuckDB file but no kvlogd store", where=str(path), mend="give another path")
    return int(row[0])


def _transact(con: duckdb.DuckDBPyConnection, statements: Sequence[str]) -> None:
    # An error leaves the transaction open; the caller closes the connection, which rolls it back.
    with _private_files():
        con.execute("BEGIN TRANSACTION")
        for statement in statements:
            con.execute(statement)
        con.execute("COMMIT")


def _run(cursor: duckdb.DuckDBPyConnection, sql: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Start the statement; return its columns' names and types."""
    if sql.lstrip()[:7].upper() == "EXPLAIN":
        plan = cursor.execute(sql).description
        return tuple(column[0] for column in plan), tuple(str(column[1]) for column in plan)
    body = sql.rstrip("; \t\r\n")
    relation = cursor.sql(body)
    types = tuple(str(kind) for kind in relation.types)
    names = [f"c{i}" for i in range(len(types))]
    shown = [_shown(name, kind) for name, kind in zip(names, types, strict=True)]
    if shown != names:
        body = f"SELECT {', '.join(shown)} FROM (\n{body}\n) AS q({', '.join(names)})"  # noqa: S608
    columns = tuple(relation.columns)
    cursor.execute(body)
    return columns, types


def _shown(name: str, kind: str) -> str:
    # DuckDB 1.5 needs pytz to hand out such values, so they leave as text.
    if kind == _WITH_ZONE:
        return _RFC3339.format(name)
    return f"CAST({name} AS VARCHAR)" if _WITH_ZONE in kind else name
