"""Takes off a vLLM line what others have wrapped around it, one line at a time.

Promises: what comes out begins where vLLM's own line began: a piece of a line that was cut in two is joined to its
begin or dropped with it, never taken for a line. No line makes it raise, no text gets into the counts.
Does not promise: to tell a wrapped line from a raw one that a user made to look like it; to know which zone a
syslog stamp is in.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import MAXYEAR, datetime
from enum import StrEnum
from typing import NamedTuple

MAX_JOIN = 1 << 20
"""Bytes of a line that may be put together from pieces; a longer one is dropped."""
MAX_STREAMS = 16
MAX_NESTED = 4
MAX_FIELD = 1 << 30
"""Bytes of one journal field that are believed and passed over; journald's own limit is 768 MiB."""
JOURNAL_CUT = 48 * 1024
"""Where journald cuts a line (LineMax=); what it cut off begins the next entry."""
JOURNAL_BREAKS = ("line-max", "nul")  # in `_LINE_BREAK` where the line goes on in the next entry


class Envelope(StrEnum):
    """What is around the lines of a log."""

    PLAIN = "plain"
    COLOUR = "colour"
    CRLF = "crlf"
    NUL_HOLE = "nul-hole"
    RAY = "ray"
    DOCKER_JSON = "docker-json-file"
    TIMESTAMPS = "timestamps"
    CRI = "cri"
    COMPOSE = "docker-compose"
    SYSLOG = "syslog"
    SYSLOG_5424 = "syslog-5424"
    JOURNAL_JSON = "journal-json"
    JOURNAL_EXPORT = "journal-export"


class Lost(StrEnum):
    """Why something did not come out; the keys of `Unwrapper.counts`."""

    OVERLONG = "overlong_join"
    UNDECODABLE = "undecodable_record"
    NULL_MESSAGE = "null_message"
    CUT = "cut_line"
    NUL_HOLE = "nul_hole"


class Unwrapped(NamedTuple):
    """A vLLM line without its wrapping, and what the wrapping said."""

    text: bytes
    ts_s: float | None = None
    """The envelope's own time, where it is a full one."""
    stamp: bytes | None = None
    """`MM-DD HH:MM:SS` where the envelope's time has no year or no zone; `Stamper.at` takes it."""
    pid: int | None = None


class Layer(NamedTuple):
    """One envelope taken off."""

    kind: Envelope
    text: bytes
    ts_s: float | None = None
    stamp: bytes | None = None
    pid: int | None = None
    stream: str = ""
    is_part: bool = False
    """True where the rest of the line comes in a later record of the same stream."""
    is_cut: bool = False
    """True where journald ended the line, so that the next record of this pid is no begin of a line."""
    lost: Lost | None = None


