"""Looks at every link of the chain, from vLLM's options to the disk of the store: `kvlogd doctor`.

Promises to change nothing, to wait for nothing longer than a few seconds, and that each item that is not in order
says what to do. Reads the end of each log itself and asks the daemon, where one runs, how it fares.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvlogd import ask, disk, gpucheck, journalcheck, pagecheck, rights, servers, systemd, wire
from kvlogd.channel import url
from kvlogd.checkup import Item, Mark
from kvlogd.clock import Clock
from kvlogd.config import ChannelConfig, Config, SourceConfig
from kvlogd.container import ROOT as CONTAINERS
from kvlogd.docker import Containers
from kvlogd.errors import ConfigError, KvlogdError
from kvlogd.logcheck import look
from kvlogd.quantity import duration_text, size_text
from kvlogd.rules import Rule
from kvlogd.setup import Setup, counts_text, read_setup
from kvlogd.source import rotation_of, shown
from kvlogd.stamp import HOST_ZONE, zone
from kvlogd.status import SourceState, Status
from kvlogd.tail import globbed

LEAST_BYTES, SOME_BYTES = 64 << 20, 1 << 30
BEHIND_BYTES = 16 << 20
MOST_LOGS = 8
"""Logs of a source that are read to the end of the chain; of further ones only that they are there is told."""


class Found(NamedTuple):
    """What the doctor saw."""

    items: list[Item]
    verdict: list[str]


def examine(wanted: Path | None, logs: Sequence[Path], wall_s: float) -> Found:
    """Return the whole chain: of the config's sources, or of these logs alone."""
    try:
        setup = read_setup(wanted)
    except KvlogdError as error:
        faults = str(error).splitlines()
        items = [Item("config", Mark.FAIL, fault, "mend it, then `kvlogd check`") for fault in faults]
        return Found(items, ["the config is wrong: nothing else was looked at"])
    items = [Item("config", Mark.OK, counts_text(setup))] if not logs else []
    sources = [_given(log) for log in logs] or list(setup.config.sources)
    verdict: list[str] = []
    for source in sources:
        looked = _source(source, setup.rules, wall_s, for_service=not logs and os.geteuid() == 0)
        items += looked.items
        verdict += looked.verdict
        if source.metrics is not None:
            items += pagecheck.items(source.name, source.metrics, Clock())
    if not logs:
        reached = _reached(setup)
        items += [*_servers(), *_store(setup.config), *_daemon(reached, wall_s)]
        items += gpucheck.items(setup.config.gpu.enabled, reached if isinstance(reached, Status) else None, Clock())
        items += [item for channel in setup.config.channels for item in _channel(channel)]
        items += _clock()
    return Found(items, verdict or ["no log could be judged"])


def _given(log: Path) -> SourceConfig:
    name = "".join(char if char.isalnum() or char in "._-" else "_" for char in log.name)[:64]
    return SourceConfig(name=name or "log", files=(str(log),))


# --- sources


def _source(source: SourceConfig, rules: Sequence[Rule], wall_s: float, *, for_service: bool) -> Found:
    in_zone = HOST_ZONE if source.timezone is None else zone(source.timezone)
    if source.journal is not None:
        return Found(*journalcheck.look(source.name, source.journal, rules, in_zone, wall_s))
    if source.docker is not None:
        found = Containers(CONTAINERS, source.docker).logs(wall_s)
        paths, mend, groups = list(found.paths[-1:]), found.mend, None
    else:
        paths, mend = _live(source), "check the pattern, or see where vLLM writes to: `sudo kvlogd install --dry-run`"
        groups = rights.groups() if for_service else None
    if not paths:
        where = source.docker or ", ".join(source.files)
        return Found([Item(f"{source.name}: file", Mark.FAIL, f"{shown(where)}: nothing there", mend)], [])
    items: list[Item] = []
    verdict: list[str] = []
    for path in paths[:MOST_LOGS]:
        name = source.name if len(paths) == 1 else f"{source.name}/{shown(path.name)}"
        looked = look(name, path, rules, in_zone, wall_s, groups=groups)
        items += looked.items
        verdict += looked.verdict
    if len(paths) > MOST_LOGS:
        items.append(Item(f"{source.name}: file", Mark.OK, f"{len(paths) - MOST_LOGS} more logs, not looked into"))
    return Found(items, verdict)


