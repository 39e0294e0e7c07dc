"""Scenario 67 e: a channel's URL is seen by the process that sends to it, and by nobody else.

Looked for in what the commands print, our log, the store and every file around it, and in the arguments and the
environment of the daemon, of the sending child, and of all other processes.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.model import Fault, Outcome
from tests.command import installed
from tests.daemon import Running
from tests.office import Office, children
from tests.paging import Paged
from tests.sinks import DRIP, DROP, Answer, HttpSink
from tests.waiting import until

CANARY = "CANARY-0d6c-4e"


def with_canary(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".url"]
    return [str(path) for path in files if CANARY.encode() in path.read_bytes()]


def seen_in_proc() -> list[str]:
    """Return what shows the canary of any process that this user may look at."""
    found = []
    for path in (p for pid in Path("/proc").glob("[0-9]*") for p in (pid / "cmdline", pid / "environ")):
        try:
            if CANARY.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:  # it ended, or is another user's
            continue
    return found


def channel(folder: Path, url: str) -> str:
    path = folder / "oncall.url"
    path.write_text(url)
    path.chmod(0o600)
    return f"channels: [{{name: oncall, url_file: {path}}}]\n"


def url_of(sink: HttpSink) -> str:
    return f"json://user-{CANARY}:pass-{CANARY}@127.0.0.1:{sink.port}/path-{CANARY}?+X-Key={CANARY}&rto=15"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    daemon = Running(tmp_path)
    daemon.log.touch()
    yield daemon
    daemon.close()


def test_commands_and_daemon_say_nothing_of_it(running: Running) -> None:
    loud = {"PYTHONDEBUG": "1", "PYTHONVERBOSE": "", "APPRISE_DEBUG": "1", "LOGLEVEL": "DEBUG"}
    with HttpSink() as sink:
        running.config.write_text(running.config.read_text() + channel(running.folder, url_of(sink)))
        told = installed("check", "--config", running.config, env=loud)
        assert told.status == 0
        assert CANARY not in told.out + told.err
        tries: list[tuple[Answer, list[str]]] = [
            (Answer(403), []),
            (Answer(302, {"Location": "/" + CANARY}), ["--json"]),
            (DROP, []),
        ]
        for answer, more in tries:
            sink.default = answer
            told = installed("notify", "test", *more, "--config", running.config, env=loud)
            assert told.status == 1
            assert CANARY not in told.out + told.err
        assert CANARY in sink.requests[0].path
        running.up()
        assert not seen_in_proc()
        running.send(signal.SIGHUP)
        running.wait_for("RELOADING=1")
        running.wait_for("READY=1")
        assert CANARY not in str(running.status())
        assert running.stop() == 0
    assert with_canary(running.folder) == []


def test_a_daemon_that_sends_and_fails_to_send_says_and_stores_nothing_of_it(tmp_path: Path) -> None:
    with HttpSink() as sink:
        sink.default = Answer(403)
        daemon = Paged(tmp_path, {"oncall": url_of(sink)})
        try:
            daemon.up()
            daemon.fire()
            daemon.waits(lambda: "channel oncall" in daemon.said.read_text())
            assert CANARY in sink.requests[0].path
            assert seen_in_proc() == []
            notices = daemon.rows("SELECT * FROM notices")
            assert {row["channel"] for row in notices} == {"oncall"}
            assert CANARY not in str(notices) + str(daemon.status())
            assert daemon.stop() == 0
        finally:
            daemon.close()
    assert with_canary(tmp_path) == []


def test_the_sending_child_has_it_neither_in_its_arguments_nor_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the daemon itself has it from a variable."""
    monkeypatch.setenv("ONCALL_URL", f"json://example.test/{CANARY}")
    office = Office()
    with HttpSink() as sink:
        sink.default = DRIP
        before = children()
        office.send(1, url_of(sink))
        until(lambda: sink.requests)
        (child,) = children() - before
        assert seen_in_proc() == []
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"PATH=" in environment
        assert b"ONCALL_URL" not in environment
        limits = Path(f"/proc/{child}/limits").read_text()
        (core,) = [line.split() for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core[4:6] == ["0", "0"]
        office.now_s += 31
        assert office.outcome(1) == Outcome(Fault.TIMEOUT)
    office.postman.close()


def test_what_a_child_leaves_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    office = Office()
    with HttpSink() as sink:
        assert office.sent(url_of(sink).replace("rto", "cto")) == Outcome(None, 200)
        assert list(tmp_path.iterdir()) == []
    office.postman.close()
    assert os.listdir(tmp_path) == []  # noqa: PTH208