_COLOUR = re.compile(rb"(?:\x1b|#033)\[[0-?]*+[ -/]*+[@-~]")
_ZONED = rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d))"
_ISO = re.compile(_ZONED + rb"(?: |$)")
_CRI = re.compile(rb"(stdout|stderr) ([FP])(?::[^ ]{1,60})?(?: |$)")
_HOST = rb"(?:[^\s:()\[\]]{1,255} )?"
_IDENT_PID = re.compile(_HOST + rb"(?:[^\s\[\]()]{1,128}\[(\d{1,10})\]|kernel): ")
_IDENT = re.compile(rb"(?:[^\s:()\[\]]{1,255} )?[^\s\[\]()]{1,128}?(?:\[(\d{1,10})\])?: ")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_SHORT = re.compile(
    rb"(" + rb"|".join(_MONTHS) + rb") {1,2}(\d{1,2}) ([012]\d:[0-5]\d:[0-5]\d)(?:[.,]\d{1,9})?(?: \d{4})? "
)
_FULL = re.compile(
    rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\d{4}-(\d\d-\d\d) ([012]\d:[0-5]\d:[0-5]\d)(?:\.\d{1,9})?) "
    rb"([A-Z+-][A-Z0-9]{1,5}) "
)
_SECONDS = re.compile(rb"(?:(\d{9,11}\.\d{6})|\[ {0,8}\d{1,9}\.\d{6}\]) ")
_RFC5424 = re.compile(
    rb"<\d{1,3}>1 (?:" + _ZONED + rb"|-) [^ ]{1,255} [^ ]{1,48} (?:(\d{1,10})|[^ ]{1,128}) [^ ]{1,32} "
    rb"(?:-|(?:\[(?:[^\]\\]|\\.)*+\])++)(?: (?:\xef\xbb\xbf)?|$)"
)
_COMPOSE = re.compile(rb"[A-Za-z0-9][\w.-]{0,80} {1,40}\|(?: |$)")
_OWN = rb"RustFrontend|A(?:PI|pi)Server(?:_\d+)?|EngineCore(?:_(?:DP)?\d+)?|(?:Vllm)?Worker[\w -]{0,60}|DPSupervisor"
_RAY = re.compile(
    rb"\((?!(?:" + _OWN + rb"|MainProcess) pid=)[\w:.-]{1,80} pid=\d{1,10}(?:, ip=[\w.:]{1,45})?\) {1,2}"
    rb"(?=\([A-Za-z_][\w -]{0,60} pid=\d)"
)
_BLOB = re.compile(rb"\[[\d.]{1,8}[BKMG]? blob data\]")
_LEVELS = (b"INFO", b"WARNING", b"ERROR", b"DEBUG", b"CRITICAL")
_JOURNAL_FIELD = {"MESSAGE", "__REALTIME_TIMESTAMP", "_PID", "SYSLOG_PID", "_STREAM_ID", "_LINE_BREAK"}
_CONTAINER_FIELD = {"CONTAINER_ID_FULL", "CONTAINER_PARTIAL_MESSAGE"}
_RAY_GOES_ON = (b"(", b" ")
_new = tuple.__new__  # half the cost of the class itself, which plain lines would pay for nothing
_FIELD = re.compile(rb"([A-Z0-9_]{1,64})(=|$)")


def _docker_or_journal(text: bytes) -> Layer | None:
    """Take off the JSON of docker or the journal; None for any other JSON, vLLM's own above all."""
    is_docker = text.startswith(b'{"log"') or (b'"log"' in text and b'"stream"' in text)
    if not (is_docker or b'"MESSAGE"' in text or b'"__REALTIME_TIMESTAMP"' in text):
        return None
    kind = Envelope.DOCKER_JSON if is_docker else Envelope.JOURNAL_JSON
    try:
        record = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Layer(kind, b"", lost=Lost.UNDECODABLE)
    if not isinstance(record, dict):
        return None
    return _docker(record) if isinstance(record.get("log"), str) else _journal(record)


def _docker(record: dict[str, object]) -> Layer:
    log = str(record["log"]).encode("utf-8", "replace")
    time, stream = record.get("time"), record.get("stream")
    is_part, log = not log.endswith(b"\n"), log.removesuffix(b"\n")
    ts_s = _iso_s(time) if isinstance(time, str) else None
    lost = Lost.UNDECODABLE if b"\n" in log else None
    return Layer(Envelope.DOCKER_JSON, log, ts_s, stream=f"{stream}"[:80], is_part=is_part, lost=lost)


def _journal(record: dict[str, object], kind: Envelope = Envelope.JOURNAL_JSON) -> Layer | None:
    """Take off a journal record; None where it is none."""
    if "MESSAGE" not in record:
        return None if "__REALTIME_TIMESTAMP" not in record else Layer(kind, b"")
    time = _whole(record.get("__REALTIME_TIMESTAMP"))
    ts_s = None if time is None else time / 1e6
    pid = _whole(record.get("_PID")) or _whole(record.get("SYSLOG_PID"))
    text = _message(record["MESSAGE"])
    was_cut = record.get("_LINE_BREAK") in JOURNAL_BREAKS
    stream = f"{record.get('_STREAM_ID') or record.get('CONTAINER_ID_FULL') or pid}"[:80]
    if text is None or b"\n" in text:
        lost = Lost.NULL_MESSAGE if record["MESSAGE"] is None else Lost.UNDECODABLE
        return Layer(kind, b"", ts_s, pid=pid, stream=stream, is_cut=was_cut, lost=lost)
    is_part = record.get("CONTAINER_PARTIAL_MESSAGE") == "true"
    is_cut = was_cut or len(text) >= JOURNAL_CUT
    return Layer(kind, text, ts_s, pid=pid, stream=stream, is_part=is_part, is_cut=is_cut and not is_part)


