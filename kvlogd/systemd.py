"""Talks to systemd: says what the service is doing, keeps its watchdog quiet, and finds the folders it was given.

Plain datagrams to $NOTIFY_SOCKET, no library. Promises never to raise and never to block for longer than a second: a
service that cannot report still does its work. Outside systemd everything here does nothing.
Does not decide when the service is alive: the watchdog's ping must come from the loop that does the work.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_PATIENCE_S = 1.0
_SIGNS = 4
"""Signs of life that are sent within the watchdog's interval: half of them may get lost."""
_LONGEST_STATUS = 200


class Notifier:
    """Where a service's state goes. An address that begins with `@` is an abstract one; None is nowhere."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._every_s = None if watchdog_s is None else watchdog_s / _SIGNS
        self._sign_at_s = float("-inf")

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Return the notifier of this service, which is the process `pid`."""
        return cls(environment.get("NOTIFY_SOCKET"), watchdog_s(environment, pid))

    def ready(self, status: str = "") -> bool:
        """Say that start-up, or a reload, is done."""
        return self._send("READY=1", *_status(status))

    def reloading(self, monotonic_s: float, status: str = "") -> bool:
        """Say that a reload began at this time of CLOCK_MONOTONIC; `ready` must follow.

        Both stand in one datagram: systemd ignores a RELOADING=1 without a time, and `systemctl reload` then hangs.
        """
        return self._send("RELOADING=1", f"MONOTONIC_USEC={round(monotonic_s * 1e6)}", *_status(status))

    def stopping(self, status: str = "") -> bool:
        """Say that the service is on its way out."""
        return self._send("STOPPING=1", *_status(status))

    def status(self, status: str) -> bool:
        """Set the line that `systemctl status` shows."""
        return self._send(*_status(status))

    def alive(self, now_s: float) -> bool:
        """Keep the watchdog quiet for another interval, where there is one and it is time to."""
        if self._every_s is None or now_s < self._sign_at_s:
            return False
        self._sign_at_s = now_s + self._every_s
        return self._send("WATCHDOG=1")

    def extend(self, by_s: float) -> bool:
        """Ask for this much more time to start, reload or stop, counted from now."""
        return self._send(f"EXTEND_TIMEOUT_USEC={round(by_s * 1e6)}")

    def _send(self, *lines: str) -> bool:
        if not self._address or not lines:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                # a socket that nobody reads would block us, and with us the logs
                sender.settimeout(_PATIENCE_S)
                sender.connect(address)  # else it polls as writable while its peer's queue is full, and Python spins
                sender.send("\n".join(lines).encode())
        except (OSError, ValueError):  # ValueError: a NUL inside a path
            return False
        return True


def _status(text: str) -> list[str]:
    # a line break would begin another assignment
    clean = "".join(char if char.isprintable() else " " for char in text)[:_LONGEST_STATUS]
    return [f"STATUS={clean}"] if clean else []


def watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return after how many seconds without a sign of life systemd ends this process; None where it does not."""
    wanted, meant = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
    if not (wanted.isascii() and wanted.isdigit() and int(wanted) > 0) or meant != str(pid):
        return None
    return int(wanted) / 1e6


def credential(environment: Mapping[str, str], name: str) -> Path | None:
    """Return the file of a credential that the unit loads; None where it loads none of that name."""
    folder = environment.get("CREDENTIALS_DIRECTORY")
    if not folder or "/" in name or name in ("", ".", ".."):
        return None
    path = Path(folder) / name
    return path if path.is_file() else None


def runtime_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the unit's folder under /run."""
    return _first_folder(environment.get("RUNTIME_DIRECTORY"))


def state_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the unit's folder under /var/lib."""
    return _first_folder(environment.get("STATE_DIRECTORY"))


def _first_folder(named: str | None) -> Path | None:
    # a unit may name several, separated by colons
    first = Path((named or "").split(":")[0])
    return first if first.is_absolute() else None


def is_absent(root: Path = Path("/")) -> bool:
    """Tell whether this host runs without systemd, as containers do."""
    return not (root / "run/systemd/system").is_dir()
