"""A real daemon on a host with a stand-in driver."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Running, ready
from tests.nvml.driver import Driver

EACH_SECOND = "gpu: {every: 1s}\nhost: {enabled: no}\n"


@contextmanager
def running(
    folder: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, more: str = EACH_SECOND
) -> Iterator[Running]:
    """Yield a daemon that reads its GPUs each second, ready."""
    for name in ("LD_LIBRARY_PATH", "NVML_STUB"):
        monkeypatch.setenv(name, driver.environment[name])
    with ready(folder / "run", more) as daemon:
        yield daemon


def newest(daemon: Running) -> str:
    """Return the time of the newest reading."""
    return str(daemon.rows("SELECT max(ts) AS ts FROM gpu_samples WHERE state = 'ok'")[0]["ts"])


def readings_after(daemon: Running, ts: str) -> list[dict[str, Any]]:
    """Wait for a reading of all GPUs that is newer, and return those that are."""
    sql = f"SELECT * FROM gpu_samples WHERE state = 'ok' AND ts > '{ts}' ORDER BY ts, gpu"
    return daemon.eventually(sql, lambda rows: len(rows) > 0)


def children(daemon: Running) -> set[int]:
    """Return the process ids of the children that live."""
    assert daemon.process is not None
    return {pid for pid in daemon.family() - {daemon.process.pid} if not is_zombie(pid)}


def is_zombie(pid: int) -> bool:
    try:
        return b") Z " in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True


def holders(daemon: Running, path: Path) -> set[int]:
    """Return who of the daemon's family has a file open."""
    found = set()
    for pid in daemon.family():
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
        except OSError:
            continue
        if str(path) in links:
            found.add(pid)
    return found
