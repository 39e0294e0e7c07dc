"""Wraps a vLLM log as docker, Kubernetes, systemd and terminals do."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

Lines = Iterable[tuple[datetime, str]]
PART = 16 * 1024


def _rfc3339(at: datetime, nanoseconds: int = 108632509) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def _pieces(text: str, size: int = PART) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def plain(lines: Lines) -> bytes:
    """Return the log as vLLM wrote it."""
    return _joined(line for _, line in lines)


def crlf(lines: Lines) -> bytes:
    """Return the log with the line ends of a terminal."""
    return _joined(f"{line}\r" for _, line in lines)


def colour(lines: Lines) -> bytes:
    """Return the log with the process prefix coloured, as 0.10.1 to 0.15 write it."""
    return _joined(_coloured(line) for _, line in lines)


def _coloured(line: str) -> str:
    if not line.startswith("("):
        return line
    prefix, rest = line.split(") ", 1)
    return f"\x1b[0;36m{prefix})\x1b[0;0m {rest}"


def docker_json(lines: Lines, part: int = PART) -> bytes:
    """Return docker's json-file: long lines in parts, another stream's lines between them."""
    return _joined(_docker_records(lines, part))


def _docker_records(lines: Lines, part: int) -> Iterator[str]:
    for at, line in lines:
        # a long line keeps its length: tests put things right behind the border of its parts
        pieces = _pieces(_coloured(line) if len(line) < part else line, part)
        for number, piece in enumerate(pieces):
            end = "\n" if number == len(pieces) - 1 else ""
            yield json.dumps({"log": piece + end, "stream": "stdout", "time": _rfc3339(at)})
            if not end:
                yield json.dumps({"log": "nanobind: leaked 4 instances!\n", "stream": "stderr", "time": _rfc3339(at)})


def docker_logs_t(lines: Lines) -> bytes:
    """Return what `docker logs -t` prints."""
    return _joined(f"{_rfc3339(at)} {line}" for at, line in lines)


def compose(lines: Lines) -> bytes:
    """Return what `docker compose logs` prints."""
    return _joined(f"vllm-1  | {line}" for _, line in lines)


def cri(lines: Lines) -> bytes:
    """Return what the kubelet keeps: P for parts, F for the last."""
    return _joined(_cri_records(lines))


def _cri_records(lines: Lines) -> Iterator[str]:
    for at, line in lines:
        pieces = _pieces(line)
        for number, piece in enumerate(pieces):
            yield f"{_rfc3339(at)} stdout {'F' if number == len(pieces) - 1 else 'P'} {piece}"


def journal_short(lines: Lines) -> bytes:
    """Return what `journalctl` prints, and rsyslog writes."""
    return _joined(f"{at:%b} {at.day:2d} {at:%H:%M:%S} gpu01 vllm[811]: {line}" for at, line in lines)


def journal_iso(lines: Lines) -> bytes:
    """Return what `journalctl -o short-iso` prints, in a zone of its own."""
    return _joined(f"{at + timedelta(hours=3):%Y-%m-%dT%H:%M:%S}+0300 gpu01 vllm[811]: {line}" for at, line in lines)


def journal_json(lines: Lines) -> bytes:
    """Return what `journalctl -o json` prints: lines with ESC as numbers, one too large as null."""
    return _joined(json.dumps(record) for record in _journal_records(lines))


def _journal_records(lines: Lines) -> Iterator[dict[str, object]]:
    for at, line in lines:
        shown = _coloured(line)
        message: object = list(shown.encode()) if "\x1b" in shown else None if len(shown) > PART else shown
        microseconds = int(at.timestamp() * 1e6)
        yield {"__REALTIME_TIMESTAMP": str(microseconds), "_PID": "811", "MESSAGE": message, "_COMM": "vllm"}


def journal_export(lines: Lines) -> bytes:
    """Return what `journalctl -o export` prints: a field a line, an empty line between entries."""
    return b"\n".join(_export_entry(at, line.encode()) for at, line in lines) + b"\n"


def _export_entry(at: datetime, line: bytes) -> bytes:
    head = b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=%d\n_PID=811\n" % int(at.timestamp() * 1e6)
    if line.isascii() and line.decode().isprintable():
        return head + b"MESSAGE=" + line + b"\n"
    return head + b"MESSAGE\n" + len(line).to_bytes(8, "little") + line + b"\n"


def ray(lines: Lines) -> bytes:
    """Return what a Ray driver shows of an actor."""
    return _joined(f"(RayWorkerWrapper pid=77, ip=10.0.0.4) {line}" if line[0] == "(" else line for _, line in lines)


ALL: dict[str, Callable[[Lines], bytes]] = {
    "crlf": crlf,
    "colour": colour,
    "docker-json": docker_json,
    "docker-logs-t": docker_logs_t,
    "compose": compose,
    "cri": cri,
    "journal-short": journal_short,
    "journal-iso": journal_iso,
    "journal-json": journal_json,
    "journal-export": journal_export,
    "ray": ray,
}
