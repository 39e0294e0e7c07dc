"""Finds the lines that count in a chunk of a plain log, without looking at each line.

Stats records are found by their words and read by patterns learned from the first of each shape. Lines between
two records of one process that are no more than an interval and a half apart are chatter: a start, a stop, a crash
or a stall always leaves a gap. Inside a gap, and in a file that has no record yet, every line is parsed.
Promises: every stats record and, in gaps, every event, in the order of the file; one pass, flat memory.
Does not promise: events that stand between two records of a busy engine, other than expired leases, V0's
preemption warnings and the line right behind a record.
"""

from kvlogd.envelope import Unwrapper
from kvlogd.grammar import STATS_NEEDLE
from kvlogd.model import Event, EventKind, Stats
from kvlogd.parse import Parser

DENSE = 1.5
"""Records at most this many intervals apart have nothing but chatter between them."""

LONG_NEEDLE = b"Avg prompt throughput: "
"""What Python's vLLM writes: the longer the needle, the faster it is found. The Rust front end needs the short one."""

_EXPIRED = b"Releasing expired KV blocks for request"
_PREEMPTED = b" is preempted by PreemptionMode."

Found = Stats | Event


class Scanner:
    """Reads the chunks of one source in order; each holds whole lines. `plain` allows the fast way."""

    def __init__(self, parser: Parser, unwrapper: Unwrapper) -> None:
        self.plain = False
        """Set it for each file by what `envelope.sniff` says of its head."""
        self._parser = parser
        self._unwrapper = unwrapper
        self._tail = b""
        """Bytes behind the last record seen: whether they are chatter is known when the next one comes."""
        self._last: Stats | None = None
        self._gap_s = 0.0
        self._interval_s: float | None = None
        self._leases = False
        self._preempts = False
        self._needle = LONG_NEEDLE
        self._out: list[Found] = []

    def feed(self, chunk: bytes) -> list[Found]:
        """Return what the lines of a chunk say."""
        self._out = []
        if self.plain:
            self._scan(chunk)
        elif chunk:
            self._read_all(chunk)
        return self._out

    def finish(self) -> list[Found]:
        """Return what the lines behind the last record say: at the end of a file, or when a live one rests."""
        self._out = []
        tail, self._tail = self._tail, b""
        if tail:
            self._read_all(tail)
        return self._out

    def last(self, line: bytes) -> list[Stats]:
        """Return what a last line without its newline says: it may still grow, and counts where it is a whole record.

        Call it behind `finish`.
        """
        return [one for one in (*self.feed(line), *self.finish()) if isinstance(one, Stats)]

    def losses(self) -> dict[str, int]:
        """Return how many lines were lost so far, by reason."""
        lost = {reason.value: count for reason, count in self._unwrapper.counts.items()}
        return lost | {name: self._parser.counts[name] for name in ("impossible", "broken_stamp")}

    def _scan(self, chunk: bytes) -> None:
        find, parser = chunk.find, self._parser
        at = 0
        needle = self._needle
        hit = find(needle)
        while hit >= 0:
            start = max(at, chunk.rfind(b"\n", at, hit) + 1)
            known = parser.known(chunk, start)
            if known is None:
                end = find(b"\n", hit) + 1 or len(chunk)
                found = self._line(chunk[start:end])
            else:
                end = known.match.end()
                found = parser.fill(known)
            if isinstance(found, Stats):
                self._between(chunk, at, start, found)
                self._out.append(found)
                at = end if known is None else self._companion(chunk, end, chunk[start : known.match.start(1)])
                hit = find(needle, at)
            else:
                hit = find(needle, end)
        if self._tail:  # no record in a whole chunk: what was held back counts as a gap
            self._read_all(self._tail)
        self._tail = chunk[at:]

    def _between(self, chunk: bytes, at: int, start: int, stats: Stats) -> None:
        """Read the lines before a record, unless it follows the one before so closely that they are chatter."""
        last, self._last = self._last, stats
        dense = False
        if last is not None and last.pid == stats.pid:
            gap_s = stats.ts_s - last.ts_s
            if gap_s > 0 and gap_s == self._gap_s and (self._interval_s is None or gap_s < self._interval_s):
                self._interval_s = gap_s
            if gap_s:
                self._gap_s = gap_s
            self._preempts = stats.swapped is not None
            # a record that stands still may have its reason in the lines before it: a pause, a crash
            moves = stats.prompt_tps > 0 or stats.generation_tps > 0
            dense = moves and self._interval_s is not None and 0 <= gap_s <= DENSE * self._interval_s
        tail, self._tail = self._tail, b""
        if dense and not self._has_event(tail, 0, len(tail)) and not self._has_event(chunk, at, start):
            return
        if tail:
            self._read_all(tail)
        if start > at:
            self._read_all(chunk[at:start])

    def _has_event(self, data: bytes, start: int, end: int) -> bool:
        """Return whether a stretch holds one of the events that are looked for on a busy engine too."""
        return (self._leases and data.find(_EXPIRED, start, end) >= 0) or (
            self._preempts and data.find(_PREEMPTED, start, end) >= 0
        )

    def _companion(self, chunk: bytes, at: int, prefix: bytes) -> int:
        """Read the line right behind a record where the same process wrote it: speculative decoding, transfers."""
        if not chunk.startswith(prefix, at) or not chunk[at + len(prefix) : at + len(prefix) + 1].isdigit():
            return at
        end = chunk.find(b"\n", at) + 1 or len(chunk)
        if chunk.find(STATS_NEEDLE, at, min(end, at + 200)) >= 0:
            return at
        self._take(self._line(chunk[at:end]))
        return end

    def _read_all(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            counts = self._parser.counts.copy() if self.plain and self._needle in line else None
            self._take(self._line(line))
            if counts is not None:  # `_scan` has counted it
                self._parser.counts = counts

    def _line(self, line: bytes) -> Found | None:
        inner = self._unwrapper.feed(line.removesuffix(b"\n"))
        if inner is None:
            return None
        found = self._parser.line(inner.text, envelope_s=inner.ts_s, envelope_pid=inner.pid)
        if isinstance(found, Event) and found.ts_s is None and inner.stamp is not None:
            return self._dated(found, inner.stamp)
        return found

    def _dated(self, event: Event, stamp: bytes) -> Event:
        """Give an event without a stamp of its own that of its envelope (journald short, syslog)."""
        try:
            return event._replace(ts_s=self._parser.stamper.at(stamp))
        except ValueError:
            return event

    def _take(self, found: Found | None) -> None:
        if found is None:
            return
        if isinstance(found, Stats) and found.engines == 0:
            self._needle = STATS_NEEDLE
        elif isinstance(found, Event) and found.kind in (EventKind.KV_TRANSFER, EventKind.KV_EXPIRED, EventKind.ARGS):
            self._leases = True
        self._out.append(found)
