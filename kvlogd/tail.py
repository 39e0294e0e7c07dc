"""Follows the files of one source through rotations, truncations and restarts.

What stands in the folder is the truth, looked at every few seconds; a hint from a watcher only makes the next look
come sooner. Each log has a trail (`kvlogd.trail`) of its present file and of those it was rotated to.
Promises: each line is handed on once and whole, or its loss is told as a gap; a loud log waits for the quiet ones;
memory is bounded by one block and one line a file, descriptors by `most_open`.
"""

import errno
import glob
import os
import resource
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kvlogd.followed import Descriptors, Identity
from kvlogd.piece import Health, Piece
from kvlogd.rows import Position
from kvlogd.source import rotation_of, shown
from kvlogd.trail import Candidate, Trail, reason

LOOK_S = 2.0
"""How often the folder is looked at when no hint comes."""

Finder = Callable[[], list[Path]]
"""Returns the paths that a source names, as they are now; some may not exist."""


def globbed(patterns: Sequence[str]) -> Finder:
    """Return a finder of the files that some patterns match; a pattern without wildcards is a path."""
    plain = [Path(pattern) for pattern in patterns if not glob.has_magic(pattern)]
    wild = [pattern for pattern in patterns if glob.has_magic(pattern)]
    return lambda: [*plain, *sorted({Path(found) for pattern in wild for found in glob.glob(pattern)})]  # noqa: PTH207


class Tail:
    """The logs of one source. `places` are their positions in the store, `named` says what a log is called."""

    def __init__(
        self,
        source: str,
        find: Finder,
        named: Callable[[Path], str],
        places: Iterable[Position] = (),
        most_open: int = 256,
    ) -> None:
        self.source = source
        self._find = find
        self._named = named
        self._places: dict[str, list[Position]] = {}
        for place in places:
            self._places.setdefault(place.source, []).append(place)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptors = Descriptors(max(1, min(most_open, soft // 2)))
        self._trails: dict[Path, Trail] = {}
        self._turn: list[Trail] = []
        """Logs that have not had their turn in this round."""
        self._look_at_s = float("-inf")
        self._troubles: dict[Path, str] = {}

    def hint(self) -> None:
        """Say that files may have come, gone or changed their names."""
        self._look_at_s = float("-inf")

    def folders(self) -> set[Path]:
        """Return the folders in which the logs stand."""
        return {base.parent for base in self._trails}

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> list[Piece]:
        """Return what is new: a block of each log in turn, until all had one or the budget is used."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._look(wall_s)
        if not self._turn:
            self._turn = list(self._trails.values())
        pieces: list[Piece] = []
        while self._turn and budget_bytes > 0:
            read = self._turn.pop(0).read(now_s, wall_s)
            budget_bytes -= sum(len(piece.data) for piece in read)
            pieces += read
        if any(trail.wants_look for trail in self._trails.values()):
            self.hint()
        return pieces

    def health(self) -> list[Health]:
        """Return how each log fares, and which paths cannot be read."""
        found = [trail.health() for trail in self._trails.values()]
        found += [Health(shown(str(path)), "unreadable", None, why) for path, why in self._troubles.items()]
        return found or [Health(self.source, "waiting", None, "no file matches yet")]

    def close(self) -> None:
        """Let go of all files."""
        for trail in self._trails.values():
            trail.close()

    def _look(self, wall_s: float) -> None:
        self._troubles = {}
        named = self._find()
        bases = {rotation_of(path)[0] for path in named} | self._trails.keys()
        found: dict[Path, dict[Identity, Candidate]] = {base: {} for base in bases}
        taken: dict[Identity, Path] = {}
        for path in sorted(named, key=lambda path: path.is_symlink()):
            self._add(found, taken, path, is_named=True)
        for folder in {base.parent for base in bases}:
            for path in self._rotated(folder, bases):
                self._add(found, taken, path, is_named=False)
        for base, candidates in found.items():
            if base not in self._trails and candidates:
                name = self._named(base)
                self._trails[base] = Trail(name, self._places.pop(name, ()), self._descriptors)
            if base in self._trails:
                is_whole = not self._is_blind(base) and (bool(candidates) or base.parent.is_dir())
                self._troubles |= self._trails[base].reconcile(list(candidates.values()), wall_s, is_whole=is_whole)

    def _is_blind(self, base: Path) -> bool:
        """Return whether there may be files of a log that cannot be seen now."""
        return any(base == rotation_of(path)[0] or base.parent == path for path in self._troubles)

    def _rotated(self, folder: Path, bases: set[Path]) -> list[Path]:
        """Return the files of a folder that are rotations of one of the logs."""
        try:
            with os.scandir(folder) as entries:
                paths = [folder / entry.name for entry in entries]
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._troubles[folder] = reason(error)
            return []
        return [path for path in paths if path not in bases and rotation_of(path)[0] in bases]

    def _add(
        self, found: dict[Path, dict[Identity, Candidate]], taken: dict[Identity, Path], path: Path, *, is_named: bool
    ) -> None:
        """Add a file to those of its log, unless it is the same file as one of another log: a link to it."""
        base, rotation = rotation_of(path)
        if rotation.packed:
            if is_named:
                self._troubles[path] = "compressed files are not followed: give them to kvlogd replay"
            return
        try:
            candidate = Candidate(path, path.stat(), is_named, rotation)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._troubles[path] = reason(error)
            return
        if taken.setdefault(candidate.identity, base) == base:
            found[base].setdefault(candidate.identity, candidate)
