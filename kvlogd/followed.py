"""One file that is being followed: reads what has grown, and notices when it is not the file that it was.

A file is known by device and inode, by a hash of its first bytes and by a hash of the bytes just before the place
that was reached (as Fluent Bit does): inodes are used again, all vLLM logs begin alike, and a file that was
truncated may have grown past the old place before anybody looked.
Promises: bytes are read on only where those before them are still the ones that were read; flat memory.
Does not promise: to notice a rewrite that leaves the bytes before the place as they were.
"""

import errno
import hashlib
import os
import stat
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from kvlogd.cutter import Chunk, Cutter
from kvlogd.rows import Position

HEAD = 1024
"""First bytes of a file that tell it from others."""
MARK = 512
"""Bytes before the place that was reached that must still be there."""
BLOCK = 256 * 1024

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Identity(NamedTuple):
    """What the file system knows a file by."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """Return the identity of what was looked at."""
        return cls(status.st_dev, status.st_ino)


class Turn(Enum):
    """What a look at a file found."""

    RESTING = auto()
    READ = auto()
    CUT = auto()
    """It was truncated, or its bytes are no longer those that were read."""


def signature(data: bytes) -> str:
    """Return `N:HEX`, which tells N bytes from any others."""
    return f"{len(data)}:{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def length_of(signed: str | None) -> int:
    """Return how many bytes a signature is of."""
    return int(signed.partition(":")[0]) if signed else 0


def has_head(fd: int, position: Position) -> bool:
    """Return whether a file begins like the one of a position. Raises OSError."""
    return not position.head or signature(os.pread(fd, length_of(position.head), 0)) == position.head


def holds(fd: int, position: Position) -> bool:
    """Return whether a file holds, up to a position, what was read there. Raises OSError."""
    mark = length_of(position.marker)
    if not has_head(fd, position):
        return False
    return not position.marker or signature(os.pread(fd, mark, position.offset - mark)) == position.marker


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file. Raises OSError, IsADirectoryError for anything else; never waits for a pipe."""
    if not stat.S_ISREG(path.stat().st_mode):  # looks first: opening a device can do things
        raise IsADirectoryError(errno.EISDIR, "no regular file")
    fd = os.open(path, _FLAGS)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, "no regular file")
    return fd, status


class Followed:
    """A file under watch, with the place up to which it was read. `fd` is None while it is closed to save one."""

    def __init__(self, path: Path, file_id: str, fd: int, status: os.stat_result, offset: int = 0) -> None:
        self.path = path
        self.file_id = file_id
        self.fd: int | None = fd
        self.identity = Identity.of(status)
        self.size = status.st_size
        self.mtime_s = status.st_mtime
        self.is_live = True
        """It stands under the name that vLLM writes to; others are read to their end and let go."""
        self.quiet_since_s: float | None = None
        """Monotonic time since when it has had nothing new; None while it has."""
        self._cutter = Cutter(offset)
        self._mark = self._seen = os.pread(fd, MARK, offset - MARK) if offset >= MARK else os.pread(fd, offset, 0)
        """Bytes before the line that is not whole yet, and before the byte that is read next."""
        self._head = os.pread(fd, HEAD, 0)[:offset]
        self._looked_at: tuple[int, int] | None = None

    @property
    def offset(self) -> int:
        """Where the first line begins that has not been handed on."""
        return self._cutter.line_at

    @property
    def behind_bytes(self) -> int:
        """How many bytes are there and not read."""
        return max(0, self.size - self._cutter.read_to)

    def position(self, log: str, wall_s: float, *, done: bool = False) -> Position:
        """Return the place that was reached, for the store."""
        return Position(
            log, self.file_id, self.offset, signature(self._head), signature(self._mark), done=done, seen_s=wall_s
        )

    def is_cut(self) -> bool:
        """Return whether the file is shorter than what was read of it."""
        return self.fd is not None and os.fstat(self.fd).st_size < self._cutter.read_to

    def look(self, now_s: float) -> Turn:
        """Return whether there is something to read, without reading it. Raises OSError."""
        status = os.fstat(self.fd) if self.fd is not None else self._at_path(self.path.stat())
        looked_at = (status.st_size, status.st_mtime_ns)
        if looked_at == self._looked_at and status.st_size == self._cutter.read_to:
            if self.quiet_since_s is None:
                self.quiet_since_s = now_s
            return Turn.RESTING
        self._looked_at, self.size, self.mtime_s = looked_at, status.st_size, status.st_mtime
        if status.st_size < self._cutter.read_to:
            return Turn.CUT
        return Turn.READ

    def read(self, now_s: float) -> tuple[Turn, Chunk | None]:
        """Read the next block; return what became of it and the lines that are whole now. Raises OSError."""
        cutter, seen = self._cutter, self._seen
        data = os.pread(self._opened(), len(seen) + BLOCK, cutter.read_to - len(seen))
        if data[: len(seen)] != seen:
            return Turn.CUT, None
        block = data[len(seen) :]
        if not block:
            if self.quiet_since_s is None:
                self.quiet_since_s = now_s
            return Turn.RESTING, None
        self.quiet_since_s = None
        if not block.strip(b"\0"):
            self._over_hole(len(block))
            return Turn.READ, None
        if cutter.read_to < HEAD:
            self._head = (self._head + block)[:HEAD]
        before = cutter.line_at
        chunk = cutter.add(block)
        if cutter.line_at != before:
            whole = len(data) - (cutter.read_to - cutter.line_at)
            self._mark = data[max(0, whole - MARK) : whole]
            chunk = chunk or Chunk(before, b"", cutter.line_at)
        self._seen = data[-MARK:]
        return Turn.READ, chunk

    def _over_hole(self, length: int) -> None:
        """Pass over NULs; where the file system knows how far the hole goes, in one step."""
        read_to = self._cutter.read_to
        try:
            data_at = os.lseek(self._opened(), read_to, os.SEEK_DATA)
        except OSError:  # no data behind it yet, or a file system that does not know holes
            data_at = 0
        self._cutter.jump(max(read_to + length, data_at))
        self._seen = b""
        if read_to < HEAD:
            self._head = (self._head + bytes(length))[:HEAD]

    def rest(self) -> Chunk | None:
        """Return the last line, which has no newline, of a file that will not grow; it is read then."""
        chunk = self._cutter.rest()
        if chunk is not None:
            self._cutter = Cutter(self._cutter.read_to)
            self._mark = self._seen
        return chunk

    def handed_over(self) -> tuple[int, os.stat_result]:
        """Give the descriptor away, with a fresh look at the file. Raises OSError."""
        fd, self.fd = self._opened(), None
        return fd, os.fstat(fd)

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _opened(self) -> int:
        if self.fd is None:
            self.fd, status = open_regular(self.path)
            self._at_path(status)
        return self.fd

    def _at_path(self, status: os.stat_result) -> os.stat_result:
        if Identity.of(status) != self.identity:
            self.close()
            raise FileNotFoundError(errno.ENOENT, "another file stands there now")
        return status
