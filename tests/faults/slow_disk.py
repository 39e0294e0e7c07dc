"""A real daemon on a disk that takes its time to sync, as long as a test wants."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon import Running, ready
from tests.waiting import until

SOURCE = Path(__file__).with_suffix(".c")
STUCK = "stuck"


class SlowDisk:
    """What the next syncs take: milliseconds, or `STUCK`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: the slow disk cannot be built")
        self._says = folder / "slow_disk"
        self._stuck = folder / "slow_disk.stuck"
        library = folder / "slow_disk.so"
        subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", library, SOURCE], check=True)
        self.set(0)
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("SLOW_DISK", str(self._says))

    def set(self, takes: int | str) -> None:
        """Let each sync take so many milliseconds from now on, those under way too."""
        new = self._says.with_suffix(".new")
        new.write_text(str(takes))
        new.replace(self._says)

    def is_stuck(self) -> bool:
        """Return whether a sync hangs now."""
        return self._stuck.exists()


@contextmanager
def on_slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> Iterator[tuple[Running, SlowDisk]]:
    """Yield a daemon that is ready and its disk, which is fast at first."""
    disk = SlowDisk(folder, monkeypatch)
    with ready(folder / "run", more) as daemon:
        yield daemon, disk


def was_heard(pid: int, number: signal.Signals) -> bool:
    """Return whether a signal that was sent to a process has reached one of its threads."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(mask >> (number - 1) & 1 for mask in pending)


def send(daemon: Running, number: signal.Signals) -> None:
    """Send a signal and wait until it arrived: a second one of its kind is lost before."""
    assert daemon.process is not None
    pid = daemon.process.pid
    daemon.send(number)
    until(lambda: was_heard(pid, number))
