"""What the tailers hand on: whole lines of one log, with the place from which reading goes on once they are stored."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from kvlogd.model import Gap
from kvlogd.rows import Position


class Piece(NamedTuple):
    """The next bytes of one log. All of it commits together: rows of `data`, `position` and `gaps`."""

    log: str
    """Name of the log in findings: that of the source, or of one of its files."""
    data: bytes
    """Whole lines, each with its newline; empty where only the position or a gap has news."""
    position: Position | None
    """None where nothing moved: a gap alone."""
    gaps: Sequence[Gap] = ()
    is_last: bool = False
    """True where `data` ends with the last line of a file that has none after it: it may lack its newline."""
    mtime_s: float | None = None
    """When the log was last written, by the host's clock: it tells the year of stamps without one."""
    unpacked_bytes: int = 0
    """How many were unpacked on the way to what comes next."""


class Health(NamedTuple):
    """How a tailer fares, for `kvlogd status`: numbers, and words of our own."""

    log: str
    state: str
    """`reading`, `waiting` (nothing there yet), `unreadable`, `restarting`, `skipped` (no log), ..."""
    behind_bytes: int | None
    """Bytes that are there and not read yet; None where that cannot be known (journald)."""
    mend: str = ""
    """What to do about it, where something is wrong."""


SEEING = ("reading", "waiting")
"""States of a log that is silent where nothing comes; in others it is kvlogd that does not see it."""


class Tailer(Protocol):
    """Reads what one source writes, from where the store says that it was left. Never blocks, starts no thread."""

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> list[Piece]:
        """Return what is new, about `budget_bytes` at most; `now_s` is monotonic time, `wall_s` the host's clock."""
        ...

    def hint(self) -> None:
        """Say that files may have come, gone or changed their names."""
        ...

    def folders(self) -> set[Path]:
        """Return the folders in which its files come and go."""
        ...

    def health(self) -> list[Health]:
        """Return how each of its logs fares."""
        ...

    def blind(self, logs: Iterable[str]) -> set[str]:
        """Return which of these logs it cannot see now: that they say nothing is not their silence."""
        ...

    def has_seen(self, log: str) -> bool:
        """Return whether this log has been there since the start: no file, no silence."""
        ...

    def close(self) -> None:
        """Let go of files and children. What was handed out and not committed is read again next time."""
        ...
