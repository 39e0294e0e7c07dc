"""Serves the commands while the daemon runs: SQL, status, alerts and snapshots over a Unix socket.

Promises that nothing a peer sends or fails to read stops the daemon: each has a deadline, two queries run at once, a
query ends when its asker goes, rows leave in chunks, and what goes wrong in here is counted in `health` and lives on.
Promises that root, the daemon's user and the socket's group may ask, and nobody else.
Does not bound the CPU that two queries take for their 30 s, nor every way to build one huge value in SQL.
"""

import contextlib
import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvlogd import caller, sheet, sqlgate, wire
from kvlogd.caller import Caller
from kvlogd.errors import KvlogdError, StoreError
from kvlogd.rows import Answer
from kvlogd.wire import Kind

MOST_QUERIES = 2
MOST_CALLERS = 16
MOST_SPILL_BYTES = 640 * 2**20
"""At 1 GB DuckDB refuses memory to everybody, and the daemon's own commits would fail with the query."""
WAIT_S = 10.0
_LIFE_S = {
    Kind.SQL: sqlgate.LIMIT_S + WAIT_S + 5,
    Kind.STATUS: 15.0,
    Kind.ALERTS: 30.0,
    Kind.SILENCE: 15.0,
    Kind.SNAPSHOT: 900.0,
    Kind.GPU_RELEASE: 15.0,
}
_CHUNK_ROWS = 256
_CHUNK_BYTES = 1 << 20
_TICK_S = 0.1
_CLOSE_S = 5.0
_MODE = 0o660
_COPY = ".snapshot-"


class Stoppable(Protocol):
    """What the endpoint needs of the store. Each method may be called from any thread."""

    path: Path

    def statement_types(self, sql: str) -> list[str]:
        """Return the type of each statement."""

    def syntax_tree(self, sql: str) -> str:
        """Return the syntax tree of one SELECT as JSON."""

    def query(
        self, sql: str, *, limit_s: float, started: Callable[[Callable[[], None]], None] | None = None
    ) -> AbstractContextManager[Answer]:
        """Run a checked statement. `started` is given what interrupts it: safe in any thread, at any time."""


def _no_silences(_request: Mapping[str, Any]) -> Iterable[Mapping[str, object]]:
    return ()


class Hands(NamedTuple):
    """What the daemon lends the endpoint. Each may be called from any thread."""

    store: Stoppable
    flush: Callable[[], None]
    """Commits what is waiting, or gives up within three seconds."""
    status: Callable[[], Mapping[str, object]]
    """`status.to_json` of the present state."""
    alerts: Callable[[bool], Iterable[Mapping[str, object]]]
    """The alerts that stand, or all that ever were."""
    snapshot: Callable[[Path], object]
    """Writes a consistent copy of the store to a path that is free."""
    silence: Callable[[Mapping[str, Any]], Iterable[Mapping[str, object]]] = _no_silences
    """Begins, ends or lists silences, see `silencing.obey`."""
    release: Callable[[float], Mapping[str, object]] | None = None
    """Lets go of the GPUs for so many seconds."""


class Health(NamedTuple):
    """How the endpoint has fared since it started."""

    callers: int
    answered: int
    refused: int
    dropped: int
    """Peers that went, or were too slow."""
    faults: int
    """Errors in kvlogd itself."""
    last_fault: str | None


