"""Follows the logs of one docker container through all that bear its name: each has a folder of its own."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from kvlogd.docker import Containers
from kvlogd.followed import Identity
from kvlogd.model import Gap
from kvlogd.piece import Health, Piece
from kvlogd.recall import Loss
from kvlogd.rows import Position
from kvlogd.tail import Tail

ROOT = Path("/var/lib/docker/containers")


class ContainerTail:
    """A `Tailer` of the container called `name`; `places` are its positions in the store."""

    def __init__(self, source: str, name: str, places: Iterable[Position] = (), root: Path = ROOT) -> None:
        self._source = source
        self._root = root
        self._containers = Containers(root, name)
        self._places = [place for place in places if not place.done]
        self._tails: dict[Path, Tail] = {}
        self._mend = ""
        self._is_first_look = True

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> list[Piece]:
        """Return what is new in the logs of all containers of the name, oldest first."""
        found = self._containers.logs(wall_s)
        self._mend = found.mend
        by_folder: dict[Path, list[Path]] = {}
        for path in found.paths:
            by_folder.setdefault(path.parent, []).append(path)
        for folder, paths in by_folder.items():
            if folder not in self._tails:
                self._tails[folder] = self._tail_of(paths)
        pieces = self._gone() if self._is_first_look and by_folder else []
        for folder, tail in list(self._tails.items()):
            pieces += tail.poll(budget_bytes, now_s, wall_s)
            # what was written to a removed log can still be read
            if folder not in by_folder and tail.is_over and self._is_gone(folder):
                tail.close()
                del self._tails[folder]
        return pieces

    def _is_gone(self, folder: Path) -> bool:
        """Return whether a container was removed; what only cannot be seen now would be read again from its start."""
        try:
            folder.stat()
        except FileNotFoundError:
            return self._root.is_dir()
        except OSError:
            return False
        return False

    def _tail_of(self, paths: list[Path]) -> Tail:
        inodes = set()
        for path in paths:
            with contextlib.suppress(OSError):
                inodes.add("{}-{}".format(*Identity.of(path.stat())))
        mine = [place for place in self._places if "-".join(place.file_id.split("-")[:2]) in inodes]
        self._places = [place for place in self._places if place not in mine]
        return Tail(self._source, lambda: paths, lambda _base: self._source, mine)

    def _gone(self) -> list[Piece]:
        """Count the containers that were removed, with their logs, while nobody looked."""
        self._is_first_look = False
        gone, self._places = self._places, []
        return [
            Piece(self._source, b"", place._replace(done=True), [Gap(self._source, None, Loss.GONE, 0)])
            for place in gone
        ]

    def hint(self) -> None:
        """Say that files may have come, gone or changed their names."""
        for tail in self._tails.values():
            tail.hint()

    def folders(self) -> set[Path]:
        """Return the folders of the containers."""
        return set(self._tails)

    def health(self) -> list[Health]:
        """Return how the logs fare."""
        found = [health for tail in self._tails.values() for health in tail.health()]
        if self._mend or not found:
            behind = sum(health.behind_bytes or 0 for health in found)
            return [Health(self._source, "waiting" if found else "unreadable", behind, self._mend)]
        return found

    def blind(self, logs: Iterable[str]) -> set[str]:
        """Return which of these logs cannot be seen now: all where no container can."""
        asked = set(logs)
        if not self._tails:
            return asked
        return {log for tail in self._tails.values() for log in tail.blind(asked)}

    def has_seen(self, log: str) -> bool:
        """Return True: the containers of one name, gone or not, have one log."""
        return True

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails.values():
            tail.close()
