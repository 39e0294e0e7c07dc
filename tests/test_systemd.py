"""What systemd hears, on a real datagram socket, and what is made of the environment it gives."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd import systemd
from kvlogd.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, Notifier]]:
    """The socket that systemd would listen on, and a notifier that found it in its environment."""
    named = str(tmp_path / "notify") if request.param == "path" else f"@kvlogd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + named[1:] if named.startswith("@") else named)
        listener.settimeout(5)
        yield listener, Notifier.of({"NOTIFY_SOCKET": named, "WATCHDOG_USEC": "4000000"}, os.getpid())


def heard(listener: socket.socket) -> list[str]:
    return listener.recv(4096).decode().split("\n")


def test_each_state_is_one_datagram(manager: tuple[socket.socket, Notifier]) -> None:
    listener, notifier = manager
    said = [
        notifier.ready("watching 2 sources"),
        notifier.status("3 engines"),
        notifier.reloading(12.3456789),
        notifier.alive(0.0),
        notifier.extend(7.5),
        notifier.stopping(),
    ]
    assert said == [True] * 6
    assert [heard(listener) for _ in said] == [
        ["READY=1", "STATUS=watching 2 sources"],
        ["STATUS=3 engines"],
        ["RELOADING=1", "MONOTONIC_USEC=12345679"],
        ["WATCHDOG=1"],
        ["EXTEND_TIMEOUT_USEC=7500000"],
        ["STOPPING=1"],
    ]


def test_a_status_cannot_say_anything_else(manager: tuple[socket.socket, Notifier]) -> None:
    listener, notifier = manager
    notifier.status("x\nREADY=1\0\x1b" + "y" * 1000)
    (line,) = heard(listener)
    assert line == "STATUS=x READY=1  " + "y" * 189


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "/no\0where", "relative", "vsock:2:1234", "/" * 200])
def test_nobody_to_tell_is_no_fault(address: str | None) -> None:
    assert Notifier(address).ready() is False
    assert Notifier(address).status("") is False


def test_a_manager_that_does_not_read_blocks_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"), watchdog_s=1.0)
        assert not all(notifier.alive(now_s) for now_s in range(2000))
        spent_s = time.process_time()
        notifier.ready()
        assert time.process_time() - spent_s < 0.3, "it waits for room, and does not ask for it without end"


def test_a_sign_of_life_goes_out_four_times_an_interval_and_not_each_turn(
    manager: tuple[socket.socket, Notifier],
) -> None:
    _, notifier = manager
    assert [notifier.alive(now_s) for now_s in (0.0, 0.5, 0.99, 1.0, 1.2, 2.1)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]


def test_without_a_watchdog_no_sign_of_life_goes_out(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        notifier = Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "notify")}, os.getpid())
        assert notifier.ready() is True
        assert notifier.alive(0.0) is False


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "42"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "41"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_watchdogs_interval(environment: dict[str, str], interval_s: float | None) -> None:
    assert systemd.watchdog_s(environment, 42) == interval_s


def test_a_credential_is_a_file_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "oncall").write_text("url")
    (tmp_path / "secret").write_text("url")
    given = {"CREDENTIALS_DIRECTORY": str(folder)}
    assert systemd.credential(given, "oncall") == folder / "oncall"
    for name in ("mail", "../secret", "..", ".", "", str(tmp_path / "secret")):
        assert systemd.credential(given, name) is None, name
    assert systemd.credential({}, "oncall") is None


def test_the_folders_of_the_unit() -> None:
    given = {"RUNTIME_DIRECTORY": "/run/kvlogd", "STATE_DIRECTORY": "/var/lib/kvlogd:/var/lib/other"}
    assert systemd.runtime_folder(given) == Path("/run/kvlogd")
    assert systemd.state_folder(given) == Path("/var/lib/kvlogd")
    assert systemd.runtime_folder({}) is None
    assert systemd.state_folder({"STATE_DIRECTORY": "relative"}) is None
