"""Finds the logs of a docker container by its name, also when the container is made anew under another id.

Promises: a container that is made anew is found at the next look; what docker is just writing, and what cannot be
read, is passed over and tried again; while nothing changes, a look costs one `stat` a container.
Does not promise: to read logs (the file tailer does), or to know drivers other than json-file.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

LOOK_S = 1.0
"""Between two looks; a new container is found within ten times that."""
SETTLED_NS = 2_000_000_000
"""A folder that changed less than this ago may change again within the same tick of its clock."""
MOST_BYTES = 4 << 20

NO_ACCESS = "let this user read docker's containers: CAP_DAC_READ_SEARCH in the unit, or an ACL on the folder"
NO_FOLDER = "docker's folder of containers is not there: see `docker info` for its root"
NO_CONTAINER = "no container of this name: see `docker ps --all`"
NO_LOG = "the container has written nothing yet"
BROKEN = "a container's config cannot be read: see the rights of its folder"

_ID = re.compile(r"[0-9a-f]{64}")


class Found(NamedTuple):
    """The logs of a container, oldest first, and what to do where there are none."""

    paths: tuple[Path, ...]
    mend: str = ""


class _Container(NamedTuple):
    """What docker's files say of one container. All is empty where they could not be read."""

    created: str = ""
    name: str = ""
    driver: str = ""
    logs: tuple[Path, ...] = ()
    is_read: bool = True


class Containers:
    """The containers of one name under docker's folder, `/var/lib/docker/containers`."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        self._known: dict[str, tuple[int, _Container]] = {}
        """By id: when its folder changed last, and what stood there then."""
        self._looked_s: float | None = None
        self._found = Found((), NO_CONTAINER)

    def logs(self, wall_s: float) -> Found:
        """Return the logs that are there now, with their rotations; looks once a second."""
        if self._looked_s is None or not 0 <= wall_s - self._looked_s < LOOK_S:
            self._looked_s = wall_s
            self._found = self._look(wall_s)
        return self._found

    def _look(self, wall_s: float) -> Found:
        try:
            with os.scandir(self._root) as entries:
                folders = {entry.name: entry for entry in entries if _ID.fullmatch(entry.name)}
            changed = {name: _changed_ns(entry) for name, entry in folders.items()}
        except FileNotFoundError:
            return Found((), NO_FOLDER)
        except OSError:
            return Found((), NO_ACCESS)
        settled = round(wall_s * 1e9) - SETTLED_NS
        known = {}
        for name, changed_ns in changed.items():
            seen_ns, container = self._known.get(name, (None, _Container()))
            if seen_ns != changed_ns:
                container = _read(self._root / name)
            known[name] = (changed_ns if changed_ns < settled and container.is_read else -1, container)
        self._known = known
        return self._of_name()

    def _of_name(self) -> Found:
        # compose calls the old one ID_NAME for the moment in which it makes the new one
        names = {id_: {f"/{self._name}", f"/{id_[:12]}_{self._name}"} for id_ in self._known}
        ours = sorted(c for id_, (_, c) in self._known.items() if c.name in names[id_])
        if not ours:
            return Found((), NO_CONTAINER if all(c.is_read for _, c in self._known.values()) else BROKEN)
        return Found(tuple(log for container in ours for log in container.logs), _mend(ours[-1]))


def name_of(root: Path, id_: str) -> str:
    """Return the name of a container by its id; empty where its folder is not there or cannot be read."""
    return _read(root / id_).name.removeprefix("/")


def _mend(container: _Container) -> str:
    """Return what to do about the newest container."""
    if container.driver in ("", "json-file"):
        return "" if container.logs else NO_LOG
    driver = container.driver if re.fullmatch(r"[a-z-]{1,20}", container.driver) else "another driver"
    return f"the container logs to {driver}: start it with --log-driver=json-file"


def _changed_ns(entry: os.DirEntry[str]) -> int:
    """Return when a file was last made, renamed or removed in a folder; docker replaces its configs by renaming."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return -1  # removed in this moment


def _read(folder: Path) -> _Container:
    config = _json(folder / "config.v2.json")
    host = _json(folder / "hostconfig.json")
    name, created, log_path = (config.get(key) for key in ("Name", "Created", "LogPath"))
    if not isinstance(name, str):
        return _Container(is_read=False)
    driver = _driver(host) or _driver(config.get("HostConfig"))
    # the path in the config is the host's: the folder may be mounted somewhere else
    logs = _rotated(folder, Path(log_path).name) if isinstance(log_path, str) and log_path else ()
    return _Container(created if isinstance(created, str) else "", name, driver, logs, is_read=bool(config))


def _driver(host: object) -> str:
    kind = host.get("LogConfig") if isinstance(host, dict) else None
    driver = kind.get("Type") if isinstance(kind, dict) else None
    return driver if isinstance(driver, str) else ""


def _rotated(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the log and its rotations, the highest number first; packed ones are left out."""
    of_log = re.compile(re.escape(name) + r"(?:\.(\d{1,4}))?")
    try:
        matches = [match for path in folder.iterdir() if (match := of_log.fullmatch(path.name))]
    except OSError:
        return ()
    matches.sort(key=lambda match: -int(match[1] or 0))
    return tuple(folder / match[0] for match in matches)


def _json(path: Path) -> dict[str, object]:
    """Return a config; empty where it is half written, or not what docker writes."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_BYTES:
            return {}
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
