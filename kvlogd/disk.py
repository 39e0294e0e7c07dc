"""The room on the store's disk, and the rights of its files.

Promises a few microseconds for an answer, so that each commit may ask.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kvlogd.errors import StoreError

_UMASK = 0o027
_FLOOR_BYTES = 16 * 2**20
_SPARE_BYTES = 8 * 2**20


def wal_of(path: Path) -> Path:
    """Return the write-ahead log of the store at `path`."""
    return Path(f"{path}.wal")


def refuse_absent(path: Path) -> None:
    """Raise StoreError where there is no such store, or a folder above it is closed to who asks."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError("there is no such store", where=str(path), mend="give its path with --db") from None
    except OSError as error:
        raise StoreError(f"cannot be looked at ({error.strerror})", where=str(path), mend="run as root") from error


def size_of(path: Path) -> int:
    """Return a file's size; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def free_bytes(folder: Path) -> int:
    """Return what may still be written to the disk of `folder`."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def refuse_when_full(path: Path) -> None:
    """Raise StoreError, saying how much is needed, where a commit would leave too little room for a checkpoint."""
    require(path.parent, _FLOOR_BYTES + size_of(wal_of(path)), path)


def require(folder: Path, needed_bytes: int, where: Path) -> None:
    """Raise StoreError, saying how much is lacking, where the disk of `folder` has less room."""
    try:
        lacking = needed_bytes - free_bytes(folder)
    except OSError as error:
        raise StoreError(f"cannot ask for free space: {error.strerror}", where=str(folder)) from error
    if lacking > 0:
        what = f"the disk is full: {-(-lacking // 1_000_000)} MB more are needed"
        raise StoreError(what, where=str(where), mend="free disk space; nothing was written, and it goes on by itself")


def has_room_for_checkpoint(path: Path) -> bool:
    """Tell whether the log can be written into the file: that takes up to its own size."""
    try:
        return free_bytes(path.parent) >= _SPARE_BYTES + size_of(wal_of(path))
    except OSError:  # the folder is away: the next commit says so
        return False


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Make what is created meanwhile readable for owner and group alone.

    The log beside the file is created anew after each checkpoint; it must not be more readable than the file.
    """
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)
