"""A machine with a real systemd, in namespaces of its own, with kvlogd's package installed: see `rig`."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RIG = Path(__file__).with_name("rig")
UNIT = "kvlogd.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/test.conf"
CONFIG = "/etc/kvlogd/kvlogd.yaml"
STORE = "/var/lib/kvlogd/kvlogd.duckdb"
SHARED = "/srv/shared"
PATIENCE_S = 60.0


class Ran(NamedTuple):
    """What a command inside gave back."""

    status: int
    out: str
    err: str


class Machine:
    """The machine while it is up. `shared` is a folder that both sides see."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self._since_s = 0.0

    def run(self, *command: str, fails: bool = False) -> Ran:
        """Run a command inside; fail the test where it ends badly, unless it may."""
        run = subprocess.run([RIG, "exec", *command], capture_output=True, text=True, check=False, timeout=120)
        assert fails or run.returncode == 0, f"{command}: {run.stderr}{run.stdout}"
        return Ran(run.returncode, run.stdout, run.stderr)

    def shell(self, script: str, *, fails: bool = False) -> Ran:
        return self.run("bash", "-c", script, fails=fails)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file inside."""
        (self.shared / "write").write_text(text)
        self.run("install", "-D", "-m", mode, f"{SHARED}/write", path)

    def has(self, name: str) -> str:
        """Return a property of the unit."""
        return self.run("systemctl", "show", "-P", name, UNIT).out.strip()

    def journal(self) -> str:
        """Return what the unit and systemd about it wrote since the last `fresh`."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", "-q", "-u", UNIT, "-o", "cat", "--since", f"@{self._since_s:.6f}").out

    def fresh(self, config: str, unit: str = "") -> None:
        """Stop the daemon, forget its store, and give it a config and changes of its unit; does not start it."""
        self.run("systemctl", "stop", UNIT)
        self.run("systemctl", "reset-failed", UNIT, fails=True)
        self.shell("rm -rf /var/lib/private/kvlogd /var/log/vllm; mkdir -p /var/log/vllm")
        self.write(CONFIG, config)
        self.write(DROP_IN, f"[Service]\nRestartSec=200ms\n{unit}")
        self.run("systemctl", "daemon-reload")
        self._since_s = time.time()

    def count(self) -> int:
        """Return how many records are stored, by the daemon's own answer."""
        # the store is named, because a config may be wrong on purpose
        query = ("--db", STORE, "--format", "csv", "SELECT count(*) FROM samples")
        told = self.run("kvlogd", "sql", *query, fails=True)
        return int(told.out.split()[1]) if told.status == 0 else -1

    def until(self, holds: Callable[[], bool]) -> None:
        """Return once a condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"in vain; {self.has('ActiveState')}; {self.journal()}"
            time.sleep(0.1)


@contextlib.contextmanager
def booted(shared: Path) -> Iterator[Machine]:
    """Boot the machine and install the package; skips where `make test-host` is not what runs the tests."""
    package = os.environ.get("KVLOGD_DEB")
    if not package:
        pytest.skip("needs a systemd of its own: `make test-host` runs it")
    try:
        subprocess.run(
            [RIG, "up", "--bind", f"{shared}:{SHARED}", "--bind", f"{Path(package).parent}:/srv/dist"], check=True
        )
        machine = Machine(shared)
        machine.run("dpkg", "-i", "--force-depends", f"/srv/dist/{Path(package).name}")
        yield machine
    finally:
        subprocess.run([RIG, "down"], check=False)
