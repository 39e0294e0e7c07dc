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
HEADS = (16, 32, 64, 128, 256, 512)
"""Shorter heads, signed as well."""
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


def head_signature(head: bytes) -> str:
    """Return the signatures of a file's first bytes, of more and more of them: a shorter copy is known by the first."""
    return " ".join(signature(head[:length]) for length in (*(n for n in HEADS if n < len(head)), len(head)))


def holds(fd: int, position: Position) -> bool:
    """Return whether a file holds, up to a position, what was read there. Raises OSError."""
    return all(_is_at(fd, 0, signed) for signed in (position.head or "").split()[-1:]) and (
        not position.marker or _is_at(fd, position.offset - _length(position.marker), position.marker)
    )


def begins(fd: int, size: int, position: Position) -> bool | None:
    """Return whether a file of that size is the beginning of what was read up to a position; None: cannot be told."""
    signed = [each for each in (position.head or "").split() if _length(each) <= size]
    if not all(_is_at(fd, 0, each) for each in signed[-1:]):
        return False
    return True if signed and _length(signed[-1]) in (size, HEAD) else None


def alike(fd: int, other: int, length: int) -> bool:
    """Return whether two files are the same up to a length, as their first and last bytes there tell."""
    spots = ((min(HEAD, length), 0), (min(MARK, length), max(0, length - MARK)))
    return all(os.pread(fd, *spot) == os.pread(other, *spot) for spot in spots)


def _is_at(fd: int, offset: int, signed: str) -> bool:
    return signature(os.pread(fd, _length(signed), offset)) == signed


def _length(signed: str) -> int:
    return int(signed.partition(":")[0])


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


