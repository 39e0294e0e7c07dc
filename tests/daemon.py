"""A real `kvlogd run` in a process of its own, for the tests that kill it, signal it and ask it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvlogd.procfs import ProcFs
from tests.command import Told, installed

PATIENCE_S = 60.0


class Running:
    """The daemon of a folder that holds its config, store and log; `log` is what it follows."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        self.log = folder / "vllm.log"
        self.store = folder / "kvlogd.duckdb"
        self.config = folder / "kvlogd.yaml"
        # GPUs have tests of their own
        more = more if "gpu:" in more else f"gpu: {{enabled: no}}\n{more}"
        self.config.write_text(
            f"sources: [{{name: chat, files: [{self.log}], timezone: UTC}}]\nstore: {{path: {self.store}}}\n{more}"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.program = ["-m", "kvlogd", "run", "--config", str(self.config)]
        self.said = folder / "said.txt"
        self.printed = folder / "printed.txt"
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = folder / "notify"
        self._notices.bind(str(self._address))

    def start(self) -> None:
        """Start it; does not wait."""
        with self.said.open("ab") as said, self.printed.open("ab") as printed:
            self.process = subprocess.Popen(
                [sys.executable, *self.program],
                # a watchdog so short that each turn of the loop gives it a sign
                env={**os.environ, "NOTIFY_SOCKET": str(self._address), "WATCHDOG_USEC": "1"},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=said,
            )

    def wait_for(self, notice: str) -> str:
        """Return the first notice to systemd that has this text."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._notices], [], [], 0.2)
            if ready:
                text = self._notices.recv(4096).decode()
                if notice in text:
                    return text
            assert self.process is None or self.process.poll() is None, self.said.read_text()
        raise AssertionError(f"{notice} did not come; it said: {self.said.read_text()}")

    def up(self) -> None:
        """Start it and wait until it is ready."""
        self.start()
        self.wait_for("READY=1")

    def kill(self) -> None:
        """End it as the OOM killer would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as systemd would; return its exit status."""
        return self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE_S)
        self.process = None
        return status

    def family(self) -> set[int]:
        """Return the process ids of the daemon and of all that descend from it."""
        assert self.process is not None
        processes = ProcFs().processes()
        found = {self.process.pid}
        while more := {one.pid for one in processes.values() if one.parent in found} - found:
            found |= more
        return found

    def close(self) -> None:
        self.kill()
        self._notices.close()

    def ask(self, *arguments: str | Path) -> Told:
        """Run a command against it."""
        return installed(*arguments, "--config", self.config)

    def status(self) -> dict[str, Any]:
        told = self.ask("status", "--json")
        assert told.status == 0, told.err
        found: dict[str, Any] = json.loads(told.out)
        return found

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, through the daemon while it runs."""
        told = self.ask("sql", "--format", "json", query)
        assert told.status == 0, told.err
        found: list[dict[str, Any]] = json.loads(told.out)
        return found

    def eventually(
        self, query: str, holds: Callable[[list[dict[str, Any]]], bool], patience_s: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        """Return the rows of a query once they are as they should be."""
        deadline = time.monotonic() + patience_s
        while True:
            found = self.rows(query)
            if holds(found):
                return found
            assert time.monotonic() < deadline, f"still {found[:5]}; it said: {self.said.read_text()}"
            select.select([], [], [], 0.2)


@contextlib.contextmanager
def ready(place: Path, more: str = "") -> Iterator[Running]:
    """Yield a daemon in a folder made for it, ready, with an empty log."""
    place.mkdir()
    daemon = Running(place, more)
    daemon.log.write_bytes(b"")
    daemon.up()
    try:
        yield daemon
    finally:
        daemon.close()
