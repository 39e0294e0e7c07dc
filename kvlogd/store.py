"""The DuckDB file: opens it, commits a batch in one transaction, reads it back, and runs checked read-only SQL.

Promises that a batch is there whole or not at all, also after kill -9 or on a full disk. After a StoreError out of
`commit` nobody knows which (a commit may be durable although it raised): read `positions` and go on from there.
Other threads may query and take snapshots while one thread writes; where the writer must reopen, their queries end.
Does not promise two writers at once, nor reading by another process while a writer is there.
Nobody may open the .duckdb file itself in this process: closing it again would drop DuckDB's lock.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import duckdb

from kvlogd import asking, disk, export, lock, migration, recovery, schema, snapshot, table, transaction
from kvlogd.errors import StoreError
from kvlogd.history import History
from kvlogd.lease import Lease
from kvlogd.recovery import Recovery
from kvlogd.rows import Answer, Batch

_CHUNK_ROWS = 4096
_CHECKPOINT_TRIES = 20
_CHECKPOINT_WAIT_S = 0.01
_MEMORY_MB = 128
_REPLAY_MB = 1024
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    # so that DuckDB 1.5 opens what 2.0 wrote
    "storage_compatibility_version": "v1.5.0",
    # 2.0 starts eight more threads for reading remote files
    **({} if duckdb.__version__.startswith("1.") else {"async_threads": 1}),
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
)
_FENCE = (
    # The daily export writes there; users' SQL is kept away from it by `sqlgate` alone.
    "SET allowed_directories = [{export}]",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_DAMAGE = ("Corrupt database file", "Could not read enough bytes", "corrupt")


class Store(History):
    """One open store; use it as a context manager. One thread writes; `query` and `snapshot` are for any thread."""

    def __init__(self, path: Path, *, read_only: bool, lock_fd: int | None, memory_mb: int = _MEMORY_MB) -> None:
        self.path = path
        self._memory_mb = memory_mb
        self.read_only = read_only
        self._lock_fd = lock_fd
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_broken = False
        self._is_closed = False
        self._leases: set[Lease[duckdb.DuckDBPyConnection]] = set()
        # Taken in this order: who may use the connection itself; who may change it or the leases.
        self._writing = threading.RLock()
        self._guard = threading.RLock()

    @classmethod
    def open(
        cls, path: Path, *, read_only: bool = False, migrations: Mapping[int, Sequence[str]] | None = None
    ) -> Self:
        """Open the store at `path`, creating or migrating it unless `read_only`.

        Raises StoreError where it is locked, damaged, newer than this kvlogd, or no store at all.
        """
        fd = None if read_only else lock.take(path)
        ready = False
        try:
            store = cls._opened(path, fd, read_only=read_only, migrations=migrations)
            ready = True
        finally:
            if fd is not None and not ready:
                os.close(fd)
        return store

    @classmethod
    def open_or_recover(cls, path: Path, wall_s: float) -> tuple[Self, tuple[Recovery, ...]]:
        """Open the store at `path` as `open` does, giving up what is damaged of its write-ahead log.

        Returns what was given up, which also stands in `gaps`. Raises StoreError where the main file is damaged.
        """
        fd = lock.take(path)
        given_up: list[Recovery] = []
        ready = False
        try:
            with recovery.wal_kept(path):
                store = cls._recovered(path, fd, wall_s, given_up)
            ready = True
        finally:
            if not ready:
                os.close(fd)
        # Where that cannot be stored now, the caller has it all the same.
        with contextlib.suppress(StoreError):
            if given_up:
                store.commit(Batch(gaps=[recovery.gap(each, store.newest_s()) for each in given_up]))
        return store, tuple(given_up)

    @classmethod
    def _recovered(cls, path: Path, fd: int, wall_s: float, given_up: list[Recovery]) -> Self:
        memory_mb = _MEMORY_MB
        while True:
            try:
                store = cls._opened(path, fd, memory_mb=memory_mb)
                break
            except StoreError as error:
                # A log that is large takes more memory to replay than to write.
                if "Out of Memory" in error.what and memory_mb < _REPLAY_MB:
                    memory_mb = _REPLAY_MB
                    continue
                mended = recovery.repair(path, error.what, wall_s, is_first=not given_up)
                if mended is None:
                    raise
                given_up.append(mended)
        if memory_mb != _MEMORY_MB and store.checkpoint():
            store._memory_mb = _MEMORY_MB
            store._reopen()
        return store

    @classmethod
    def _opened(
        cls,
        path: Path,
        fd: int | None,
        *,
        read_only: bool = False,
        migrations: Mapping[int, Sequence[str]] | None = None,
        memory_mb: int = _MEMORY_MB,
    ) -> Self:
        store = cls(path, read_only=read_only, lock_fd=fd, memory_mb=memory_mb)
        ready = False
        try:
            steps = schema.migrations() if migrations is None else migrations
            with readable(path):
                migration.prepare(store._connected(), path, read_only, steps)
            ready = True
        finally:
            if not ready:
                store._disconnect()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the queries, checkpoint where the disk has room, close, and let the next writer in."""
        with self._writing, self._guard:
            self._end_queries(self._failed("the store was closed"))
            # What a checkpoint could not do is still safe in the write-ahead log, and the next open does it.
            with contextlib.suppress(StoreError):
                self.checkpoint()
            self._is_closed = True
            self._disconnect()
            self._unlock()

    def checkpoint(self) -> bool:
        """Write the log into the file; return False where the disk lacks room or a query stands in the way.

        Raises StoreError, then reopens.
        """
        with self._writing:
            if self.read_only or self._connection is None or not disk.has_room_for_checkpoint(self.path):
                return False
            with self._reopened_on_error("cannot checkpoint"), disk.private_files():
                return any(_checkpointed(self._connected()) for _ in range(_CHECKPOINT_TRIES))

    def log_bytes(self) -> int:
        """Return the size of the write-ahead log: what was committed since the last checkpoint."""
        return disk.size_of(disk.wal_of(self.path))

    def renew(self) -> bool:
        """Give back what DuckDB keeps to itself: 7 MB after a thousand small commits. Not while somebody reads.

        Raises StoreError. Returns whether it was done.
        """
        with self._writing, self._guard:
            if self._leases or not self.checkpoint():
                return False
            self._reopen()
            return True

    def commit(self, batch: Batch) -> None:
        """Write the batch in one transaction.

        Raises StoreError; the database has then been reopened, and what is in it must be read again. Where the disk
        has too little room it is refused before anything is touched: the message says how much is lacking.
        """
        disk.refuse_when_full(self.path)
        with self._transaction() as con:
            transaction.write(con, batch)

    def transact(self, statements: Iterable[tuple[str, Sequence[object]]]) -> None:
        """Run statements of our own in one transaction; raises StoreError as `commit` does."""
        disk.refuse_when_full(self.path)
        with self._transaction() as con:
            for sql, parameters in statements:
                con.execute(sql, list(parameters))

    def copy_out(self, select: str, target: Path) -> None:
        """Write the rows of a query of our own to a Parquet file in the export folder. Raises StoreError."""
        disk.refuse_when_full(self.path)
        options = "FORMAT parquet, COMPRESSION zstd"
        with self._lease() as lease, self._reading(lease) as cursor, disk.private_files():
            cursor.execute(f"COPY ({select}) TO {table.quoted(str(target))} ({options})")

    def snapshot(self, target: Path) -> None:
        """Write a consistent copy that any DuckDB client opens; commits go on meanwhile.

        Raises StoreError, also where `target` is there already.
        """
        for _ in range(snapshot.MOST_TRIES):
            if not self.checkpoint():
                raise self._failed("cannot checkpoint", "free disk space")
            if snapshot.copied(self.path, target):
                return
        raise self._failed("the store changed too fast to be copied", "try again later")

    def statement_types(self, sql: str) -> list[str]:
        """Return the type of each statement in `sql`, such as SELECT; raises StoreError where it does not parse."""
        with self._lease() as lease, self._reading(lease) as cursor:
            return [statement.type.name for statement in cursor.extract_statements(sql)]

    def syntax_tree(self, sql: str) -> str:
        """Return DuckDB's JSON syntax tree of one SELECT, without running it; an error stands in the JSON."""
        with self._lease() as lease, self._reading(lease) as cursor:
            row = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
        return str(row[0]) if row else "{}"

    @contextlib.contextmanager
    def query(
        self, sql: str, *, limit_s: float, started: Callable[[Callable[[], None]], None] | None = None
    ) -> Iterator[Answer]:
        """Run one statement that `sqlgate` has checked, in a read-only transaction, for at most `limit_s` seconds.

        `started` is given what breaks it off, from any thread. Raises StoreError, also while the rows are read.
        """
        late = self._failed(f"the query took longer than {limit_s:g} s", "narrow it down, by time for instance")
        with self._lease() as lease:
            timer = threading.Timer(limit_s, lease.interrupt, [late])
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError as error:
                raise self._failed("the system has no thread to spare", "raise TasksMax= of the unit") from error
            if started is not None:
                started(partial(lease.interrupt, self._failed("the query was broken off")))
            try:
                with self._reading(lease) as cursor:
                    cursor.execute("BEGIN TRANSACTION READ ONLY")
                    columns, types = asking.start(cursor, sql)
                yield Answer(columns, types, self._chunks(lease))
            finally:
                timer.cancel()

    def _stream(self, sql: str, parameters: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        with self._lease() as lease:
            with self._reading(lease) as cursor:
                cursor.execute(sql, list(parameters))
            yield from self._chunks(lease)

    def _chunks(self, lease: Lease[duckdb.DuckDBPyConnection]) -> Iterator[tuple[Any, ...]]:
        while True:
            with self._reading(lease) as cursor:
                chunk = cursor.fetchmany(_CHUNK_ROWS)
            if not chunk:
                return
            yield from chunk

    @contextlib.contextmanager
    def _lease(self) -> Iterator[Lease[duckdb.DuckDBPyConnection]]:
        with self._guard, readable(self.path):
            lease = Lease(self._connected().cursor())
            self._leases.add(lease)
        try:
            yield lease
        finally:
            lease.close()
            with self._guard:
                self._leases.discard(lease)

    @contextlib.contextmanager
    def _reading(self, lease: Lease[duckdb.DuckDBPyConnection]) -> Iterator[duckdb.DuckDBPyConnection]:
        try:
            with lease.use() as cursor:
                yield cursor
        except duckdb.Error as error:
            raise lease.why or failure(self.path, error) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._writing, self._reopened_on_error("cannot commit"), disk.private_files():
            con = self._connected()
            con.execute("BEGIN TRANSACTION")
            yield con
            con.execute("COMMIT")

    @contextlib.contextmanager
    def _reopened_on_error(self, what: str) -> Iterator[None]:
        done = False
        try:
            yield
            done = True
        except (duckdb.Error, ValueError, OverflowError) as error:
            mend = _salvage(self.path, str(error)) or "the store was reopened: read the positions again"
            raise self._failed(f"{what}: {_one_line(error)}", mend) from error
        finally:
            if not done:
                self._reopen()

    def _connected(self) -> duckdb.DuckDBPyConnection:
        with self._guard:
            if self._is_closed:
                raise self._failed("the store was closed")
            if self._is_broken and not self._disconnect():
                raise self._failed("a query holds the broken store open", "it is tried again")
            if self._connection is None:
                self._connection = _connect(self.path, self.read_only, self._memory_mb)
            return self._connection

    def _reopen(self) -> None:
        # A cursor that stays open would keep the broken instance alive, and the next connect would share it.
        self._is_broken = True
        # Where it cannot be opened now, the next call tries again and says why.
        with contextlib.suppress(StoreError):
            self._connected()

    def _disconnect(self) -> bool:
        with self._guard:
            if not self._end_queries(self._failed("the store had to be reopened", "ask again")):
                return False
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._is_broken = False
            return True

    def _end_queries(self, why: StoreError) -> bool:
        self._leases = {lease for lease in self._leases if not lease.end(why)}
        return not self._leases

    def _failed(self, what: str, mend: str = "") -> StoreError:
        return StoreError(what, where=str(self.path), mend=mend)

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


@contextlib.contextmanager
def workshop(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend a connection to a file of ours that may read other files too, for statements that are all our own."""
    with readable(path), disk.private_files():
        con = duckdb.connect(str(path.absolute()), config={**_CONFIG, "memory_limit": f"{_REPLAY_MB}MB"})
        try:
            for setting in _SETTINGS:
                con.execute(setting)
            yield con
        finally:
            con.close()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors into StoreError."""
    try:
        yield
    except duckdb.Error as error:
        raise failure(path, error) from error


def failure(path: Path, error: duckdb.Error) -> StoreError:
    """Return what DuckDB complains about as one line."""
    return StoreError(_one_line(error), where=str(path), mend=_salvage(path, str(error)))


def _salvage(path: Path, text: str) -> str:
    is_damaged = any(word in text for word in _DAMAGE)
    return f"the file is damaged: stop kvlogd, then `kvlogd store salvage --db {path}`" if is_damaged else ""


def _one_line(error: BaseException) -> str:
    # what DuckDB advises behind its own words are settings that kvlogd does not offer
    said = str(error).partition("\nPossible solutions:")[0]
    text = " ".join(said.split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in text)


def _connect(path: Path, read_only: bool, memory_mb: int) -> duckdb.DuckDBPyConnection:
    if read_only:
        disk.refuse_absent(path)
    try:
        with disk.private_files():
            # absolute, so that no prefix such as `md:` is taken for a service
            config = {**_CONFIG, "memory_limit": f"{memory_mb}MB"}
            con = duckdb.connect(str(path.absolute()), read_only=read_only, config=config)
        folder = table.quoted(str(export.folder_of(path)))
        for setting in (*_SETTINGS, *_FENCE):
            con.execute(setting.format(export=folder))
    except duckdb.Error as error:
        raise _open_error(path, error) from error
    return con


def _checkpointed(con: duckdb.DuckDBPyConnection) -> bool:
    try:
        con.execute("CHECKPOINT")
    except duckdb.TransactionException:
        # A transaction that is over keeps the lock until the query that saw it last ends, which is soon.
        threading.Event().wait(_CHECKPOINT_WAIT_S)
        return False
    return True


def _open_error(path: Path, error: duckdb.Error) -> StoreError:
    text = _one_line(error)
    if "Could not set lock" in text:
        found = re.search(r"PID (\d+)", text)
        return lock.held(path, found.group(1) if found else "unknown", lock.OutsiderError)
    if "not a valid DuckDB database file" in text:
        return StoreError("is no DuckDB file", where=str(path), mend="give another path; it was left as it is")
    if "WAL file" in text:
        return StoreError(
            text, where=str(path), mend="`kvlogd run` sets aside what is damaged and reads the logs again"
        )
    if "Permission denied" in text:
        return StoreError("you may not read it", where=str(path), mend="run as root, or as the user of the daemon")
    mend = f"it was left as it is: `kvlogd store salvage --db {path}`, or restore a snapshot"
    return StoreError(text, where=str(path), mend=mend)
