"""A copy of a store's file, made by a child process: to open and close the file here would drop DuckDB's lock on it.

Promises a copy that is whole or not there at all: between two checkpoints DuckDB changes nothing that the file's
headers reach, so a copy counts only if the headers were the same before and after. Takes no file's place.
`python -m kvlogd.snapshot STORE TARGET` is the child.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kvlogd import disk, lock
from kvlogd.errors import StoreError

MOST_TRIES = 5
_HEADER_BYTES = 3 * 4096
_CHANGED = 3
_REFUSED = 4


def copied(store: Path, target: Path) -> bool:
    """Copy the file to `target`; return False where a checkpoint came between. Raises StoreError."""
    if target.exists() or target.is_symlink():
        raise StoreError("is there already", where=str(target), mend="name a new file")
    disk.require(target.absolute().parent, disk.size_of(store), target)
    command = [sys.executable, "-P", "-m", "kvlogd.snapshot", str(store.absolute()), str(target.absolute())]
    child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if child.returncode not in (0, _CHANGED):
        said = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
        raise StoreError(f"cannot copy: {said[-1]}", where=str(target), mend="name a new file in a folder with room")
    return child.returncode == 0


def copy(store: Path, target: Path) -> int:
    """Copy as the child does; return its exit status."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, lock.MODE)
    try:
        with store.open("rb", buffering=0) as source, os.fdopen(fd, "wb", buffering=0) as copy_:
            before = os.pread(source.fileno(), _HEADER_BYTES, 0)
            shutil.copyfileobj(source, copy_, 1 << 20)
            os.fsync(copy_.fileno())
            changed = os.pread(source.fileno(), _HEADER_BYTES, 0) != before
        if changed:
            return _CHANGED
        # unlike a rename, a link takes no file's place
        os.link(part, target)
    finally:
        part.unlink()
    return 0


def _child(store: str, target: str) -> int:
    try:
        return copy(Path(store), Path(target))
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return _REFUSED


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:3]))
