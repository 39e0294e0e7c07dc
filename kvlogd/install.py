"""Puts kvlogd on a host and takes it off again: unit, config, command, man page and completion: `kvlogd install`.

Promises: to do nothing but write the files it names and call systemctl; a config that is there is never changed; twice
is as good as once; what was taken from it by hand is not missed; the history is never removed.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kvlogd import proposal, rights, servers, systemd
from kvlogd.config import load_config
from kvlogd.container import ROOT as CONTAINERS
from kvlogd.docker import name_of
from kvlogd.errors import ConfigError, KvlogdError
from kvlogd.proposal import Proposal

UNIT = "kvlogd.service"
CONFIG = Path("etc/kvlogd/kvlogd.yaml")
OWN_UNIT = Path("etc/systemd/system") / UNIT
STEPS = Path("etc/systemd/system") / f"{UNIT}.d" / "10-restart-steps.conf"
PACKAGED = (Path("lib/systemd/system") / UNIT, Path("usr/lib/systemd/system") / UNIT)
COMMAND = Path("usr/local/bin/kvlogd")
PAGE = Path("usr/local/share/man/man1/kvlogd.1")
COMPLETION = Path("usr/local/share/bash-completion/completions/kvlogd")
_PROGRAM_OF_UNIT = "/opt/kvlogd/bin/kvlogd"
_STEPS_FROM = 254
_STEPS_TEXT = """# systemd 254 and newer: the delay between two starts grows from RestartSec to this
[Service]
RestartSteps=6
RestartMaxDelaySec=2min
"""
_CALL_S = 120.0


class Change(NamedTuple):
    """A file to be, relative to the root folder: of this text, or a link to there."""

    path: Path
    text: str = ""
    link: Path | None = None


class Plan(NamedTuple):
    """What an installation comes to."""

    changes: list[Change]
    found: list[Proposal]
    uncovered: list[Proposal]
    """Servers that a config which is there does not name."""
    missing: list[str]


def plan(root: Path, program: Path, version: int | None, texts: Mapping[Path, str], proc: Path = Path("/proc")) -> Plan:
    """Return what to write; `texts` are further files. Raises ConfigError where a config that is there is wrong."""
    running = servers.running(proc)
    ids = [server.container for server in running if server.container is not None]
    names = {id_: name for id_ in ids if (name := name_of(CONTAINERS, id_))}
    found, missing = proposal.proposals(running, names)
    changes: list[Change] = []
    if not any((root / path).exists() for path in PACKAGED):
        text = unit_file().read_text(encoding="utf-8").replace(_PROGRAM_OF_UNIT, _word(program))
        changes += [Change(OWN_UNIT, text), Change(COMMAND, link=program)]
        changes += [Change(path, text) for path, text in texts.items()]
    if version is not None and version >= _STEPS_FROM:
        changes.append(Change(STEPS, _STEPS_TEXT))
    uncovered: list[Proposal] = []
    if (root / CONFIG).exists():
        known = load_config(root / CONFIG).sources
        uncovered = [one for one in found if not proposal.is_covered(one.source, known)]
    else:
        changes.append(Change(CONFIG, proposal.config_text(found, missing)))
    return Plan([change for change in changes if not _is_there(root, change)], found, uncovered, missing)


def _word(program: Path) -> str:
    """Return a path as one word of a unit file."""
    text = str(program).replace("%", "%%")
    return text if all(char.isalnum() or char in "/._-+%" for char in text) else f'"{text}"'


def unit_file() -> Path:
    """Return where the unit lies: in the installed package, else in the checkout."""
    inside = Path(__file__).parent / "shipped" / "systemd" / UNIT
    return inside if inside.is_file() else Path(__file__).parent.parent / "systemd" / UNIT


def program() -> Path:
    """Return the kvlogd of this environment. Raises ConfigError where it has none."""
    here = Path(sys.executable).parent / "kvlogd"
    if not here.is_file():
        raise ConfigError("there is no such program", where=str(here), mend="install kvlogd into a venv")
    return here


def unreachable(program: Path) -> ConfigError | None:
    """Return why the service's user could not run a program; None where they can."""
    for path in (program, Path(sys.executable).resolve()):
        closed = rights.closed_at(path, frozenset())
        if closed is not None:
            mend = "install it where all may read, e.g. into a venv of /usr/bin/python3 in /opt/kvlogd"
            return ConfigError("the service's user cannot reach what lies here", where=str(closed), mend=mend)
    return None


def _is_there(root: Path, change: Change) -> bool:
    path = root / change.path
    try:
        if change.link is not None:
            return path.readlink() == change.link
        return not path.is_symlink() and path.read_text(encoding="utf-8") == change.text
    except (OSError, UnicodeDecodeError):
        return False


