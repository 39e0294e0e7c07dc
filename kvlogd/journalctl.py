"""The child `journalctl`: its output without waiting for it, and its end.

Promises that nothing here waits for it longer than a second, also where it hangs in the kernel; that while nobody reads
the pipe makes it wait; and that it ends with this process, however that ends.
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from typing import IO

PIPE = 1 << 20
BLOCK = 256 * 1024
FAREWELL_S = 2.0
"""How long a child that has closed its output may take to end."""


class Child:
    """One journalctl. It ends when its output is closed, so it needs no signal to die with this process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "LC_ALL": "C"},
        )
        self._out, self._err = _fd(self._process.stdout), _fd(self._process.stderr)
        with suppress(OSError):  # a share of this user's pipes is used up: a small one will do
            fcntl(self._out, F_SETPIPE_SZ, PIPE)
        self.said = b""
        """The end of what it said about itself."""
        self._end_s: float | None = None
        self._is_at_end = False

    def read(self, budget: int) -> bytes:
        """Return what it has written, at most `budget` bytes."""
        blocks: list[bytes] = []
        block: bytes | None = None
        while budget > 0 and (block := _read(self._out, min(budget, BLOCK))):
            blocks.append(block)
            budget -= len(block)
        self._is_at_end = budget > 0 and block is not None
        self.said = (self.said + (_read(self._err, BLOCK) or b""))[-2048:]
        return b"".join(blocks)

    def ended(self, now_s: float) -> int | None:
        """Return its exit status once all that it wrote has been read; ends one that stays without any output."""
        if not self._is_at_end:
            return None
        status = self._process.poll()
        self._end_s = now_s if self._end_s is None else self._end_s
        if status is None and now_s - self._end_s > FAREWELL_S:
            self._process.kill()
        return status

    def leave(self) -> None:
        """End it, and wait for nothing: it may hang in the kernel."""
        self._process.kill()
        self._hang_up()

    def is_there(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it, if need be, and take leave of it; one that hangs in the kernel is left after a second."""
        if self._process.poll() is None:
            self._process.terminate()
            for _ in range(2):
                try:
                    self._process.wait(FAREWELL_S / 4)
                    break
                except subprocess.TimeoutExpired:
                    self._process.kill()
        self._hang_up()

    def _hang_up(self) -> None:
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _fd(stream: IO[bytes] | None) -> int:
    if stream is None:
        raise ValueError("no pipe")
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()


def _read(fd: int, size: int) -> bytes | None:
    """Return what is there: nothing at the end, None where more may come."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
