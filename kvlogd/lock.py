"""The writers' lock of a store: an flock on a file beside it.

DuckDB's own lock is a POSIX one, which any open-and-close of the file by this process drops; this one holds regardless.
"""

import fcntl
import os
from pathlib import Path

from kvlogd.errors import StoreError

MODE = 0o640


class HeldError(StoreError):
    """Another process has the store open."""


class OutsiderError(HeldError):
    """A process that is no kvlogd has it open, such as DuckDB's own client: it may soon be done."""


def take(path: Path) -> int:
    """Lock the store at `path` for this process; return the descriptor whose closing unlocks it.

    Raises StoreError where another process, which it names, has the lock, or the folder cannot be written.
    """
    side = Path(f"{path}.lock")
    try:
        fd = os.open(side, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    except OSError as error:
        mend = "create the folder, or run as a user who may write there"
        raise StoreError(f"cannot open: {error.strerror}", where=str(side), mend=mend) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise held(path, holder) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def held(path: Path, holder: str, kind: type[HeldError] = HeldError) -> HeldError:
    """Return the error for a store that the process `holder` has open."""
    mend = "stop that process, or ask it with `kvlogd sql` while it runs"
    return kind(f"process {holder} has the store open", where=str(path), mend=mend)
