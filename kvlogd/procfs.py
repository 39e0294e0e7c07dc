"""What /proc tells of processes: parents, executables, memory, cgroups and their limits.

Promises: a process that is gone, or that may not be looked at, is None; of command lines only what matches an
allow-list of vLLM's own words is made use of, and nothing of them is returned. Reads a handful of small files.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MIB = 1024.0
"""KiB in one."""
_MOST = 4096
_UNLIMITED = 1 << 60
"""A v1 limit from here on is none."""
_NAME = re.compile(r"[^A-Za-z0-9._+:-]")
_LONGEST_NAME = 32
_TITLE = re.compile(rb"VLLM::EngineCore(?:_DP(\d{1,4}))?\0*$")
_SERVER = re.compile(rb"(?:.*/)?vllm|vllm\.entrypoints\.[a-z0-9_.]{1,64}|VLLM::\w{1,64}")


class Process(NamedTuple):
    """One process, as its `stat` tells."""

    pid: int
    parent: int
    comm: str


class Memory(NamedTuple):
    """The resident memory of one process, page cache left out."""

    own_mib: float
    shared_mib: float
    """What it may share with its kin, so that it must not be counted twice."""


class Cgroup(NamedTuple):
    """What a cgroup allows, and what became of who did not keep to it."""

    limit_mib: float | None
    oom_kills: int | None


class ProcFs:
    """The processes of this host. `root` and `cgroups` are elsewhere in tests."""

    def __init__(self, root: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._root = root
        self._cgroups = cgroups

    def processes(self) -> dict[int, Process]:
        """Return all processes that can be seen."""
        try:
            names = os.listdir(self._root)  # noqa: PTH208 - thousands of them, and a Path costs as much as the reading
        except OSError:
            return {}
        found = (self.process(int(name)) for name in names if name.isdigit())
        return {process.pid: process for process in found if process is not None}

    def process(self, pid: int) -> Process | None:
        """Return one process."""
        text = self._read(f"{pid}/stat").decode("utf-8", "replace")
        head, bracket, rest = text.rpartition(")")
        fields = rest.split()
        if not bracket or len(fields) < 2 or not fields[1].isdigit():
            return None
        return Process(pid, int(fields[1]), clean(head.partition("(")[2]))

    def name(self, pid: int) -> str | None:
        """Return the name of a process's executable; where that may not be seen, what it calls itself."""
        try:
            return clean((self._root / str(pid) / "exe").readlink().name.removesuffix(" (deleted)"))
        except OSError:
            process = self.process(pid)
            return None if process is None else process.comm

    def is_vllm(self, pid: int) -> bool:
        """Return whether a process is one of vLLM, by its own words."""
        return _is_server(self._read(f"{pid}/cmdline"))

    def has_ended(self, pid: int) -> bool:
        """Return whether a process is none of vLLM for sure: gone, or another by its own words."""
        try:
            return not _is_server(self._read_or_raise(f"{pid}/cmdline"))
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # too many files are open, for instance: that says nothing of the process
            return False

    def engine_index(self, pid: int) -> int | None:
        """Return the data-parallel rank that an engine core's title names; 0 where it names none."""
        title = _TITLE.match(self._read(f"{pid}/cmdline"))
        return None if title is None else int(title[1] or 0)

    def memory(self, pid: int) -> Memory | None:
        """Return the memory of a process."""
        fields = self._status(pid)
        own, shared = fields.get("RssAnon"), fields.get("RssShmem")
        if own is None or shared is None:
            return None
        return Memory(own / MIB, shared / MIB)

    def inside(self, pid: int) -> int | None:
        """Return the number that a process has inside its container; None where it is in none."""
        for line in self._read(f"{pid}/status").splitlines():
            if line.startswith(b"NSpid:"):
                numbers = line.split()[1:]
                return int(numbers[-1]) if len(numbers) > 1 and numbers[-1].isdigit() else None
        return None

    def total_mib(self) -> float | None:
        """Return the memory of the host."""
        for line in self._read("meminfo").splitlines():
            if line.startswith(b"MemTotal:"):
                return int(line.split()[1]) / MIB
        return None

    def cgroup(self, pid: int) -> Cgroup:
        """Return what the cgroup of a process allows, and those above it."""
        limits: list[float] = []
        kills: int | None = None
        for folder, is_v2 in self._memory_folders(pid):
            name = "memory.max" if is_v2 else "memory.limit_in_bytes"
            limit = _number(_text(folder / name))
            if limit is not None and limit < _UNLIMITED:
                limits.append(limit / 2**20)
            if kills is None:
                kills = _counter(_text(folder / ("memory.events" if is_v2 else "memory.oom_control")))
        total = self.total_mib()
        limits += [] if total is None else [total]
        return Cgroup(min(limits, default=None), kills)

    def _memory_folders(self, pid: int) -> Iterator[tuple[Path, bool]]:
        """Yield the folders of a process's memory cgroup, from its own to the topmost; and whether they are of v2."""
        for line in self._read(f"{pid}/cgroup").decode("utf-8", "replace").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            is_v2 = number == "0" and not controllers
            if not is_v2 and "memory" not in controllers.split(","):
                continue
            root = self._cgroups if is_v2 else self._cgroups / "memory"
            folder = root / path.lstrip("/")
            while folder != root and root in folder.parents:
                yield folder, is_v2
                folder = folder.parent
            yield root, is_v2

    def _status(self, pid: int) -> dict[str, int]:
        """Return the sizes of a process's `status`, in KiB."""
        found = {}
        for line in self._read(f"{pid}/status").decode("utf-8", "replace").splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "kB" and words[1].isdigit():
                found[words[0].rstrip(":")] = int(words[1])
        return found

    def _read(self, name: str) -> bytes:
        """Return the beginning of a file; nothing where it is gone or forbidden."""
        try:
            return self._read_or_raise(name)
        except OSError:
            return b""

    def _read_or_raise(self, name: str) -> bytes:
        fd = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _MOST)
        finally:
            os.close(fd)


def _is_server(cmdline: bytes) -> bool:
    return any(_SERVER.fullmatch(word) for word in cmdline.split(b"\0")[:8])


def clean(name: str) -> str:
    """Return a name fit for the store: a process may call itself anything."""
    return _NAME.sub("_", name)[:_LONGEST_NAME]


def _text(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_MOST)
    except OSError:
        return ""


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if text.isdigit() else None


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
