"""Finds the vLLM servers that run on this host, and where each one logs to: from /proc, without asking them.

Promises to keep of a command line the few options below and nothing else, of the environment one number, and to pass
over what this user may not see. Does not promise to find servers that other programs start in their own process (Ray,
a notebook), or to see into another host's containers.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_MODULES = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}
_UNIT = re.compile(r"/([A-Za-z0-9:_.@\\-]+\.service)(?:/|$)")
_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio)?[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_EVERYWHERE = {"", "0.0.0.0", "::", "localhost"}  # noqa: S104 - compared with, not listened on
_QUIET = {b"WARNING", b"WARN", b"ERROR", b"CRITICAL", b"FATAL"}
DEFAULT_PORT = 8000
MOST_ARGUMENTS = 65_536


class Server(NamedTuple):
    """One running server."""

    pid: int
    host: str
    port: int
    is_tls: bool = False
    api_servers: int | None = None
    """`--api-server-count`; None where it is not given."""
    stats_off: bool = False
    """`--disable-log-stats`."""
    is_quiet: bool = False
    """VLLM_LOGGING_LEVEL is above INFO."""
    unit: str | None = None
    container: str | None = None
    """Its id, where it runs in one."""
    logs: tuple[str, ...] = ()
    """Files that it has open for writing and that are logs by their name, or its output."""
    has_terminal: bool = False
    """Its output goes to a terminal, where nobody can follow it."""

    @property
    def metrics(self) -> str:
        """Return the URL of its /metrics, as this host reaches it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}/metrics"


def running(proc: Path = Path("/proc")) -> list[Server]:
    """Return the servers that run now, by process id."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            arguments = _serving(_arguments(folder))
            if arguments is not None:
                found[int(folder.name)] = (folder, arguments)
    # a server's forked workers have its command line
    mains = {pid: one for pid, one in found.items() if _parent(one[0]) not in found}
    return [_server(pid, folder, arguments) for pid, (folder, arguments) in sorted(mains.items())]


def _arguments(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), (folder / "cmdline").open("rb") as file:
        return file.read(MOST_ARGUMENTS).decode("utf-8", "replace").split("\0")[:-1]
    return []


def _serving(arguments: Sequence[str]) -> list[str] | None:
    """Return the options behind `vllm serve` or `-m vllm.entrypoints…`; None where it is neither."""
    for at, word in enumerate(arguments[:3]):
        if word.rsplit("/", 1)[-1] == "vllm" and arguments[at + 1 : at + 2] == ["serve"]:
            return list(arguments[at + 2 :])
    for at, word in enumerate(arguments[:6]):
        if word == "-m" and arguments[at + 1 : at + 2] and arguments[at + 1] in _MODULES:
            return list(arguments[at + 2 :])
    return None


def _server(pid: int, folder: Path, options: Sequence[str]) -> Server:
    unit, container = _home(folder)
    logs, has_terminal = _outputs(folder) if container is None else ((), False)
    host = _option(options, "--host") or ""
    return Server(
        pid,
        "127.0.0.1" if host in _EVERYWHERE or not _HOST.fullmatch(host) else host,
        _number(_option(options, "--port")) or DEFAULT_PORT,
        _option(options, "--ssl-certfile") is not None,
        _number(_option(options, "--api-server-count", "-asc")),
        "--disable-log-stats" in options,
        _is_quiet(folder),
        unit,
        container,
        logs,
        has_terminal,
    )


def _option(options: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option, written `--name value` or `--name=value`, with hyphens or underscores."""
    value = None
    for at, word in enumerate(options):
        name, equals, behind = word.partition("=")
        if name.replace("_", "-") in names:
            value = behind if equals else next(iter(options[at + 1 : at + 2]), None)
    return value


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _home(folder: Path) -> tuple[str | None, str | None]:
    """Return the unit and the container that a process runs in, by its control group."""
    try:
        text = (folder / "cgroup").read_text(errors="replace")
    except OSError:
        return None, None
    containers, units = _CONTAINER.findall(text), _UNIT.findall(text)
    # a user's own units are in a journal of their own, which `journalctl --unit` does not show
    foreign = ("user@", "docker", "containerd", "kubelet", "podman")
    inner = [] if any(unit.startswith(foreign) for unit in units) else units
    return (inner[-1] if inner else None), (containers[-1] if containers else None)


def _is_quiet(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        for setting in (folder / "environ").read_bytes().split(b"\0"):
            if setting.startswith(b"VLLM_LOGGING_LEVEL="):
                return setting.partition(b"=")[2].strip().upper() in _QUIET
    return False


def _outputs(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the logs that a process writes to, and whether its output goes to a terminal."""
    logs: dict[str, None] = {}
    has_terminal = False
    for number, path in _open_files(folder):
        is_output = number in (1, 2)
        has_terminal = has_terminal or (is_output and path.startswith(("/dev/pts/", "/dev/tty")))
        is_log = is_output or path.endswith((".log", ".out"))
        if is_log and _is_file(path) and _is_written(folder, number):
            logs[path] = None
    return tuple(logs), has_terminal and not logs


def _open_files(folder: Path) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError):
        for entry in sorted((folder / "fd").iterdir(), key=lambda entry: int(entry.name)):
            with contextlib.suppress(OSError):
                yield int(entry.name), str(entry.readlink())


def _is_file(path: str) -> bool:
    if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/")):
        return False
    return path.isprintable() and not path.endswith(" (deleted)")


def _is_written(folder: Path, number: int) -> bool:
    try:
        text = (folder / "fdinfo" / str(number)).read_text(errors="replace")
        flags = int(next(line.split()[1] for line in text.splitlines() if line.startswith("flags:")), 8)
    except (OSError, ValueError, StopIteration, IndexError):
        return True
    return flags & os.O_ACCMODE != os.O_RDONLY


def troubles(servers: Iterable[Server]) -> Iterator[tuple[Server, str, str]]:
    """Yield why servers print no stats lines, by how they were started: (server, what, mend)."""
    for server in servers:
        if server.stats_off:
            yield server, "was started with --disable-log-stats", "start it without"
        if (server.api_servers or 1) > 1:
            what = f"has {server.api_servers} API servers, and then vLLM prints no stats lines"
            yield server, what, "start it with --api-server-count 1, or give kvlogd its /metrics"
        if server.is_quiet:
            yield server, "logs above INFO only (VLLM_LOGGING_LEVEL)", "set it to INFO: stats lines are INFO"
        if server.has_terminal:
            yield server, "writes to a terminal", "start it as a systemd unit, or with >> FILE 2>&1"
