"""The command among terminals, pipes and signals: colour and progress only where they are seen, and quiet ends."""

import io
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from kvlogd import cli
from kvlogd.rules import shipped_folder
from tests.command import INSTALLED, installed, replay
from tests.logs import CASES, Server, healthy_log

LEAK = CASES / "leak-at-constant-load.log.gz"
HEALTHY = CASES / "load-that-grows.log.gz"


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_no_escape_codes_when_piped() -> None:
    told = installed("replay", "--year", "2026", "--timezone", "UTC", LEAK)
    assert "\x1b" not in told.out + told.err
    assert told.out.startswith("CRITICAL kv-leak leak-at-constant-load.log/0: ")


def on_a_terminal(*arguments: str | Path, stream: str, no_color: str = "") -> tuple[int, str, str]:
    """Run kvlogd with one of its streams on a terminal; return its status, that stream, and the other one."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "100"} | ({"NO_COLOR": no_color} if no_color else {})
    out, err = (theirs, subprocess.PIPE) if stream == "stdout" else (subprocess.PIPE, theirs)
    with subprocess.Popen([INSTALLED, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env) as child:
        os.close(theirs)
        shown = io.BytesIO()
        other = child.stdout or child.stderr
        assert other is not None
        while piece := _read(ours):
            shown.write(piece)
        rest = other.read()
    os.close(ours)
    return child.returncode, shown.getvalue().decode(), rest.decode()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # Linux says so when the other side of a terminal is closed
        return b""


def test_colour_on_a_terminal_only_where_it_is_wanted() -> None:
    call = ("replay", "--year", "2026", "--timezone", "UTC", LEAK)
    assert "\x1b[1;31mCRITICAL" in on_a_terminal(*call, stream="stdout")[1]
    assert "\x1b" not in on_a_terminal(*call, stream="stdout", no_color="1")[1]


def test_progress_is_shown_on_the_terminal_of_stderr_only(tmp_path: Path) -> None:
    chatter = b'INFO:     10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\r\n' * 100
    log = put(tmp_path / "vllm.log", b"".join(line + b"\r\n" + chatter for line in healthy_log().split(b"\n")) * 10)
    status, shown, out = on_a_terminal("replay", "--year", "2026", "--timezone", "UTC", log, stream="stderr")
    assert status == 0
    assert "reading" in shown
    assert "%|" in shown
    assert "B/s" in shown
    assert "Read vllm.log" in out
    assert installed("replay", "--year", "2026", "--timezone", "UTC", log).err == ""


def test_tests_of_rules_show_how_far_they_are() -> None:
    files = [
        shipped_folder() / "tests" / f"{name}.test.yaml" for name in ("kv-leak", "kv-idle-residue", "latency-creep")
    ]
    status, shown, out = on_a_terminal("rules", "test", *files, stream="stderr")
    assert status == 0
    assert "testing rules" in shown
    assert "/3 " in shown
    assert out.endswith(" passed, 0 failed\n")


def test_a_closed_pipe_ends_it_quietly() -> None:
    call: list[str | Path] = [INSTALLED, "replay", "--json", "--year", "2026", "--timezone", "UTC", LEAK]
    ours, theirs = os.pipe()
    os.close(ours)
    run = subprocess.run(call, stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(theirs)
    assert run.stderr == b""
    assert run.returncode == 128 + signal.SIGPIPE


def test_an_interrupt_ends_it_quietly(tmp_path: Path) -> None:
    server = Server(seed=35)
    server.busy(3000, 5, 0.2)
    log = put(tmp_path / "vllm.log", server.text() * 40)
    status, err = interrupted(tmp_path, log)
    assert status == 130
    assert err == ""


def interrupted(folder_: Path, log: Path) -> tuple[int, str]:
    """Interrupt a replay as soon as its store is there; return its status and what it wrote to stderr."""
    db = folder_ / "s.duckdb"
    call: list[str | Path] = [INSTALLED, "replay", "--year", "2026", "--timezone", "UTC", log, "--db", db]
    with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        while not db.exists() and child.poll() is None:
            os.sched_yield()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    return child.returncode, err


def test_a_replay_after_an_interrupt_goes_on(tmp_path: Path) -> None:
    server = Server(seed=36)
    server.busy(3000, 5, 0.2)
    log = put(tmp_path / "vllm.log", server.text())
    interrupted(tmp_path, log)
    told = replay(log, "--db", tmp_path / "s.duckdb")
    assert told.err == ""
    assert told.status == 0


def test_an_interrupt_inside_the_command_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tempfile.TemporaryDirectory", interrupt)
    assert cli.main(["replay", str(HEALTHY)]) == 130
