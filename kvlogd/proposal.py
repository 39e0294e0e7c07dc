"""Makes sources of the config out of the vLLM servers that run, and the text of a first config. Pure.

Promises names that the config takes, no two alike, and that what it writes is read back as what was meant.
"""

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from kvlogd.config import SourceConfig
from kvlogd.servers import Server

_SEAL = "# Written by kvlogd install"
_SEALED = re.compile(rf"{_SEAL} \(([0-9a-f]{{16}})\)[^\n]*\n")


class Proposal(NamedTuple):
    """A source to be, and what is to be said about it."""

    source: SourceConfig
    note: str = ""


def proposals(servers: Iterable[Server], containers: Mapping[str, str]) -> tuple[list[Proposal], list[str]]:
    """Return a source for each server, and why there is none for the others; `containers` are names by id."""
    found: list[Proposal] = []
    missing: list[str] = []
    for server in servers:
        place = _place(server, containers)
        if place is None:
            missing.append(f"the server on port {server.port} (process {server.pid}): {_why(server)}")
            continue
        taken = {one.source.name for one in found}
        metrics = None if server.container else server.metrics
        note = f"process {server.pid}, port {server.port}"
        fields = {**place, "name": _name(place, server, taken), "metrics": metrics}
        found.append(Proposal(SourceConfig.model_validate(fields), note))
    return found, missing


def _place(server: Server, containers: Mapping[str, str]) -> dict[str, object] | None:
    if server.logs:
        return {"files": list(server.logs)}
    if server.container is not None:
        name = containers.get(server.container)
        return None if name is None else {"docker": name}
    if server.unit is not None and not server.has_terminal:
        return {"journal": server.unit}
    return None


def _why(server: Server) -> str:
    if server.container is not None:
        return "its container is not docker's, or not to be seen: give its log as files"
    if server.has_terminal:
        return "it writes to a terminal: start it as a systemd unit, or with >> FILE 2>&1"
    return "where its output goes cannot be seen: run this as root, or give its log as files"


def _name(place: Mapping[str, object], server: Server, taken: Iterable[str]) -> str:
    if "files" in place:
        wanted = PurePath(server.logs[0]).name.split(".")[0]
    else:
        wanted = str(place.get("docker") or place["journal"]).removesuffix(".service")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", wanted).strip(".-")[:48] or "vllm"
    return name if name not in taken else f"{name}-{server.port}-{server.pid}"


def is_covered(source: SourceConfig, by: Iterable[SourceConfig]) -> bool:
    """Tell whether a config watches already what a proposal names."""
    for other in by:
        if source.journal is not None and source.journal in (other.journal, f"{other.journal}.service"):
            return True
        if source.docker is not None and source.docker == other.docker:
            return True
        if source.files and all(any(fnmatch.fnmatch(f, pattern) for pattern in other.files) for f in source.files):
            return True
    return False


# --- as text


def sources_text(found: Sequence[Proposal]) -> str:
    """Return the section `sources` of these."""
    return "\n".join(["sources:", *(line for one in found for line in _source_lines(one))]) + "\n"


def _source_lines(one: Proposal) -> Iterator[str]:
    source = one.source
    yield f"  - name: {source.name}" + (f"  # {one.note}" if one.note else "")
    if source.files:
        yield f"    files: {json.dumps(source.files)}"
    if source.journal is not None:
        yield f"    journal: {json.dumps(source.journal)}"
    if source.docker is not None:
        yield f"    docker: {json.dumps(source.docker)}"
    if source.metrics is not None:
        yield f"    metrics: {json.dumps(source.metrics)}"


def config_text(found: Sequence[Proposal], missing: Sequence[str]) -> str:
    """Return a first config; its first line tells whether somebody has changed it since."""
    lines = [f"# No source yet for {text}" for text in missing]
    if not found:
        lines.append("# No vLLM server was running. Without this section kvlogd watches /var/log/vllm/*.log.")
        lines.append("# sources:\n#   - name: chat\n#     files: [/var/log/vllm/chat.log]")
    body = "\n".join(lines) + ("\n" if lines else "") + (sources_text(found) if found else "")
    body += _MORE
    return f"{_SEAL} ({_digest(body)}); it is yours now: change what you like.\n{body}"


_MORE = """
# Where alerts go. A URL is a secret and never stands here: only root may read the file that holds it, and the unit
# hands it over (`systemctl edit kvlogd`: [Service], LoadCredential=oncall:/etc/kvlogd/oncall.url).
# channels:
#   - name: oncall
#     credential: oncall
"""


def is_untouched(text: str) -> bool:
    """Tell whether a config is as `config_text` wrote it."""
    sealed = _SEALED.match(text)
    return sealed is not None and sealed[1] == _digest(text[sealed.end() :])


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=8).hexdigest()
