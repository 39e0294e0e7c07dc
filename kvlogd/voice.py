"""What the daemon says of itself, in its own log: one line for each distinct trouble, and one when it is over.

Promises that a trouble which lasts says so once an hour, however often it is met. Text is our own words and numbers.
"""

import contextlib
from enum import IntEnum
from typing import NamedTuple, TextIO

AGAIN_S = 3600.0
KEPT = 10_000
"""Troubles that are remembered, so that none is said again too soon."""
SHOWN = 50
"""Those of them, the latest to begin, that `kvlogd status` shows."""


class Level(IntEnum):
    """How bad it is; the numbers are syslog's."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class Complaint(NamedTuple):
    """A trouble that lasts."""

    where: str
    what: str
    since_s: float
    """By the host's clock, like `last_s`."""
    last_s: float
    times: int
    said_s: float
    """Monotonic."""


class Voice:
    """Writes lines to our log. With `for_journal`, each begins with the priority that journald takes off."""

    def __init__(self, out: TextIO, *, for_journal: bool) -> None:
        self._out = out
        self._for_journal = for_journal
        self._complaints: dict[str, Complaint] = {}

    def say(self, level: Level, text: str) -> None:
        """Write one line."""
        clean = "".join(char if char.isprintable() else " " for char in text)
        # a log that nobody takes, or a disk that is full, must not end the watch
        with contextlib.suppress(OSError):
            self._out.write(f"<{level}>{clean}\n" if self._for_journal else f"kvlogd: {clean}\n")
            self._out.flush()

    def complain(self, where: str, what: str, now_s: float, wall_s: float, level: Level = Level.WARNING) -> None:
        """Tell of a trouble, unless the same was told of this place within the hour."""
        old = self._complaints.get(where)
        if old is None or old.what != what:
            self.say(level, f"{where}: {what}")
            self._complaints[where] = Complaint(where, what, wall_s, wall_s, 1, now_s)
        else:
            again = now_s - old.said_s >= AGAIN_S
            if again:
                self.say(level, f"{where}: {what} ({old.times + 1} times so far)")
            said_s = now_s if again else old.said_s
            self._complaints[where] = old._replace(last_s=wall_s, times=old.times + 1, said_s=said_s)
        while len(self._complaints) > KEPT:
            del self._complaints[next(iter(self._complaints))]

    def relent(self, where: str) -> None:
        """Say that the trouble of a place is over, if there was one."""
        if self._complaints.pop(where, None) is not None:
            self.say(Level.NOTICE, f"{where}: in order again")

    def has(self, where: str) -> bool:
        """Return whether the trouble of a place lasts."""
        return where in self._complaints

    def forget(self, where: str) -> None:
        """Let the trouble of a place that is no more be forgotten, without a word."""
        self._complaints.pop(where, None)

    def complaints(self) -> list[Complaint]:
        """Return the troubles that last: the latest to begin, where they are many."""
        return list(self._complaints.values())[-SHOWN:]
