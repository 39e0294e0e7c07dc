"""The only reader of clocks, and what the main loop waits on.

Intervals are measured by the monotonic clock; the host's clock is for display, file times and what is kept how long.
"""

import contextlib
import os
import select
import time


class Clock:
    """The clocks of this host."""

    def monotonic_s(self) -> float:
        """Return seconds that no change of the host's clock touches."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Return Unix seconds by the host's clock."""
        return time.time()


class Waker:
    """Wakes the main loop from any thread and from signal handlers: a pipe, for locks may deadlock in a handler."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def fd(self) -> int:
        """The end to write to; `signal.set_wakeup_fd` takes it."""
        return self._write_fd

    def wake(self) -> None:
        """Let the loop look at once."""
        with contextlib.suppress(BlockingIOError):  # it is full of wakes already
            os.write(self._write_fd, b"\0")

    def wait(self, longest_s: float) -> bool:
        """Wait until somebody wakes, or for so long; return whether somebody did."""
        ready, _, _ = select.select([self._read_fd], [], [], max(0.0, longest_s))
        if not ready:
            return False
        while len(self._drained()) == 4096:
            pass
        return True

    def _drained(self) -> bytes:
        try:
            return os.read(self._read_fd, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._read_fd)
        os.close(self._write_fd)