def apply(root: Path, changes: Sequence[Change]) -> Iterator[str]:
    """Write the files; yield a line about each. Raises KvlogdError where one cannot be written."""
    for change in changes:
        path = root / change.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            beside.unlink(missing_ok=True)
            if change.link is not None:
                beside.symlink_to(change.link)
            else:
                beside.write_text(change.text, encoding="utf-8")
                beside.chmod(0o644)
            beside.replace(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        yield f"wrote {path}"


def remove(root: Path) -> Iterator[str]:
    """Take away what `apply` wrote; yield a line about each. Raises KvlogdError where one cannot be removed."""
    for path in (root / place for place in (OWN_UNIT, STEPS, COMMAND, PAGE, COMPLETION, CONFIG)):
        if not (path.exists() or path.is_symlink()):
            continue
        if path == root / CONFIG and not proposal.is_untouched(path.read_text(encoding="utf-8", errors="replace")):
            yield f"left {path}: somebody has changed it"
            continue
        if path == root / COMMAND and not path.is_symlink():
            yield f"left {path}: it is not ours"
            continue
        try:
            path.unlink()
        except OSError as error:
            raise _unwritable(path, error) from error
        yield f"removed {path}"
        for folder in (root / STEPS.parent, root / CONFIG.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    if (root / "var/lib/kvlogd").exists():
        yield f"left {root / 'var/lib/kvlogd'}: the history; remove it by hand"


def _unwritable(path: Path, error: OSError) -> KvlogdError:
    return ConfigError(f"cannot be changed ({error.strerror})", where=str(path), mend="run this as root")


# --- systemd


def systemd_version() -> int | None:
    """Return the version of this host's systemd; None where there is none."""
    words = _call("systemctl", "--version").split()
    number = words[1] if len(words) > 1 else ""
    return int(number) if number.isascii() and number.isdigit() else None


def start(changes: Sequence[Change]) -> Iterator[str]:
    """Let systemd run the service, and again where its files have changed; yield what was done."""
    if systemd.is_absent():
        yield "systemd does not run here: start `kvlogd run` by other means"
        return
    for words in (["daemon-reload"], ["enable", UNIT], ["restart" if changes else "start", UNIT]):
        _call("systemctl", *words, must=True)
        yield f"systemctl {' '.join(words)}"


def stop() -> Iterator[str]:
    """Let systemd end the service; yield what was done."""
    if systemd.is_absent():
        return
    _call("systemctl", "disable", "--now", UNIT)
    yield f"systemctl disable --now {UNIT}"


def reload() -> Iterator[str]:
    """Let systemd see that files are gone; yield what was done."""
    if not systemd.is_absent():
        _call("systemctl", "daemon-reload", must=True)
        yield "systemctl daemon-reload"


def _call(*words: str, must: bool = False) -> str:
    try:
        run = subprocess.run(words, capture_output=True, check=False, timeout=_CALL_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        run = None
    if run is None or run.returncode:
        if must:
            mend = "systemctl status kvlogd, and journalctl -u kvlogd, say why"
            raise KvlogdError("failed", where=" ".join(words), mend=mend)
        return ""
    return run.stdout.decode("utf-8", "replace")


def told_of_servers(root: Path, wanted: Plan) -> Iterator[str]:
    """Yield what is to be said of the servers that run: what a config which is there lacks, and what cannot be read."""
    config = root / CONFIG
    if wanted.uncovered:
        yield f"{config} is there and stays as it is. What runs here and is not in it:"
        yield proposal.sources_text(wanted.uncovered).rstrip("\n")
    for text in wanted.missing:
        yield f"no source for {text}"
    if config.exists() and not (wanted.uncovered or wanted.missing):
        yield f"{config} has every vLLM server that runs now" if wanted.found else "no vLLM server runs here now"


def install(root: Path, texts: Mapping[Path, str], say: Callable[[str], None], *, dry_run: bool) -> None:
    """Do all of it, or only say what would be done. Raises KvlogdError."""
    runs = program()
    trouble = unreachable(runs)
    if trouble is not None and root == Path("/") and not dry_run:
        raise trouble
    if trouble is not None:
        say(f"note: {trouble}")
    wanted = plan(root, runs, systemd_version(), texts)
    for change in wanted.changes:
        if dry_run:
            say(f"would write {root / change.path}" + (f" -> {change.link}" if change.link else ""))
        if change.path == CONFIG:
            say(f"the text of {root / CONFIG}:")
            say("".join(f"    {line}\n" for line in change.text.splitlines()).rstrip("\n"))
    for line in told_of_servers(root, wanted):
        say(line)
    if dry_run:
        say("nothing was changed")
        return
    for line in apply(root, wanted.changes):
        say(line)
    if root == Path("/"):
        for line in start(wanted.changes):
            say(line)
    if not wanted.changes:
        say("everything was in place")
    say("next: sudo kvlogd doctor")


def uninstall(root: Path, say: Callable[[str], None], *, dry_run: bool) -> None:
    """Undo it, or only say what would go. Raises KvlogdError."""
    if dry_run:
        for place in (OWN_UNIT, STEPS, COMMAND, PAGE, COMPLETION, CONFIG):
            if os.path.lexists(root / place):
                say(f"would remove {root / place}")
        say("nothing was changed")
        return
    if root == Path("/"):
        for line in stop():
            say(line)
    for line in remove(root):
        say(line)
    if root == Path("/"):
        for line in reload():
            say(line)
