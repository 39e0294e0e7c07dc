"""Follows the files of one source through rotations, truncations and restarts.

What stands in the folder is the truth, looked at every few seconds; a hint from a watcher only makes the next look
come sooner. Each log has a trail (`kvlogd.trail`) of its present file and of those it was rotated to.
Promises: each line is handed on once and whole, or its loss is told as a gap; a loud log waits for the quiet ones;
memory is bounded by one block and one line a file, descriptors by `most_open` and by half of what the process may.
"""

import errno
import glob
import os
import resource
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kvlogd.followed import Descriptors, Identity, reason
from kvlogd.piece import Health, Piece
from kvlogd.rows import Position
from kvlogd.source import Rotation, rotation_of, shown
from kvlogd.trail import Candidate, Trail

LOOK_S = 2.0
"""How often it is seen whether the folders or the live files are others than they were, when no hint comes."""
FIND_S = 4.0
"""How often the patterns are tried again: they may match in folders that are not known yet. Troubles, too."""
FULL_LOOK_S = 30.0
"""How often everything is looked at anew: only that sees late lines in a rotated file that was let go."""
TICK_S = 2.0
"""A folder changed as shortly ago as this may change again without a new mtime."""
MOST_REMEMBERED = 8
"""Positions kept of a log that is gone altogether."""

Finder = Callable[[], list[Path]]
"""Returns the paths that a source names, as they are now; some may not exist."""


class _Placed(NamedTuple):
    """A path, with what its name says of it."""

    path: Path
    base: str
    """The path of the log that it belongs to."""
    rotation: Rotation


@lru_cache(maxsize=16384)
def _placed(path: str) -> _Placed:
    as_path = Path(path)
    base, rotation = rotation_of(as_path)
    return _Placed(as_path, str(base), rotation)


def globbed(patterns: Sequence[str]) -> Finder:
    """Return a finder of the files that some patterns match; a pattern without wildcards is a path."""
    plain = [Path(pattern) for pattern in patterns if not glob.has_magic(pattern)]
    wild = [pattern for pattern in patterns if glob.has_magic(pattern)]
    return lambda: [*plain, *(_placed(p).path for p in sorted({p for each in wild for p in glob.glob(each)}))]  # noqa: PTH207