class Descriptors:
    """Keeps few files open: the one that was opened longest ago is closed, and opened again when it is needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Followed, None] = {}
        """In the order in which they were opened."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: Path) -> tuple[int, os.stat_result]:
        """Open a regular file, closing others where the process has too many. Raises OSError."""
        try:
            return open_regular(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.most = max(1, len(self._open) // 2)
            self._spare()
            return open_regular(path)

    def keep(self, file: "Followed") -> None:
        """Count a file that was opened."""
        self._open[file] = None
        if len(self._open) > self.most:
            self._spare()

    def left(self, file: "Followed") -> None:
        """Count a file no longer."""
        self._open.pop(file, None)

    def _spare(self) -> None:
        for file in list(self._open)[:-1]:
            if len(self._open) <= self.most:
                break
            if file.has_name:  # others could not be opened again
                file.close()


class Followed:
    """A file under watch, with the place up to which it was read. `fd` is None while it is closed to save one."""

    def __init__(
        self, path: Path, file_id: str, opened: tuple[int, os.stat_result], offset: int, descriptors: Descriptors
    ) -> None:
        fd, status = opened
        self.path = path
        self.file_id = file_id
        self.fd: int | None = fd
        self.identity = Identity.of(status)
        self.size = status.st_size
        self.mtime_s = status.st_mtime
        self.is_live = True
        """It stands under the name that vLLM writes to; others are read to their end and let go."""
        self.has_name = True
        """It stands in the folder."""
        self.quiet_since_s: float | None = None
        """Monotonic time since when it has had nothing new; None while it has."""
        self._cutter = Cutter(offset)
        self._mark = self._seen = os.pread(fd, min(MARK, offset), max(0, offset - MARK))
        """Bytes before the line that is not whole yet, and before the byte that is read next."""
        self._head = os.pread(fd, min(HEAD, offset), 0)
        self._signed = (-1, "")
        """Length and signature of the head."""
        self.stamp: tuple[int, int] | None = None
        """Size and mtime (ns) when it was last looked at."""
        self._descriptors = descriptors
        descriptors.keep(self)

    @property
    def offset(self) -> int:
        """Where the first line begins that has not been handed on."""
        return self._cutter.line_at

    @property
    def read_to(self) -> int:
        """Which byte is read next: behind `offset` where a line is not whole yet."""
        return self._cutter.read_to

    @property
    def behind_bytes(self) -> int:
        """How many bytes are there and not read."""
        return max(0, self.size - self._cutter.read_to)

    def position(self, log: str, wall_s: float, *, done: bool = False) -> Position:
        """Return the place that was reached, for the store."""
        if self._signed[0] != min(HEAD, self.offset):
            self._signed = (min(HEAD, self.offset), head_signature(self._head[: self.offset]))
        mark = signature(self._mark)
        return Position(log, self.file_id, self.offset, self._signed[1], mark, done=done, seen_s=wall_s)

    def is_cut(self) -> bool:
        """Return whether the file no longer holds what was read of it. Raises OSError."""
        status, read_to = self._status(), self._cutter.read_to
        if status.st_size < read_to:
            return True
        if (status.st_size, status.st_mtime_ns) == self.stamp:
            return False
        return os.pread(self.opened(), len(self._seen), read_to - len(self._seen)) != self._seen

    def is_at_rest(self) -> bool:
        """Return whether all is read, for sure and cheaply, of the file that vLLM writes to."""
        if self.fd is None or self.quiet_since_s is None or not self.is_live:
            return False
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == self.stamp

    def look(self, now_s: float) -> Turn:
        """Return whether there is something to read, without reading it. Raises OSError."""
        status = self._status()
        stamp = (status.st_size, status.st_mtime_ns)
        if stamp == self.stamp and status.st_size == self._cutter.read_to:
            if self.quiet_since_s is None:
                self.quiet_since_s = now_s
            return Turn.RESTING
        self.stamp, self.size, self.mtime_s = stamp, status.st_size, status.st_mtime
        if status.st_size < self._cutter.read_to:
            return Turn.CUT
        return Turn.READ

    def read(self, now_s: float) -> tuple[Turn, Chunk | None]:
        """Read the next block; return what became of it and the lines that are whole now. Raises OSError."""
        cutter, seen = self._cutter, self._seen
        data = os.pread(self.opened(), len(seen) + BLOCK, cutter.read_to - len(seen))
        if not data.startswith(seen):
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
            data_at = os.lseek(self.opened(), read_to, os.SEEK_DATA)
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

    def anew(self, file_id: str) -> "Followed":
        """Return the same file, to be read from its first byte, as another one; this one is over. Raises OSError."""
        fd, self.fd = self.opened(), None
        self._descriptors.left(self)
        file = Followed(self.path, file_id, (fd, os.fstat(fd)), 0, self._descriptors)
        file.is_live, file.has_name = self.is_live, self.has_name
        return file

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
            self._descriptors.left(self)

    def opened(self) -> int:
        """Return the descriptor. Raises OSError, FileNotFoundError where another file has the name now."""
        if self.fd is None:
            self.fd, status = self._descriptors.open(self.path)
            self._descriptors.keep(self)
            self._at_path(status)
        return self.fd

    def _status(self) -> os.stat_result:
        return os.fstat(self.fd) if self.fd is not None else self._at_path(os.stat(self.path))  # noqa: PTH116

    def _at_path(self, status: os.stat_result) -> os.stat_result:
        if Identity.of(status) != self.identity:
            self.close()
            raise FileNotFoundError(errno.ENOENT, "another file stands there now")
        return status


def reason(error: OSError) -> str:
    """Return why a file cannot be read, and what to do about it, without its name."""
    mends = {
        errno.EACCES: "let kvlogd's user read it, e.g. through the group adm",
        errno.ELOOP: "its links lead in a circle",
        errno.EMFILE: "raise LimitNOFILE= of the unit",
    }
    if error.errno == errno.EISDIR:
        return "not a regular file: only those are followed"
    return ": ".join(filter(None, (os.strerror(error.errno or 0), mends.get(error.errno or 0, ""))))


def looks_cut(file: Followed) -> bool:
    """Return whether a file no longer holds what was read of it, as far as it can be seen."""
    try:
        return file.is_cut()
    except OSError:  # told when it is read
        return False
