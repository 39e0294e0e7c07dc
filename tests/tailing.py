"""Follows real logs as the daemon does: pieces are committed with their positions, and a restart knows only those.

Lines are numbered, so that what is missing or repeated can be named. Writers are processes of their own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvlogd.model import Gap
from kvlogd.piece import Health, Piece
from kvlogd.rows import Position
from kvlogd.tail import Tail, globbed
from kvlogd.watch import Watch
from tests.waiting import until

BUDGET = 4 << 20

both_ways = pytest.mark.parametrize("is_watched", [False, True], ids=["polled", "watched"])
"""Events are hints: all that is promised must hold without them."""

WRITER = r"""
import os, sys
path, appends = sys.argv[1], sys.argv[2] == "append"
flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else 0)
fd = os.open(path, flags, 0o644)
print("ready", flush=True)
for order in sys.stdin.buffer:
    what, _, rest = order.rstrip(b"\n").partition(b" ")
    if what == b"raw":
        os.write(fd, rest.decode("unicode_escape").encode("latin-1"))
    elif what == b"lines":
        first, count = map(int, rest.split())
        for number in range(first, first + count):
            os.write(fd, b"line %d of the log, as long as a line may be\n" % number)
    elif what == b"reopen":
        os.close(fd)
        fd = os.open(path, flags, 0o644)
    os.fsync(fd)
    print("done", flush=True)
"""


class Writer:
    """A process that has the log open and writes what it is told to."""

    def __init__(self, path: Path, *, appends: bool = True) -> None:
        command = [sys.executable, "-c", WRITER, str(path), "append" if appends else "at its own offset"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()
        self.written = 0

    def lines(self, count: int) -> None:
        """Write the next numbered lines."""
        self._tell(f"lines {self.written} {count}")
        self.written += count

    def raw(self, data: str) -> None:
        """Write text as it is, escapes resolved."""
        self._tell("raw " + data)

    def reopen(self) -> None:
        """Open the path anew, as after a rotation."""
        self._tell("reopen")

    def end(self) -> None:
        """Close the log."""
        self._process.communicate()

    def _tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() in {b"ready\n", b"done\n"}


@contextmanager
def writing(path: Path, *, appends: bool = True) -> Iterator[Writer]:
    """Run a writer for a while."""
    writer = Writer(path, appends=appends)
    try:
        yield writer
    finally:
        writer.end()


class Follower:
    """A tail with its store. `is_watched` gives it the hints of a real watcher."""

    def __init__(self, patterns: Sequence[Path | str], *, is_watched: bool = False, most_open: int = 256) -> None:
        self.patterns = [str(pattern) for pattern in patterns]
        self.most_open = most_open
        self.now_s = 0.0
        self.places: dict[str, Position] = {}
        self.stored: list[Piece] = []
        self.gaps: list[Gap] = []
        self.pending: list[Piece] = []
        self.hints: list[None] = []
        self.watch = Watch(lambda: self.hints.append(None)) if is_watched else None
        self.tail = self._begun()

    def _begun(self) -> Tail:
        return Tail("vllm", globbed(self.patterns), lambda base: base.name, self.places.values(), self.most_open)

    def poll(self, passes_s: float = 0.5, *, budget: int = BUDGET, commits: bool = True) -> list[Piece]:
        """Let time pass and take what is new."""
        self.now_s += passes_s
        if self.watch is not None:
            self.watch.follow(self.tail.folders(), self.now_s)
            if self.hints:
                self.hints.clear()
                self.tail.hint()
        pieces = self.tail.poll(budget, self.now_s, time.time())
        self.pending += pieces
        if commits:
            self.commit()
        return pieces

    def commit(self) -> None:
        """Store what was handed on, in one step."""
        for piece in self.pending:
            self.stored.append(piece)
            self.gaps += piece.gaps
            if piece.position is not None:
                self.places[piece.position.file_id] = piece.position
        self.pending = []

    def settle(self, passes_s: float = 2.5, *, rounds: int = 6) -> None:
        """Read until nothing is new for a while."""
        quiet = 0
        while quiet < rounds:
            is_quiet = not self.poll(passes_s) and not any(health.behind_bytes for health in self.health)
            quiet = quiet + 1 if is_quiet else 0

    def hinted(self) -> None:
        """Wait until the watcher has told something, where there is one."""
        if self.watch is not None:
            until(lambda: self.hints)

    def kill(self) -> None:
        """Forget what was not committed, and begin anew from the store."""
        self.pending = []
        self.tail.close()
        self.tail = self._begun()

    def close(self) -> None:
        """Let go of everything."""
        self.tail.close()
        if self.watch is not None:
            self.watch.close()

    @property
    def data(self) -> bytes:
        """Return all that was stored, in its order."""
        return b"".join(piece.data for piece in self.stored)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the lines stored, in their order."""
        return numbers(self.data)

    @property
    def health(self) -> list[Health]:
        """Return how the logs fare."""
        return self.tail.health()

    def reasons(self) -> list[str]:
        """Return why lines were lost."""
        return [str(gap.reason) for gap in self.gaps]


@contextmanager
def following(*patterns: Path | str, is_watched: bool = False, most_open: int = 256) -> Iterator[Follower]:
    """Follow logs for a while."""
    follower = Follower(patterns, is_watched=is_watched, most_open=most_open)
    try:
        yield follower
    finally:
        follower.close()


def lines(numbers: Iterable[int]) -> bytes:
    """Return numbered lines, as the writer writes them."""
    return b"".join(b"line %d of the log, as long as a line may be\n" % number for number in numbers)


def numbers(data: bytes) -> list[int]:
    """Return the numbers of whole lines."""
    whole = (line.split() for line in data.split(b"\n") if line.startswith(b"line ") and line.endswith(b"may be"))
    return [int(words[1]) for words in whole]


def descriptors_of(name: str) -> list[str]:
    """Return which files with that in their name this process has open."""
    held = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)  # noqa: PTH115
        except FileNotFoundError:  # that of the listing itself
            continue
        if name in target:
            held.append(target)
    return held


def shifted(log: Path, *, kept: int = 9) -> None:
    """Make room for `.1`, as logrotate does."""
    for number in range(kept - 1, 0, -1):
        path = log.with_name(f"{log.name}.{number}")
        if path.exists():
            path.rename(log.with_name(f"{log.name}.{number + 1}"))


def rotate(log: Path) -> Path:
    """Rotate by renaming; return where the log is now."""
    shifted(log)
    return log.rename(log.with_name(f"{log.name}.1"))


def copytruncate(log: Path, *, between: Callable[[], None] = lambda: None) -> Path:
    """Rotate by copying, and truncate; `between` happens after the copy."""
    shifted(log)
    copy = log.with_name(f"{log.name}.1")
    copy.write_bytes(log.read_bytes())
    between()
    os.truncate(log, 0)
    return copy