def _live(source: SourceConfig) -> list[Path]:
    """Return the files that are written now, the freshest first: rotated ones only where nothing else is there."""
    there = [path for path in globbed(source.files)() if path.exists() or path.is_symlink()]
    live = [path for path in there if not rotation_of(path)[1].packed]
    by_log: dict[Path, Path] = {}
    for path in sorted(live, key=lambda path: rotation_of(path)[1]):
        by_log[rotation_of(path)[0]] = path  # the last one is the live one
    return sorted(by_log.values(), key=lambda path: -path.stat().st_mtime if path.exists() else 0.0)


def _servers() -> Iterator[Item]:
    """Tell of running servers that were started so that they print no stats lines."""
    running = servers.running()
    for server, what, mend in servers.troubles(running):
        yield Item(f"vLLM on port {server.port}", Mark.FAIL, f"process {server.pid} {what}", mend)
    if running and not any(True for _ in servers.troubles(running)):
        ports = ", ".join(str(server.port) for server in running)
        yield Item("vLLM", Mark.OK, f"{len(running)} running, on port {ports}, started so that stats lines come")


# --- kvlogd itself


def _store(config: Config) -> Iterator[Item]:
    path = config.store.path
    folder = next((place for place in (path.parent, *path.parent.parents) if os.access(place, os.F_OK)), Path("/"))
    try:
        free = disk.free_bytes(folder)
    except OSError as error:
        yield Item("store", Mark.FAIL, f"{folder}: {error.strerror}", "check the disk")
        return
    try:
        size = size_text(disk.size_of(path))
    except OSError:  # the unit's state folder is closed to all but root and the daemon
        size = "closed to you"
    what = f"{path}: {size}, {size_text(free)} free on its disk"
    mark = Mark.FAIL if free < LEAST_BYTES else Mark.WARN if free < SOME_BYTES else Mark.OK
    yield Item("store", mark, what, "" if mark is Mark.OK else "free disk space, or lower store: keep_raw")


def _reached(setup: Setup) -> Status | Item:
    """Return what the daemon says, or why it says nothing."""
    store = setup.config.store
    try:
        return ask.status(wire.places(store.path, store.socket), store.path)
    except ask.AbsentError as absent:
        mark, mend = (Mark.WARN, absent.mend) if absent.refusing else (Mark.FAIL, "systemctl start kvlogd")
        return Item("daemon", mark, absent.what, mend)
    except KvlogdError as error:
        return Item("daemon", Mark.FAIL, error.what, error.mend or "systemctl restart kvlogd")


def _daemon(status: Status | Item, wall_s: float) -> Iterator[Item]:
    if isinstance(status, Item):
        yield status
        return
    age = duration_text(max(wall_s - status.started_s, 0))
    yield Item("daemon", Mark.OK, f"process {status.pid} has run for {age}")
    blind = {source.name for source in status.sources if source.state is SourceState.UNREADABLE}
    for trouble in status.troubles:
        if trouble.where == "gpu":
            continue  # `gpucheck` tells it, which knows whether a driver is wanted at all
        mark = Mark.FAIL if trouble.where in blind else Mark.WARN
        yield Item(f"daemon: {trouble.where}", mark, trouble.what, "journalctl -u kvlogd says more")
    for source in status.sources:
        if (source.lag_bytes or 0) > BEHIND_BYTES:
            what = f"the daemon is {size_text(source.lag_bytes or 0)} behind"
            yield Item(f"daemon: {source.name}", Mark.WARN, what, "it catches up by itself; look again")


def _channel(channel: ChannelConfig) -> Iterator[Item]:
    """Tell whether a channel's URL is there and kept from others; its sending is `kvlogd notify test`'s business."""
    link = f"channel {channel.name}"
    if channel.url_env is not None:
        yield Item(link, Mark.OK, f"its URL comes from the variable {channel.url_env} of the service")
    elif channel.credential is not None:
        yield Item(
            link, Mark.OK, f"its URL comes from the credential {channel.credential}: see LoadCredential= of the unit"
        )
    else:
        try:
            url(channel, os.environ)
        except ConfigError as error:
            yield Item(link, Mark.FAIL, f"{error.where}: {error.what}", error.mend)
        else:
            yield Item(link, Mark.OK, f"{channel.url_file} holds its URL; `kvlogd notify test {channel.name}` tries it")


def _clock() -> Iterator[Item]:
    """Tell whether somebody keeps the clock right, as far as systemd's own service says."""
    is_synced = Path("/run/systemd/timesync/synchronized").exists() or Path("/run/chrony").is_dir()
    if is_synced or systemd.is_absent():
        yield Item("clock", Mark.OK, "is kept by a time service" if is_synced else "not looked at: no systemd here")
    else:
        mend = "timedatectl set-ntp true; a jump of the clock moves no rule, only times that are shown"
        yield Item("clock", Mark.WARN, "no time service that is known keeps it", mend)
