"""Which processes belong to which server: from the process that writes a log up to its topmost vLLM ancestor, and all
that descend from there; which engine each of them works for.

Promises: a number that the log names is believed only where that process is one of vLLM; inside a container the host's
number is found by the one that the container gives. Does not promise: to tell two servers apart that log the same
number from two containers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvlogd.procfs import Process, ProcFs
from kvlogd.reading import HostSample

SEARCH_AGAIN = 10
"""Looks after which a container's process that was not found is looked for again."""


class Writer(NamedTuple):
    """Who writes a log."""

    source: str
    pid: int
    """As the log names it."""
    engines: Mapping[int | None, int]
    """engine_id of each engine index."""


class Owner(NamedTuple):
    """Whose process one is."""

    source: str
    engine_id: int | None


class Tree(NamedTuple):
    """The processes of one server."""

    writer: Writer
    root: int
    pids: frozenset[int]


class Kin:
    """Looks at the processes; remembers what is dear to find out."""

    def __init__(self, procfs: ProcFs) -> None:
        self._procfs = procfs
        self._hosts: dict[tuple[str, int], int | None] = {}
        """(log, the number it names) -> the host's number."""
        self._looks = 0
        self.trees: list[Tree] = []
        self._processes: Mapping[int, Process] = {}
        self._inside: Mapping[int, Sequence[int]] | None = None
        """The number inside a container -> the host's numbers; None where this look has not asked for it."""

    def look(self, writers: Iterable[Writer]) -> None:
        """Find the processes of each server anew."""
        self._looks += 1
        known = list(writers)
        self._processes, self._inside = self._procfs.processes() if known else {}, None
        children: dict[int, list[int]] = {}
        for process in self._processes.values():
            children.setdefault(process.parent, []).append(process.pid)
        self.trees = []
        for writer in known:
            pid = self._on_host(writer)
            if pid is not None:
                root = self._root(pid)
                self.trees.append(Tree(writer, root, _descendants(root, children)))

    def owner(self, pid: int) -> Owner | None:
        """Return whose process this is; None for a stranger's."""
        for tree in self.trees:
            if pid in tree.pids:
                engines = tree.writer.engines
                if len(engines) == 1:
                    return Owner(tree.writer.source, next(iter(engines.values())))
                return Owner(tree.writer.source, engines.get(self._engine_index(pid, tree.root)))
        return None

    def memory(self, ts_s: float) -> list[HostSample]:
        """Return the memory of each server: what its processes have alone, and the largest of what they may share."""
        samples = []
        for tree in self.trees:
            found = [memory for pid in tree.pids if (memory := self._procfs.memory(pid)) is not None]
            if not found:
                continue
            rss_mib = sum(memory.own_mib for memory in found) + max(memory.shared_mib for memory in found)
            cgroup = self._procfs.cgroup(tree.root)
            facts = (cgroup.limit_mib, cgroup.oom_kills, len(found), tree.root)
            samples.append(HostSample(ts_s, tree.writer.source, rss_mib, *facts))
        return samples

    def has_ended(self, pid: int) -> bool:
        """Return whether a process that was one of vLLM is none any more, for sure."""
        return self._procfs.has_ended(pid)

    def name(self, pid: int) -> str | None:
        """Return the name of a process's executable."""
        return self._procfs.name(pid)

    def _on_host(self, writer: Writer) -> int | None:
        """Return the host's number of the process that a log names."""
        key = writer.source, writer.pid
        found = self._hosts.get(key)
        if found is not None and found in self._processes and self._procfs.is_vllm(found):
            return found
        if key in self._hosts and found is None and self._looks % SEARCH_AGAIN:
            return None
        if writer.pid in self._processes and self._procfs.is_vllm(writer.pid):
            found = writer.pid
        else:
            mine = [pid for pid in self._inside_as(writer.pid) if self._procfs.is_vllm(pid)]
            found = mine[0] if len(mine) == 1 else None
        self._hosts = {known: pid for known, pid in self._hosts.items() if known[0] != writer.source}
        self._hosts[key] = found
        return found

    def _inside_as(self, number: int) -> Sequence[int]:
        """Return the processes that have this number inside their container; each is looked at once a look."""
        if self._inside is None:
            inside: dict[int, list[int]] = {}
            for pid in self._processes:
                if (its := self._procfs.inside(pid)) is not None:
                    inside.setdefault(its, []).append(pid)
            self._inside = inside
        return self._inside.get(number, ())

    def _root(self, pid: int) -> int:
        while (parent := self._processes[pid].parent) in self._processes and self._procfs.is_vllm(parent):
            pid = parent
        return pid

    def _engine_index(self, pid: int, root: int) -> int | None:
        """Return the rank of the engine core that a process is or descends from."""
        while pid in self._processes:
            index = self._procfs.engine_index(pid)
            if index is not None or pid == root:
                return index
            pid = self._processes[pid].parent
        return None


def _descendants(root: int, children: Mapping[int, list[int]]) -> frozenset[int]:
    found, left = {root}, [root]
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found:
                found.add(child)
                left.append(child)
    return frozenset(found)
