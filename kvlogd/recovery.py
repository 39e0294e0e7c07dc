"""Mends a store whose write-ahead log is damaged, by its files alone, before anything opens them.

Promises that the files as they were found lie beside the mended ones, for the last three times that it had to mend
them, and that what was given up is told in bytes.
Rows and positions go back together, so that the logs are read again from there. Never touches a main file.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from kvlogd import disk, lock
from kvlogd.errors import StoreError
from kvlogd.model import Gap

_SPARE_BYTES = 16 * 2**20
_PLACE = re.compile(r"WAL file.*entry at byte position (\d+)")
MOST_ASIDE = 3
"""How often files are kept as they were found: each time takes as much room as the store."""


class Recovery(NamedTuple):
    """What was given up to open a store."""

    at_s: float
    lost_bytes: int
    """Of the write-ahead log."""
    aside: tuple[Path, ...]
    """The files as they were found."""


def gap(recovery: Recovery, newest_s: float | None) -> Gap:
    """Return the row that tells it: from the newest record that is left to when it was found."""
    return Gap("store", newest_s, "store: damaged write-ahead log", 0, recovery.lost_bytes, recovery.at_s)


def repair(path: Path, complaint: str, wall_s: float, *, is_first: bool) -> Recovery | None:
    """Cut the log where DuckDB's complaint says, or drop it where that did not help; None where it is not the log's.

    Raises StoreError where there is no room to keep the files as they are.
    """
    wal = disk.wal_of(path)
    size = disk.size_of(wal)
    if not size or "WAL file" not in complaint:
        return None
    aside = _set_aside(path, wall_s)
    place = _PLACE.search(complaint)
    kept = int(place[1]) if place and is_first else 0
    if 0 < kept < size:
        os.truncate(wal, kept)
        return Recovery(wall_s, size - kept, aside)
    wal.unlink()
    return Recovery(wall_s, size, aside)


@contextlib.contextmanager
def wal_kept(path: Path) -> Iterator[None]:
    """Put the log back where an attempt to open a damaged file took it away. Only for who holds the writers' lock."""
    wal = disk.wal_of(path)
    copy = Path(f"{wal}.before")
    try:
        if disk.size_of(wal) and disk.free_bytes(path.parent) > disk.size_of(wal) + _SPARE_BYTES:
            _copy(wal, copy)
        yield
    except StoreError:
        if copy.exists() and not wal.exists():
            copy.replace(wal)
        raise
    finally:
        copy.unlink(missing_ok=True)


def _set_aside(path: Path, wall_s: float) -> tuple[Path, ...]:
    stamp = datetime.fromtimestamp(wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    pairs = [(file, Path(f"{file}.corrupt-{stamp}")) for file in (path, disk.wal_of(path))]
    todo = [(file, copy) for file, copy in pairs if file.exists() and not copy.exists()]
    disk.require(path.parent, sum(disk.size_of(file) for file, _ in todo) + _SPARE_BYTES, path)
    for file, copy in todo:
        _copy(file, copy)
    _forget_old(path, stamp)
    return tuple(copy for _, copy in pairs if copy.exists())


def _forget_old(path: Path, stamp: str) -> None:
    """Remove all copies but the newest few; those made now stay, whatever the host's clock says."""
    name = re.compile(rf"{re.escape(path.name)}(?:\.wal)?\.corrupt-(\d{{8}}T\d{{6}}Z)")
    copies = [(match[1], file) for file in path.parent.iterdir() if (match := name.fullmatch(file.name))]
    kept = {stamp, *sorted({made for made, _ in copies} - {stamp})[1 - MOST_ASIDE :]}
    for made, file in copies:
        if made not in kept:
            with contextlib.suppress(OSError):
                file.unlink()


def _copy(file: Path, copy: Path) -> None:
    try:
        with disk.private_files():
            shutil.copyfile(file, copy)
        copy.chmod(lock.MODE)
    except OSError as error:
        raise StoreError(f"cannot copy aside: {error.strerror}", where=str(copy), mend="free disk space") from error