def _message(value: object) -> bytes | None:
    """Return the bytes of a journal field: text, or an array of numbers where it is not clean UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, bytes):
        return value
    try:
        return bytes(value) if isinstance(value, list) else None
    except (TypeError, ValueError):
        return None


def _whole(value: object) -> int | None:
    """Return the whole number of a journal field, which is text in all its formats."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18 else None


def _iso_s(text: str) -> float | None:
    try:
        when = datetime.fromisoformat(text)
        # a little after MAXYEAR nothing can be reckoned with
        return None if when.tzinfo is None or when.year == MAXYEAR else when.timestamp()
    except (ValueError, OverflowError):
        return None


def _digits(text: bytes) -> Layer | None:
    """Take off `docker logs -t`, CRI, or the journal's ISO or Unix times."""
    match = _ISO.match(text)
    if match is None:
        return _clock(text) or _compose(text)
    ts_s = _iso_s(match[1].decode())
    if ts_s is None:
        return None
    end = match.end()
    cri = _CRI.match(text, end)
    if cri is not None:
        is_part = cri[2] == b"P"
        return Layer(Envelope.CRI, text[cri.end() :], ts_s, stream=cri[1].decode(), is_part=is_part)
    ident = _IDENT_PID.match(text, end)
    if ident is not None:
        return _syslog(text[ident.end() :], ident[1], ts_s=ts_s)
    return Layer(Envelope.TIMESTAMPS, text[end:], ts_s)


def _clock(text: bytes) -> Layer | None:
    """Take off the journal's times in seconds: since 1970, or in brackets since the boot."""
    match = _SECONDS.match(text)
    if match is None or (ident := _IDENT_PID.match(text, match.end())) is None:
        return None
    return _syslog(text[ident.end() :], ident[1], ts_s=float(match[1]) if match[1] else None)


def _syslog(text: bytes, pid: bytes | None, *, ts_s: float | None = None, stamp: bytes | None = None) -> Layer:
    number = None if pid is None else int(pid)
    is_cut = len(text) >= JOURNAL_CUT or text == b"[48.0K blob data]"
    lost = Lost.NULL_MESSAGE if _BLOB.fullmatch(text) else None
    text = _COLOUR.sub(b"", text)  # rsyslog writes ESC as #033
    return Layer(Envelope.SYSLOG, text, ts_s, stamp, number, f"pid {number}", is_cut=is_cut, lost=lost)


def _letters(text: bytes) -> Layer | None:
    """Take off the journal's short and full forms, or docker compose's name."""
    if text.startswith(_LEVELS):
        return None
    short = _SHORT.match(text)
    if short is not None:
        if (ident := _IDENT.match(text, short.end())) is None:
            return None
        stamp = b"%02d-%02d %s" % (_MONTHS.index(short[1]) + 1, int(short[2]), short[3])
        return _syslog(text[ident.end() :], ident[1], stamp=stamp)
    full = _FULL.match(text)
    if full is not None:
        return _full(text, full)
    return _compose(text)


def _full(text: bytes, match: re.Match[bytes]) -> Layer | None:
    if (ident := _IDENT.match(text, match.end())) is None:
        return None
    if match[4] in {b"UTC", b"GMT"}:
        return _syslog(text[ident.end() :], ident[1], ts_s=_iso_s(match[1].decode() + "+00:00"))
    # other letters are not one zone: CST is Chicago's and Shanghai's
    return _syslog(text[ident.end() :], ident[1], stamp=match[2] + b" " + match[3])


def _compose(text: bytes) -> Layer | None:
    match = _COMPOSE.match(text) if b"|" in text[:124] else None
    return None if match is None else Layer(Envelope.COMPOSE, text[match.end() :])


