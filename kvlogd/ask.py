"""Asks the daemon over its socket.

Promises to read an answer as fast as it comes, so that a pager that is not read holds no query open in the daemon, and
that an answer which fails half-way is an error and no half answer. To leave a `with` block, as ^C does, ends the query.
"""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kvlogd import sheet, wire
from kvlogd.errors import KvlogdError, StoreError
from kvlogd.progress import Advance
from kvlogd.rows import Answer
from kvlogd.status import Status, from_json
from kvlogd.wire import Kind

_ANSWER_S = 60.0
_SNAPSHOT_S = 900.0
_IN_MEMORY_BYTES = 16 * 2**20
_BLOCK_BYTES = 1 << 20
_FILE_MODE = 0o640


class AbsentError(KvlogdError):
    """No daemon serves this store, or none that we may ask: the daemon was `refusing`."""

    def __init__(self, what: str, *, where: str = "", mend: str = "", refusing: bool = False) -> None:
        super().__init__(what, where=where, mend=mend)
        self.refusing = refusing


class Talk:
    """One request's answer, line by line."""

    def __init__(self, connection: socket.socket, place: Path) -> None:
        self._place = place
        self._file = connection.makefile("rb")

    def read(self) -> dict[str, Any]:
        """Return the next message; raises KvlogdError: the daemon's own, or that it went away."""
        message = wire.message(self.line())
        error = message.get("error")
        if isinstance(error, dict):
            what, where, mend = (str(error.get(part, "")) for part in ("what", "where", "mend"))
            raise StoreError(sheet.escaped(what), where=sheet.escaped(where), mend=sheet.escaped(mend))
        return message

    def line(self) -> bytes:
        """Return the next line."""
        try:
            line = self._file.readline()
        except TimeoutError as error:
            mend = "look at `systemctl status kvlogd`"
            raise StoreError("the daemon does not answer", where=str(self._place), mend=mend) from error
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise StoreError("the daemon ended the connection", where=str(self._place), mend="ask again")
        return line

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield this many bytes; raises StoreError where they do not come."""
        while size:
            try:
                block = self._file.read(min(size, _BLOCK_BYTES))
            except OSError:
                block = b""
            if not block:
                raise StoreError("the daemon ended the connection", where=str(self._place), mend="try again")
            size -= len(block)
            yield block

    def close(self) -> None:
        """Let go of the connection."""
        self._file.close()


@contextlib.contextmanager
def _asked(
    places: Sequence[Path], store: Path, kind: Kind, limit_s: float, **more: object
) -> Iterator[tuple[dict[str, Any], Talk]]:
    """Yield the head of the answer and what follows; raises AbsentError where no daemon keeps that store."""
    request = wire.line({"v": wire.VERSION, "kind": kind, "store": str(store.absolute()), **more})
    absent = AbsentError(
        "no daemon serves this store",
        where=str(store),
        mend="`sudo systemctl start kvlogd`; `sudo kvlogd install` puts it here",
    )
    for place in places:
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(_connected(place, limit_s))
            except PermissionError:
                absent = _refused(place)
                continue
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                continue
            talk = stack.enter_context(contextlib.closing(Talk(connection, place)))
            # who was refused has its answer before it asked
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            try:
                head = talk.read()
            except StoreError as error:
                if error.what == wire.OTHER_STORE:
                    continue
                raise
            yield head, talk
            return
    raise absent


@contextlib.contextmanager
def _connected(place: Path, limit_s: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        with wire.address(place) as address:
            connection.connect(address)
        yield connection


def _refused(place: Path) -> AbsentError:
    try:
        group = f"of the group {place.group()}"
    except (KeyError, OSError):
        group = "of its group"
    mend = f"run as root, or as a member {group}"
    return AbsentError("you may not ask the daemon", where=str(place), mend=mend, refusing=True)


@contextlib.contextmanager
def sql(places: Sequence[Path], store: Path, query: str, max_rows: int) -> Iterator[Answer]:
    """Ask a query; the whole answer has come, and the daemon is done with it, when the block begins."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        with _asked(places, store, Kind.SQL, _ANSWER_S, sql=query, max_rows=max_rows) as (head, talk):
            while "end" not in (message := talk.read()):
                spool.write(json.dumps(message["rows"]).encode() + b"\n")
        spool.seek(0)
        types = tuple(str(kind) for kind in head["types"])
        yield Answer(tuple(head["columns"]), types, _rows(spool, types))


def _rows(spool: "tempfile.SpooledTemporaryFile[bytes]", types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for line in spool:
        yield from (sheet.received(row, types) for row in json.loads(line))


def status(places: Sequence[Path], store: Path) -> Status:
    """Ask how the daemon is."""
    with _asked(places, store, Kind.STATUS, _ANSWER_S) as (head, talk):
        talk.read()
    return from_json(head.get("status", {}))


def release(places: Sequence[Path], store: Path, for_s: float) -> dict[str, Any]:
    """Ask the daemon to let go of the GPUs for so long; 0 takes them up again."""
    with _asked(places, store, Kind.GPU_RELEASE, _ANSWER_S, for_s=for_s) as (head, talk):
        talk.read()
    released: dict[str, Any] = head.get("released", {})
    return released


def alerts(places: Sequence[Path], store: Path, *, also_over: bool) -> list[dict[str, Any]]:
    """Ask for the alerts that fire, or for all that ever did: `board.Entry` as plain values."""
    with _asked(places, store, Kind.ALERTS, _ANSWER_S, all=also_over) as (_, talk):
        return _items(talk)


def silence(places: Sequence[Path], store: Path, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ask for a silence to begin or end, or for those in force."""
    with _asked(places, store, Kind.SILENCE, _ANSWER_S, **request) as (_, talk):
        return _items(talk)


def _items(talk: Talk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while "end" not in (message := talk.read()):
        found += message["items"]
    return found


def snapshot(places: Sequence[Path], store: Path, target: Path, progress: Advance | None = None) -> int:
    """Ask for a copy of the store and write it to `target`, whole or not at all; return its bytes.

    The bytes come over the socket, because a daemon may not be allowed to write where we are.
    """
    with _asked(places, store, Kind.SNAPSHOT, _SNAPSHOT_S) as (head, talk):
        size, done = int(head["bytes"]), 0
        with _new_file(target) as file:
            for block in talk.blocks(size):
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, size)
            talk.read()
    return size


@contextlib.contextmanager
def _new_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a file that is at `target` afterwards, where nothing may be before; raises StoreError."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            # unlike a rename, a link takes no file's place
            target.hardlink_to(part)
        finally:
            part.unlink()
    except FileExistsError as error:
        raise StoreError("is there already", where=str(target), mend="name a new file") from error
    except OSError as error:
        mend = "name a file in a folder with room where you may write"
        raise StoreError(f"cannot write: {error.strerror or error}", where=str(target), mend=mend) from error
