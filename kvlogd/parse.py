"""Turns one unwrapped log line into a record, or into nothing.

Promises: a stats record counts only where the logger's own prefix begins the line, and the body is understood
to its end. What it returns holds numbers and allow-listed labels only. No line makes it raise.
Does not promise: to tell a forged record from a true one where raw exception text (uvicorn, 0.31 on) holds a
whole line with the right process id; nothing in the log could.
"""

import json
import re
from collections import Counter
from datetime import MAXYEAR, UTC, datetime
from typing import NamedTuple

from kvlogd import grammar
from kvlogd.eventline import event_of, first_of
from kvlogd.model import Event, EventKind, Stats
from kvlogd.stamp import Stamper
from kvlogd.statsline import Pairs, Shape, build, read_pairs, shape_of

MAX_LINE = 64 * 1024
"""Bytes of a line that are looked at for anything but a stats record; those are 600 at most."""
MAX_STATS_LINE = 1024
MAX_SHAPES = 32
MAX_PID = 1 << 31


class Head(NamedTuple):
    """The logger's prefix of one line."""

    ts_s: float
    pid: int | None
    is_stats_file: bool
    end: int
    """Where the message begins in the line."""


class Parser:
    """Parses the lines of one stream; keeps count of what it saw and did not understand."""

    def __init__(self, stamper: Stamper) -> None:
        self.stamper = stamper
        self.counts: Counter[str] = Counter()
        """`unparsed` (stats-like, not understood), `impossible` (refused values), `quoted` (inside other text),
        `unknown_keys`, `broken_stamp`."""
        self.shapes: list[Shape] = []
        self.newest_s: float | None = None
        """Time of the latest line of vLLM's logger that was read, chatter included: silence is told by it."""

    def line(
        self, text: bytes, *, envelope_s: float | None = None, envelope_pid: int | None = None
    ) -> Stats | Event | None:
        """Return what the line says, or None. `text` is one line without its newline, colour and envelope."""
        if not text or b"\r" in text:
            self._count_lookalike(text, "quoted")
            return None
        if text[0] == 0x7B:
            return self._json(text)
        known = self.known(text, 0)
        if known is not None:
            # without a process prefix of its own, a record is its envelope's process's
            record = self.fill(known, envelope_s)
            return record if record is None or record.pid is not None else record._replace(pid=envelope_pid)
        try:
            head = self._head(text, envelope_s, envelope_pid)
        except (ValueError, OverflowError):
            self.counts["broken_stamp"] += 1
            return None
        if head is None:
            return self._headless(text, envelope_s, envelope_pid)
        return self._message(text, head)

    def _message(self, text: bytes, head: Head) -> Stats | Event | None:
        body = text[head.end : head.end + MAX_LINE]
        if grammar.STATS_NEEDLE in body[:80]:
            if head.is_stats_file and len(text) <= MAX_STATS_LINE:
                return self._stats(text, body, head)
            self.counts["quoted"] += 1
            return None
        self._count_lookalike(body, "quoted")
        if body.startswith(grammar.CHATTER):
            return None
        return event_of(body, head.ts_s, head.pid)

    def _count_lookalike(self, text: bytes, name: str) -> None:
        if grammar.STATS_NEEDLE in text and b" KV cache us" in text:
            self.counts[name] += 1

    def _head(self, text: bytes, envelope_s: float | None, envelope_pid: int | None) -> Head | None:
        """Return the prefix of a line that has one. Raises ValueError, OverflowError where its stamp is broken."""
        match = grammar.HEAD.match(text)
        if match is None:
            return self._custom_head(text, envelope_s, envelope_pid)
        ts_s = self.newest_s = self.stamper.at(match["stamp"], envelope_s)
        pid = int(match["pid"]) if match["pid"] else envelope_pid
        stats_file = match["file"].rsplit(b"/", 1)[-1] in grammar.STATS_FILES
        return Head(ts_s, pid, stats_file, match.end())

    def _custom_head(self, text: bytes, envelope_s: float | None, envelope_pid: int | None) -> Head | None:
        if not text[:1].isdigit():
            return None
        match = grammar.CUSTOM_HEAD.match(text[:400])
        if match is None:
            return None
        ts_s = self._full_stamp(match["stamp"].decode(), (match["zone"] or b"").decode(), envelope_s)
        return Head(ts_s, envelope_pid, match["name"].decode() in grammar.STATS_LOGGERS, match.end())

    def _full_stamp(self, stamp: str, zone: str, envelope_s: float | None) -> float:
        """Return the time of a stamp that has its year: by its own zone, else as the stamper says.

        Raises ValueError, and OverflowError at the ends of the calendar.
        """
        when = datetime.fromisoformat(stamp.replace(",", ".") + zone)
        if when.year == MAXYEAR:
            raise ValueError("the calendar ends soon after")
        if when.tzinfo is not None:
            return when.astimezone(UTC).timestamp()
        resolved = self.stamper.resolve(
            when.month, when.day, when.hour, when.minute, when.second, year=when.year, envelope_s=envelope_s
        )
        return resolved + when.microsecond / 1e6

    def _headless(self, text: bytes, envelope_s: float | None, envelope_pid: int | None) -> Event | None:
        """Return the event of a line that is not vLLM's logger's: uvicorn, a raw traceback."""
        match = grammar.UVICORN.match(text)
        if match is not None:
            pid = int(match["pid"]) if match["pid"] else envelope_pid
            return first_of(grammar.UVICORN_LINES, text[match.end() : match.end() + 400], envelope_s, pid)
        found = grammar.OOM_RAW.match(text)
        if found is not None:
            return Event(envelope_s, EventKind.OOM, envelope_pid)
        if grammar.KILLED_RAW.match(text) is not None:
            return Event(envelope_s, EventKind.KILLED)
        # a record that stands near the start behind an unknown prefix is a dialect to learn; further in, a quotation
        self._count_lookalike(text, "unparsed" if 0 <= text.find(grammar.STATS_NEEDLE) < 160 else "quoted")
        return None

    def _json(self, text: bytes) -> Stats | Event | None:
        if b'"vllm' not in text and b'"uvicorn' not in text:
            self._count_lookalike(text, "unparsed")
            return None
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            self._count_lookalike(text, "unparsed")
            return None
        return self._json_record(record) if isinstance(record, dict) else None

    def _json_record(self, record: dict[str, object]) -> Stats | Event | None:
        name = _text(record, "name", "logger", "logger_name")
        message = _text(record, "message", "msg", "event").encode("utf-8", "replace")
        stamp = _text(record, "asctime", "timestamp", "time", "ts")
        process = record.get("process", record.get("pid"))
        pid = process if type(process) is int and 0 < process < MAX_PID else None
        if name.startswith("uvicorn"):
            return first_of(grammar.UVICORN_LINES, message, None, pid)
        if not name.startswith("vllm."):
            return None
        try:
            ts_s = self._full_stamp(stamp, "", None)
        except (ValueError, OverflowError):
            self.counts["broken_stamp"] += 1
            return None
        head = Head(ts_s, pid, name in grammar.STATS_LOGGERS, 0)
        if b"\n" in message or b"\r" in message:
            self._count_lookalike(message, "quoted")
            return None
        if head.is_stats_file and grammar.STATS_NEEDLE in message[:80]:
            pairs = self._pairs(message)
            return None if pairs is None else build(pairs, head.ts_s, head.pid)
        return self._message(message, head)

    # --- stats records

    def _stats(self, text: bytes, body: bytes, head: Head) -> Stats | None:
        pairs = self._pairs(body)
        if pairs is None:
            return None
        self._learn(text, head, pairs)
        return build(pairs, head.ts_s, head.pid)

    def _pairs(self, body: bytes) -> Pairs | None:
        """Return the numbers of a stats body, or None (and count why) where it is not one to its end."""
        pairs = read_pairs(body)
        if isinstance(pairs, str):
            self.counts[pairs] += 1
            return None
        self.counts["unknown_keys"] += pairs.unknown
        return pairs

    def _learn(self, text: bytes, head: Head, pairs: Pairs) -> None:
        """Keep a pattern of this line's words, so that its likes cost one match; a few, newest first."""
        if pairs.unknown:
            return
        shape = shape_of(text, head.end, pairs)
        match = shape.pattern.match(text) if shape is not None else None
        if shape is not None and match is not None:
            self.shapes = [shape, *self.shapes[: MAX_SHAPES - 1]]

    def known(self, data: bytes, start: int) -> "Match | None":
        """Return the match of a line of a known shape that begins at `start`, newest shape first."""
        for shape in self.shapes:
            match = shape.pattern.match(data, start)
            if match is not None:
                return Match(shape, match)
        return None

    def fill(self, found: "Match", envelope_s: float | None = None) -> Stats | None:
        """Return the record of a known shape; None (and a count) where its stamp is broken."""
        groups = found.match.groups()
        try:
            ts_s = self.newest_s = self.stamper.at(groups[0], envelope_s)
            return found.shape.make(ts_s, groups)
        except ValueError:
            self.counts["broken_stamp"] += 1
            return None


class Match(NamedTuple):
    """A line that has a known shape."""

    shape: Shape
    match: re.Match[bytes]


def _text(record: dict[str, object], *keys: str) -> str:
    for key in keys:
        value = record.get(key)
        if isinstance(value, str):
            return value
    return ""