def _priority(text: bytes) -> Layer | None:
    """Take off syslog as it goes over the wire."""
    modern = _RFC5424.match(text)
    if modern is None:
        end = text.find(b">", 0, 5)
        return _letters(text[end + 1 :]) if text[1:end].isdigit() else None
    ts_s = None if modern[1] is None else _iso_s(modern[1].decode())
    return _syslog(text[modern.end() :], modern[2], ts_s=ts_s)._replace(kind=Envelope.SYSLOG_5424)


def _ray(text: bytes) -> Layer | None:
    """Take off Ray's name of an actor where vLLM's own follows. vLLM's before another's is a quotation: it stays."""
    after = text.find(b")", 0, 170) + 2
    match = _RAY.match(text) if text[after : after + 1] in _RAY_GOES_ON else None
    return None if match is None else Layer(Envelope.RAY, text[match.end() :])


def _bare(text: bytes) -> None:
    """Take off nothing: no envelope begins like this."""


_BY_FIRST_BYTE: list[Callable[[bytes], Layer | None]] = [_bare] * 256
_BY_FIRST_BYTE[ord("{")] = _docker_or_journal
_BY_FIRST_BYTE[ord("(")] = _ray
_BY_FIRST_BYTE[ord("<")] = _priority
_BY_FIRST_BYTE[ord("[")] = _clock
_BY_FIRST_BYTE[ord("0") : ord("9") + 1] = [_digits] * 10
_BY_FIRST_BYTE[ord("A") : ord("Z") + 1] = _BY_FIRST_BYTE[ord("a") : ord("z") + 1] = [_letters] * 26


def _peel(text: bytes) -> Layer | None:
    return _BY_FIRST_BYTE[text[0]](text) if text else None


def sniff(head: bytes) -> Envelope:
    """Return what is around the lines in a file's first bytes; PLAIN only where no line there has anything."""
    lines = head.split(b"\n")
    if len(lines) > 1:
        lines.pop()
    if lines[0].startswith(b"__CURSOR="):
        return Envelope.JOURNAL_EXPORT
    for line in lines:
        if layer := _peel(_COLOUR.sub(b"", line.lstrip(b"\0"))):
            return layer.kind
    if b"\x1b" in head or b"\0" in head:
        return Envelope.COLOUR if b"\x1b" in head else Envelope.NUL_HOLE
    return Envelope.CRLF if all(line.endswith(b"\r") for line in lines) else Envelope.PLAIN


# --- the lines