class Endpoint:
    """The socket and its threads; use it as a context manager, inside the one of the store."""

    def __init__(self, path: Path, hands: Hands) -> None:
        self.path = path
        self._hands = hands
        self._slots = threading.BoundedSemaphore(MOST_QUERIES)
        self._copying = threading.Lock()
        self._counting = threading.Lock()
        self._health = Health(0, 0, 0, 0, 0, None)
        self._callers: dict[int, Caller] = {}
        self._closing = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._listener = _listen(path)
        found = path.stat()
        self._identity, self._group = (found.st_dev, found.st_ino), found.st_gid
        self._remove_copies()
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self) -> Health:
        """Return how it fares."""
        with self._counting:
            return self._health._replace(callers=len(self._callers))

    def close(self) -> None:
        """Cut off whoever asks, end their queries, and remove the socket."""
        if self._closing.is_set():
            return
        with contextlib.suppress(OSError):
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._listener.close()
        if not self._callers:  # else one of them still uses it
            os.close(self._wake)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._round()
            except Exception as error:  # noqa: BLE001  # a fault in here must not end the service
                self._count_fault(error)
                self._closing.wait(_TICK_S)
        for peer in self._callers.values():
            peer.cut()
            peer.hang_up()
        for _ in range(round(_CLOSE_S / _TICK_S)):
            if self._callers:
                self._tend(_TICK_S)

    def _round(self) -> None:
        # nothing to look after: sleep until somebody comes
        for fd in self._tend(_TICK_S if self._callers else None, self._listener.fileno()):
            if fd == self._listener.fileno():
                self._accept()
        if self._callers and _spilled(self._hands.store.path) > MOST_SPILL_BYTES:
            what = f"the query wrote more than {MOST_SPILL_BYTES >> 20} MiB of what memory could not hold"
            for peer in self._callers.values():
                peer.end(StoreError(what, mend="narrow it down, by time for instance"))

    def _tend(self, timeout_s: float | None, *listening: int) -> list[int]:
        """Wait for something to happen, end what nobody waits for, and close what is done."""
        poll = select.poll()
        for fd in (self._wake, *listening):
            poll.register(fd, select.POLLIN)
        for fd, peer in self._callers.items():
            if not peer.gone:
                poll.register(fd, 0)  # a hang-up is always told
        ready = [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for fd, peer in list(self._callers.items()):
            if peer.done and peer.thread is not None:
                peer.thread.join()
                peer.connection.close()
                del self._callers[fd]
            elif peer.gone or fd in ready:
                # an interrupt that comes before the query has begun is lost, so it is repeated
                peer.hang_up()
        return ready

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        peer = Caller(connection)
        refusal = self._refusal(connection)
        if refusal is None:
            peer.thread = threading.Thread(target=self._attend, args=[peer], name="endpoint-caller", daemon=True)
            try:
                peer.thread.start()
            except RuntimeError:
                refusal = KvlogdError("the system has no thread to spare", mend="raise TasksMax= of the unit")
            else:
                self._callers[connection.fileno()] = peer
                return
        self._count(refused=1)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.sendall(wire.failure(refusal))
        connection.close()

    def _refusal(self, connection: socket.socket) -> KvlogdError | None:
        if not caller.may_ask(connection, self._group):
            mend = f"run as root, or as a member of the group {caller.group_name(self._group)}"
            return KvlogdError("you may not ask this daemon", where=str(self.path), mend=mend)
        if len(self._callers) >= MOST_CALLERS:
            return KvlogdError(f"{MOST_CALLERS} commands ask the daemon already", mend="try again in a moment")
        return None

    def _attend(self, peer: Caller) -> None:
        try:
            self._answer(peer)
            self._count(answered=1)
        except KvlogdError as error:
            # a query that was ended because its asker went is nobody's fault
            self._count(dropped=1) if peer.gone else self._count(refused=1)
            self._tell(peer, peer.why or error)
        except OSError:
            self._count(dropped=1)
        except Exception as error:  # noqa: BLE001  # the next caller is served all the same
            self._count_fault(error)
            self._tell(peer, KvlogdError("the daemon failed to answer", mend="`kvlogd status` says where"))
        finally:
            peer.done = True
            os.eventfd_write(self._wake, 1)

    def _tell(self, peer: Caller, error: KvlogdError) -> None:
        with contextlib.suppress(OSError):
            peer.connection.sendall(wire.failure(error))

    def _answer(self, peer: Caller) -> None:
        request = peer.request()
        try:
            kind = Kind(request.get("kind", ""))
        except ValueError as error:
            raise KvlogdError("the daemon does not know what is asked", mend="restart it after an upgrade") from error
        with peer.at_most(_LIFE_S[kind]):
            self._check_store(request.get("store"))
            answers = {
                Kind.SQL: self._sql, Kind.STATUS: self._status, Kind.ALERTS: self._alerts,
                Kind.SNAPSHOT: self._snapshot, Kind.SILENCE: self._silence, Kind.GPU_RELEASE: self._release,
            }  # fmt: skip
            answers[kind](peer, request)

    def _check_store(self, asked: object) -> None:
        """Raise KvlogdError where another store is meant; the asker may not be able to look into our folder."""
        own = self._hands.store.path.absolute()
        if asked is None or asked == str(own):
            return
        with contextlib.suppress(OSError, ValueError):
            if isinstance(asked, str) and Path(asked).samefile(own):
                return
        raise KvlogdError(wire.OTHER_STORE, where=str(own), mend="name that store, or none")

    def _sql(self, peer: Caller, request: Mapping[str, Any]) -> None:
        sql, most = request.get("sql"), request.get("max_rows")
        if not isinstance(sql, str):
            raise KvlogdError("the request has no SQL")
        limit = min(most, sheet.MOST_ROWS) if isinstance(most, int) and most >= 0 else sheet.MOST_ROWS
        with self._slot(peer):
            self._flush()
            sqlgate.check(sql, self._hands.store)
            with self._hands.store.query(sql, limit_s=sqlgate.LIMIT_S, started=peer.may_stop) as found:
                peer.send({"v": wire.VERSION, "columns": found.columns, "types": found.types})
                rows = (sheet.sent(row) for row in sheet.limited(found.rows, limit))
                sent = _send_chunks(peer, "rows", rows)
            peer.may_stop(None)
        peer.send({"end": sent})

    @contextlib.contextmanager
    def _slot(self, peer: Caller) -> Iterator[None]:
        for _ in range(round(WAIT_S / _TICK_S)):
            if self._slots.acquire(timeout=_TICK_S):
                break
            if peer.gone:
                raise ConnectionResetError
        else:
            raise KvlogdError(f"{MOST_QUERIES} queries run already", mend="try again in a moment")
        try:
            yield
        finally:
            self._slots.release()

    def _flush(self) -> None:
        # what could not be committed is the daemon's to tell; the rows that are there can be read
        with contextlib.suppress(KvlogdError):
            self._hands.flush()

    def _status(self, peer: Caller, _request: Mapping[str, Any]) -> None:
        peer.send({"v": wire.VERSION, "status": self._hands.status()})
        peer.send({"end": 1})

    def _release(self, peer: Caller, request: Mapping[str, Any]) -> None:
        for_s = request.get("for_s")
        if self._hands.release is None or isinstance(for_s, bool) or not isinstance(for_s, int | float):
            raise KvlogdError("the request does not say for how long")
        peer.send({"v": wire.VERSION, "released": self._hands.release(float(for_s))})
        peer.send({"end": 1})

    def _alerts(self, peer: Caller, request: Mapping[str, Any]) -> None:
        peer.send({"v": wire.VERSION})
        peer.send({"end": _send_chunks(peer, "items", self._hands.alerts(request.get("all") is True))})

    def _silence(self, peer: Caller, request: Mapping[str, Any]) -> None:
        found = self._hands.silence(request)
        peer.send({"v": wire.VERSION})
        peer.send({"end": _send_chunks(peer, "items", found)})

    def _snapshot(self, peer: Caller, _request: Mapping[str, Any]) -> None:
        if not self._copying.acquire(blocking=False):
            raise StoreError("another snapshot is being made", mend="try again when it is done")
        copy = self._hands.store.path.absolute().parent / f"{_COPY}{os.getpid()}.duckdb"
        try:
            self._flush()
            copy.unlink(missing_ok=True)
            self._hands.snapshot(copy)
            self._send_file(peer, copy)
        finally:
            copy.unlink(missing_ok=True)
            self._copying.release()

    def _send_file(self, peer: Caller, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            peer.send({"v": wire.VERSION, "bytes": size})
            while block := file.read(_CHUNK_BYTES):
                peer.connection.sendall(block)
            peer.send({"end": size})

    def _remove_copies(self) -> None:
        """Remove what a daemon that was killed left behind."""
        for left in self._hands.store.path.absolute().parent.glob(f"*{_COPY}*"):
            left.unlink(missing_ok=True)

    def _count(self, **more: int) -> None:
        with self._counting:
            health = self._health
            self._health = health._replace(**{name: getattr(health, name) + n for name, n in more.items()})

    def _count_fault(self, error: Exception) -> None:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        # the message might hold what was asked
        where = f" in {place.tb_frame.f_code.co_name}, line {place.tb_lineno}" if place else ""
        self._count(faults=1)
        with self._counting:
            self._health = self._health._replace(last_fault=f"{type(error).__name__}{where}")


def _spilled(store: Path) -> int:
    """Return the bytes that queries have put aside on disk, in the folder that DuckDB makes beside the store."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(f"{store}.tmp") as found:
        for entry in found:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


def _send_chunks(peer: Caller, name: str, items: Iterable[object]) -> int:
    count, left = 0, iter(items)
    while chunk := list(islice(left, _CHUNK_ROWS)):
        if peer.gone:
            raise ConnectionResetError
        peer.send({name: chunk})
        count += len(chunk)
    return count


def _listen(path: Path) -> socket.socket:
    """Return the listening socket; raises StoreError where a living one is there, or none can be made."""
    _refuse_to_replace(path)
    # made under another name, so that nobody connects before its mode is right, and a dead one is replaced at once
    made = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.unlink(missing_ok=True)
        with wire.address(made) as address:
            listener.bind(address)
        made.chmod(_MODE)
        listener.listen(MOST_CALLERS)
        made.rename(path)
    except OSError as error:
        listener.close()
        mend = "create the folder, or set `store: {socket: …}` in the config"
        raise StoreError(f"cannot listen: {error.strerror or error}", where=str(path), mend=mend) from error
    return listener


def _refuse_to_replace(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise StoreError("is there already and is no socket", where=str(path), mend="name another in the config")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            with wire.address(path) as address:
                probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            mend = "stop that daemon, or name another socket in the config"
            raise StoreError(f"somebody listens there ({error.strerror})", where=str(path), mend=mend) from error
        mend = "stop it, or set `store: {socket: …}` in the config"
        raise StoreError(f"process {caller.served_by(probe)} listens there", where=str(path), mend=mend)