class Tail:
    """The logs of one source. `places` are their positions in the store, `named` says what a log is called.

    `plain` are the paths that the source names without wildcards: what stands there was meant. `roots` are the folders
    in which wildcards are tried: one that may not be read shows no log, and that is not their silence.
    """

    def __init__(
        self,
        source: str,
        find: Finder,
        named: Callable[[Path], str],
        places: Iterable[Position] = (),
        most_open: int = 256,
        plain: Collection[str] = (),
        roots: Collection[str] = (),
    ) -> None:
        self.source = source
        self._find = find
        self._plain = frozenset(plain)
        self._roots = frozenset(roots)
        self._named = named
        self._places: dict[str, list[Position]] = {}
        for place in places:
            self._places.setdefault(place.source, []).append(place)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptors = Descriptors(max(1, min(most_open, soft // 2)))
        self._trails: dict[str, Trail] = {}
        self._turn: list[Trail] = []
        """Logs that have not had their turn in this round, the last one first."""
        self._look_at_s = self._find_at_s = self._full_look_at_s = float("-inf")
        self._found: list[Path] = []
        self._folders: dict[str, tuple[int, int, int] | None] = {}
        """What each folder was when it was looked at; None where that says nothing."""
        self._live: dict[str, tuple[int, int] | None] = {}
        self._troubles: dict[Path, str] = {}
        self._skipped: dict[Path, str] = {}
        """What a wildcard matched that is no log; why."""
        self._packed: dict[str, list[Candidate]] = {}
        """The compressed rotations of each log: needed only where a file was packed before it was read."""
        self._seen: set[str] = set()
        self._blind: set[str] = set()
        """Folders and logs of which not everything can be seen now."""

    @property
    def is_over(self) -> bool:
        """Return whether no file is followed any more, and nothing is left to tell."""
        return not self._trails

    def hint(self) -> None:
        """Say that files may have come, gone or changed their names."""
        self._look_at_s = self._full_look_at_s = float("-inf")

    def folders(self) -> set[Path]:
        """Return the folders in which the logs stand, or will stand."""
        return {Path(folder) for folder in self._folders}

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> list[Piece]:
        """Return what is new: a block of each log in turn, until all are read or the budget is used."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            if now_s >= self._full_look_at_s or self._has_changed(now_s):
                self._full_look_at_s = now_s + FULL_LOOK_S
                self._look(wall_s)
        pieces: list[Piece] = []
        reads = True
        while reads and budget_bytes > 0:
            reads = False
            if not self._turn:
                self._turn = list(reversed(self._trails.values()))
            while self._turn and budget_bytes > 0:
                trail = self._turn.pop()
                if trail.is_at_rest():
                    continue
                pieces += trail.read(now_s, wall_s)
                budget_bytes -= trail.taken_bytes
                reads = reads or trail.taken_bytes > 0
                if trail.wants_look:
                    self.hint()
        return pieces

    def health(self) -> list[Health]:
        """Return how each log fares, and which paths cannot be read."""
        found = [trail.health() for trail in self._trails.values()]
        found += [Health(shown(str(path)), "unreadable", None, why) for path, why in self._troubles.items()]
        found = found or [Health(self.source, "waiting", None, "no file matches yet")]
        return found + [Health(shown(str(path)), "skipped", None, why) for path, why in self._skipped.items()]

    def blind(self, logs: Iterable[str]) -> set[str]:
        """Return which of these logs cannot be seen now: the file, its folder or the whole of it is in trouble."""
        by_name = {trail.name: base for base, trail in self._trails.items()}
        hidden = self._blind | {str(path) for path in self._troubles}
        without_file = {self._named(Path(place)) for place in hidden}
        is_folder_hidden = any(folder in hidden for folder in (*self._folders, *self._roots))

        def is_blind(log: str) -> bool:
            base = by_name.get(log)
            if base is None:  # what is not known to stand anywhere may stand in a folder that cannot be looked at
                return is_folder_hidden or log in without_file
            is_hidden = base in hidden or os.path.dirname(base) in hidden  # noqa: PTH120
            return is_hidden or self._trails[base].is_troubled

        return {log for log in logs if is_blind(log)}

    def has_seen(self, log: str) -> bool:
        """Return whether a file of this log has been there since the start.

        One of which none was may have been taken out of the config, or away with its server.
        """
        return log in self._seen

    def close(self) -> None:
        """Let go of all files."""
        for trail in self._trails.values():
            trail.close()

    # --- looking

    def _has_changed(self, now_s: float) -> bool:
        """Return whether a folder's entries or a live file's identity are not what they were at the last look."""
        if any(before is None or before != _entries_of(folder) for folder, before in self._folders.items()):
            return True
        if any(before != _identity_at(path) for path, before in self._live.items()):
            return True
        if now_s < self._find_at_s:
            return False
        self._find_at_s = now_s + FIND_S
        return bool(self._troubles or self._skipped) or self._find() != self._found

    def _look(self, wall_s: float) -> None:
        self._troubles, self._skipped, self._blind, self._packed = {}, {}, set(), {}
        self._found = self._find()
        named = {str(path) for path in self._found} | self._trails.keys()
        bases = {_placed(path).base: _placed(path).base for path in named}
        # where a log is a link, the file that it leads to is rotated beside that file
        bases |= {home: base for base in list(bases) if (home := _home(base)) is not None and home not in bases}
        self._folders = {folder: _entries_of(folder, wall_s) for folder in {os.path.dirname(base) for base in bases}}  # noqa: PTH120
        found: dict[str, dict[Identity, Candidate]] = {base: {} for base in bases.values()}
        taken: dict[Identity, str] = {}
        for path in sorted(named, key=lambda path: (os.path.islink(path), path)):  # noqa: PTH114
            self._add(found, taken, path, _placed(path).base, is_named=True)
        for folder in self._folders:
            for path in self._rotated(folder, bases.keys()):
                self._add(found, taken, path, bases[_placed(path).base], is_named=False)
        for folder in self._roots - self._folders.keys():
            self._entries(folder)
        for base, candidates in found.items():
            self._reconcile(base, list(candidates.values()), wall_s)
        self._live = {base: _identity_at(base) for base in self._trails}

    def _reconcile(self, base: str, candidates: list[Candidate], wall_s: float) -> None:
        trail = self._trails.get(base)
        if trail is None:
            if not candidates:
                return
            name = self._named(Path(base))
            trail = self._trails[base] = Trail(name, self._places.pop(name, ()), self._descriptors)
            self._seen.add(name)
        is_whole = base not in self._blind and os.path.dirname(base) not in self._blind  # noqa: PTH120
        packed = self._packed.get(base, ())
        self._troubles |= trail.reconcile(candidates, wall_s, is_whole=is_whole, packed=packed)
        if is_whole and not candidates and trail.is_over:
            self._places[trail.name] = trail.recall.remembered()[-MOST_REMEMBERED:]
            del self._trails[base]

    def _rotated(self, folder: str, bases: Collection[str]) -> list[str]:
        """Return the files of a folder that are rotations of one of the logs."""
        return [path for path in self._entries(folder) if path not in bases and _placed(path).base in bases]

    def _entries(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return [entry.path for entry in entries]
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._troubles[Path(folder)] = reason(error)
                self._blind.add(folder)
            return []

    def _add(
        self,
        found: dict[str, dict[Identity, Candidate]],
        taken: dict[Identity, str],
        name: str,
        base: str,
        *,
        is_named: bool,
    ) -> None:
        """Add a file to those of its log, unless it is the same file as one of another log: a link to it."""
        path, _, rotation = _placed(name)
        if rotation.packed and is_named:
            self._skipped[path] = "compressed files are not followed: give them to kvlogd replay"
        try:
            status = os.stat(name)  # noqa: PTH116
        except OSError as error:
            if error.errno != errno.ENOENT and not rotation.packed:
                self._troubles[path] = reason(error)
                if error.errno != errno.ELOOP:
                    self._blind.add(base)
            return
        if rotation.packed:
            self._packed.setdefault(base, []).append(Candidate(path, status, is_named, rotation))
            return
        if not stat.S_ISREG(status.st_mode):
            if is_named:
                # where no wildcard but the config itself names it, a log is missing
                told = self._troubles if name in self._plain else self._skipped
                told[path] = reason(OSError(errno.EISDIR, ""))
            return
        identity = Identity.of(status)
        if taken.setdefault(identity, base) == base:
            found[base].setdefault(identity, Candidate(path, status, is_named, rotation))


def _home(base: str) -> str | None:
    """Return the log that a link leads to."""
    return _placed(os.path.realpath(base)).base if os.path.islink(base) else None  # noqa: PTH114


def _entries_of(folder: str, wall_s: float | None = None) -> tuple[int, int, int] | None:
    """Return what changes when a file comes, goes or is renamed; None where it may change unseen after `wall_s`."""
    try:
        status = os.stat(folder)  # noqa: PTH116
    except OSError:
        return (0, 0, 0)
    if wall_s is not None and wall_s - status.st_mtime < TICK_S:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _identity_at(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
