"""One connection to the daemon's socket: read its request, write its answer, and know when nobody wants it any more.

Promises that no peer holds a thread for longer than its deadline, however slowly it reads or writes.
"""

import contextlib
import grp
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvlogd import wire
from kvlogd.errors import KvlogdError

REQUEST_S = 5.0
_STALL_S = 10.0
_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)


class Caller:
    """A peer. `hang_up` may be called from any thread, the rest from the one that attends to it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.gone = False
        """It has closed the connection, or was cut off."""
        self.done = False
        """Its thread has finished with it."""
        self.thread: threading.Thread | None = None
        self.why: KvlogdError | None = None
        """Why its query was ended, where it was us who did it."""
        self._stop: Callable[[], None] | None = None
        self._guard = threading.Lock()
        connection.settimeout(_STALL_S)

    def request(self) -> dict[str, Any]:
        """Return what it asks; raises KvlogdError where that is no request, OSError where nothing comes in time."""
        with self.at_most(REQUEST_S):
            received = b""
            while b"\n" not in received:
                more = self.connection.recv(65_536)
                if not more:
                    raise ConnectionResetError
                received += more
                if len(received) > wire.MAX_REQUEST_BYTES:
                    raise KvlogdError(f"the request is larger than {wire.MAX_REQUEST_BYTES} bytes")
        return wire.message(received.partition(b"\n")[0])

    def send(self, message: Mapping[str, object]) -> None:
        """Send one message; raises OSError where it cannot be told in time."""
        self.connection.sendall(wire.line(message))

    @contextlib.contextmanager
    def at_most(self, limit_s: float) -> Iterator[None]:
        """Cut the peer off where the block takes longer."""
        timer = threading.Timer(limit_s, self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def cut(self) -> None:
        """End the connection under whoever waits for it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def may_stop(self, stop: Callable[[], None] | None) -> None:
        """Remember what ends the work that is done for it now."""
        with self._guard:
            self._stop = stop
        if self.gone and stop is not None:
            stop()

    def hang_up(self) -> None:
        """End what is done for it: nobody wants the answer."""
        self.gone = True
        self._end(None)

    def end(self, why: KvlogdError) -> None:
        """End its query, where one runs, and tell it why."""
        self._end(why)

    def _end(self, why: KvlogdError | None) -> None:
        with self._guard:
            stop = self._stop
        if stop is not None:
            self.why = self.why or why
            stop()


def may_ask(connection: socket.socket, group: int) -> bool:
    """Tell whether the peer is root, the daemon's own user, or of the socket's group."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, gid = _CREDENTIALS.unpack(raw)
    return uid in (0, os.geteuid()) or group == gid or group in _groups(connection)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4096)
    except OSError:  # before Linux 4.13; the socket's mode has kept others out all the same
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def served_by(connection: socket.socket) -> int:
    """Return the process on the other side."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def group_name(group: int) -> str:
    """Return a group's name, or its number."""
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
