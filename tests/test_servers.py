"""Finds servers in a real /proc and, for what cannot be started here, in folders laid out like one."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd import servers
from kvlogd.servers import Server, running, troubles
from tests.waiting import until

ID = "3f" * 32


@contextlib.contextmanager
def started(folder: Path, *options: str, log: Path, **environment: str) -> Iterator[int]:
    """A process with vLLM's command line, that has begun to write to its log and runs until its input ends."""
    program = folder / "vllm"
    program.write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, program, "serve", "some/model", *options],
            stdin=subprocess.PIPE, stdout=out, stderr=out, env={**os.environ, **environment},
        )  # fmt: skip
    try:
        until(lambda: b"up" in log.read_bytes())  # before the program is loaded, its command line is empty
        yield process.pid
    finally:
        process.communicate()


def test_a_running_server_is_found_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "chat.log"
    with started(tmp_path, "--port=8123", "--api_server_count", "4", log=log, VLLM_LOGGING_LEVEL="warning") as pid:
        [found] = [server for server in running() if server.pid == pid]
    assert found._replace(unit=None) == Server(pid, "127.0.0.1", 8123, api_servers=4, is_quiet=True, logs=(str(log),))
    assert found.metrics == "http://127.0.0.1:8123/metrics"
    assert [what for _, what, _ in troubles([found])] == [
        "has 4 API servers, and then vLLM prints no stats lines",
        "logs above INFO only (VLLM_LOGGING_LEVEL)",
    ]


def fake(proc: Path, pid: int, arguments: list[str], cgroup: str = "0::/\n", parent: int = 1, out: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in arguments))
    (folder / "cgroup").write_text(cgroup)
    (folder / "stat").write_text(f"{pid} (python) S {parent} 1 1\n")
    if out:
        (folder / "fd" / "1").symlink_to(out)


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "m"], 8000),
        (["vllm", "serve", "m", "--port", "9"], 9),
        (["python", "-u", "-m", "vllm.entrypoints.openai.api_server", "--port", "8001"], 8001),
        (["python", "-m", "vllm.entrypoints.openai.run_batch"], None),
        (["vim", "vllm", "serve"], 8000),
        (["vllm", "bench"], None),
        (["sh", "-c", "vllm serve m"], None),
        ([], None),
    ],
)
def test_which_command_lines_are_servers(tmp_path: Path, arguments: list[str], port: int | None) -> None:
    fake(tmp_path, 7, arguments)
    assert [server.port for server in running(tmp_path)] == ([port] if port else [])


@pytest.mark.parametrize(
    ("cgroup", "unit", "container"),
    [
        ("0::/system.slice/vllm-chat.service\n", "vllm-chat.service", None),
        (f"0::/system.slice/docker-{ID}.scope\n", None, ID),
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n", None, ID),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n", None, ID),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n", None, None),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None, None),
    ],
)
def test_where_a_server_lives(tmp_path: Path, cgroup: str, unit: str | None, container: str | None) -> None:
    fake(tmp_path, 7, ["vllm", "serve", "m"], cgroup)
    [server] = running(tmp_path)
    assert (server.unit, server.container) == (unit, container)


def test_workers_with_the_same_command_line_are_one_server(tmp_path: Path) -> None:
    fake(tmp_path, 7, ["vllm", "serve", "m"])
    fake(tmp_path, 8, ["vllm", "serve", "m"], parent=7)
    assert [server.pid for server in running(tmp_path)] == [7]


def test_outputs_that_nobody_can_follow(tmp_path: Path) -> None:
    fake(tmp_path, 7, ["vllm", "serve", "m", "--host", "::1"], out="/dev/pts/3")
    fake(tmp_path, 8, ["vllm", "serve", "m", "--host", "http://x y"], out="/var/log/gone.log (deleted)")
    first, second = running(tmp_path)
    assert (first.logs, first.has_terminal, first.metrics) == ((), True, "http://[::1]:8000/metrics")
    assert (second.logs, second.host) == ((), "127.0.0.1")
    assert [what for _, what, _ in troubles([first, second])] == ["writes to a terminal"]


def test_a_process_that_is_gone_meanwhile_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert running(tmp_path) == []
    assert servers.DEFAULT_PORT == 8000