class Unwrapper:
    """Unwraps the lines of one stream in order; keep one over all rotated files of a source."""

    def __init__(self) -> None:
        self.counts: Counter[Lost] = Counter()
        self._parts: dict[str, tuple[Layer, bytearray | None]] = {}
        """The begins of lines whose rest has not come yet; no bytes where one has grown too long."""
        self._cut: set[str] = set()
        self._export: _Export | None = None
        self._is_first = True

    def feed(self, line: bytes) -> Unwrapped | None:
        """Return the inner line of a line given without its newline; None while more of it must come, or for none."""
        if self._is_first or self._export is not None:
            self._is_first = False
            if self._export is None and line.startswith(b"__CURSOR="):
                self._export = _Export()
            if self._export is not None and self._export.takes(line):
                return self._exported(self._export.take(line))
        if line and (line[0] == 0 or line[-1] == 0x0D or b"\x1b" in line):
            line = self._tidy(line)
        if not line:
            return None
        layer = _BY_FIRST_BYTE[line[0]](line)
        return _new(Unwrapped, (line, None, None, None)) if layer is None else self._open(layer)

    def finish(self) -> Unwrapped | None:
        """Return the last record of a journal export that ends without an empty line; call it at the log's end."""
        return None if self._export is None else self._exported(self._export.take(b""))

    def _tidy(self, line: bytes) -> bytes:
        """Return a line without colour, one trailing CR and the NULs that copytruncate leaves before it."""
        if line[:1] == b"\0":
            line = line.lstrip(b"\0")
            self.counts[Lost.NUL_HOLE] += 1
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        return line[:-1] if line[-1:] == b"\r" else line

    def _open(self, layer: Layer) -> Unwrapped | None:
        """Take off this envelope and those inside it; the first time and pid that are found count."""
        ts_s, stamp, pid = layer.ts_s, layer.stamp, layer.pid
        for _ in range(MAX_NESTED):
            whole = self._whole(layer)
            if whole is None:
                return None
            if whole.is_part:
                ts_s, stamp, pid = whole.ts_s, whole.stamp, whole.pid
            text = self._tidy(whole.text)
            inner = _peel(text)
            if inner is None:
                return Unwrapped(text, ts_s, None if ts_s is not None else stamp, pid) if text else None
            layer = inner
            ts_s = layer.ts_s if ts_s is None else ts_s
            stamp, pid = stamp or layer.stamp, pid or layer.pid
        return None

    def _whole(self, layer: Layer) -> Layer | None:
        """Return the layer with its line complete, or None where its line is not complete or lost.

        A line put together from parts comes back as its first part, `is_part` still set.
        """
        if layer.lost is not None:
            self.counts[layer.lost] += 1
        if layer.is_cut or (self._cut and layer.stream in self._cut):
            self._note_cut(layer)
            return None
        if layer.lost is not None:
            return None
        if layer.is_part or (self._parts and layer.stream in self._parts):
            return self._join(layer)
        return layer

    def _note_cut(self, layer: Layer) -> None:
        """Drop what journald cut off a long line: the next record of the same stream, and so on while it is cut."""
        if layer.stream not in self._cut:
            self.counts[Lost.CUT] += 1
        self._cut.discard(layer.stream)
        if layer.is_cut or layer.is_part:
            self._cut.add(layer.stream)

    def _join(self, layer: Layer) -> Layer | None:
        room = bytearray() if len(self._parts) < MAX_STREAMS else None
        first, data = self._parts.pop(layer.stream, (layer._replace(text=b""), room))
        if data is not None and len(data) + len(layer.text) > MAX_JOIN:
            data = None
        if data is not None:
            data += layer.text
        if layer.is_part:
            self._parts[layer.stream] = first, data
            return None
        if data is None:
            self.counts[Lost.OVERLONG] += 1
            return None
        return first._replace(text=bytes(data))

    def _exported(self, record: dict[str, object] | None) -> Unwrapped | None:
        layer = _journal(record, Envelope.JOURNAL_EXPORT) if record else None
        return None if layer is None else self._open(layer)


class _Export:
    """Reads the journal's export format: `NAME=value` lines, or NAME, a length of 8 bytes and bytes; then a blank."""

    def __init__(self) -> None:
        self.record: dict[str, object] = {}
        self.name = ""
        self.raw: bytearray | None = None
        self.skip = 0
        """Bytes that are still to come of a field that is too long to keep."""

    def takes(self, line: bytes) -> bool:
        """Return whether the line can be one of an export; anything else is left to the other envelopes."""
        return self.raw is not None or self.skip > 0 or not line or _FIELD.match(line) is not None

    def take(self, line: bytes) -> dict[str, object] | None:
        """Add a line; return the fields that are kept where it ends a record."""
        if self.skip > 0:
            self.skip -= len(line) + 1
            return None
        if self.raw is not None:
            self._take_raw(self.raw, line)
            return None
        if not line or line.startswith(b"__CURSOR="):
            record, self.record = self.record, {}
            return record
        name, equals, value = line.partition(b"=")
        self.name = name.decode("ascii", "replace")
        if not equals:
            self.raw = bytearray()
        elif self.name in _JOURNAL_FIELD | _CONTAINER_FIELD:
            self.record[self.name] = value if self.name == "MESSAGE" else value.decode("utf-8", "replace")
        return None

    def _take_raw(self, raw: bytearray, line: bytes) -> None:
        raw += line + b"\n"
        if len(raw) < 8:
            return
        length = int.from_bytes(raw[:8], "little")
        missing = length + 9 - len(raw)
        if length > MAX_JOIN:
            self.raw, self.skip = None, missing if length <= MAX_FIELD else 0
        elif missing <= 0:
            self.raw = None
            if self.name == "MESSAGE":
                self.record[self.name] = bytes(raw[8 : 8 + length])
