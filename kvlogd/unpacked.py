"""What only a compressed rotation still holds of a file that was being read: found by content, as a file in memory.

Promises: what is returned holds the first bytes and those before the place that was reached, which tell that it is the
same file, and all behind it; in between is a hole. Nothing of it lies on a disk. It is unpacked a step at a time, so
that nobody waits for it.
Does not promise it behind `MOST_READ`, for to come there takes a second or two, nor where more than `MOST_REST` was not
read.
"""

import os
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path

from kvlogd import remnant
from kvlogd.errors import SourceError
from kvlogd.followed import HEAD, holds
from kvlogd.rows import Position
from kvlogd.source import unpacked

MOST_READ = 512 << 20
MOST_REST = 32 << 20
STEP = 8 << 20
"""Bytes that are unpacked at once: a fortieth of a second."""


def rest_of(path: Path, status: os.stat_result, place: Position) -> Generator[int, None, int | None]:
    """Return the descriptor of a file that goes on from a place as the packed one does; None where it does not.

    Yields the bytes that each step on the way has unpacked.
    """
    if not HEAD <= place.offset <= MOST_READ:  # or too little to be sure that it is the same file
        return None
    fd = None
    try:
        with suppress(SourceError, OSError):  # damaged, gone meanwhile, or no memory is given
            fd = os.memfd_create("rest")
            if (yield from _filled(fd, path, place)):
                os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))  # it tells the year of its stamps
                found, fd = fd, None
                return found
    finally:
        if fd is not None:
            os.close(fd)
    return None


def _filled(fd: int, path: Path, place: Position) -> Generator[int, None, bool]:
    """Fill a file; return whether it goes on from the place."""
    at, told, kept_from = 0, 0, place.offset - remnant.MOST_BYTES
    with closing(unpacked(path)) as blocks:
        for block in blocks:
            if at < HEAD:
                os.pwrite(fd, block[: HEAD - at], at)
            begin = max(0, kept_from - at)
            os.pwrite(fd, block[begin:], at + begin)
            at += len(block)
            is_other = at >= HEAD and not holds(fd, place._replace(marker=None))
            if is_other or at - place.offset > MOST_REST:
                return False
            if at - told >= STEP:
                yield at - told
                told = at
    return at >= place.offset and holds(fd, place)
