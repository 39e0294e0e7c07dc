"""A real disk that is full: a small tmpfs, which only root can mount."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mount a tmpfs of that size at `folder`; skips the test where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small disk needs root and mount")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder: Path, leave_bytes: int) -> Path:
    """Put a file there that leaves that many bytes free."""
    ballast = folder / "ballast"
    disk = os.statvfs(folder)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(disk.f_bavail * disk.f_frsize - leave_bytes, 1))
    return ballast
