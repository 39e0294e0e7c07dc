"""One live log between its bytes and the rows: holds lines back until they tell something, and lets time pass.

The clock of a log is that of its records. While nothing comes it runs on by the monotonic clock, from the last line
and the time that the file says it was written, `REST_S` behind: lines may arrive late, and silence is a signal too.
Promises: what `harvest` returns fits together: the rows are those of the lines up to the positions, no more, no less.
"""

from collections.abc import Sequence
from datetime import tzinfo
from typing import NamedTuple

from kvlogd.envelope import Envelope, Unwrapper, sniff
from kvlogd.grammar import STATS_NEEDLE
from kvlogd.harvest import Harvest
from kvlogd.model import Gap, Scrape
from kvlogd.parse import Parser
from kvlogd.piece import Piece
from kvlogd.pipeline import Pipeline
from kvlogd.rows import Position
from kvlogd.scan import Scanner
from kvlogd.stamp import Stamper

REST_S = 15.0
"""Lines without a record wait this long for one: between two records of a busy engine there is only chatter."""
HELD_BYTES = 256 * 1024
SNIFFED_BYTES = 64 * 1024
"""The envelope of a file is known after so much of it."""


class Reaped(NamedTuple):
    """What came of a log since the last time, to be committed together."""

    harvest: Harvest
    positions: Sequence[Position]
    gaps: Sequence[Gap]


class Stream:
    """One log that is followed."""

    def __init__(self, log: str, zone: tzinfo, pipeline: Pipeline) -> None:
        self.log = log
        self.pipeline = pipeline
        self._stamper = Stamper(year=None, zone=zone, mtime_s=None)
        self._parser = Parser(self._stamper)
        self._unwrapper = Unwrapper()
        self._scanner = Scanner(self._parser, self._unwrapper)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_positions: dict[str, Position] = {}
        self._held_since_s: float | None = None
        self._positions: dict[str, Position] = {}
        self._gaps: list[Gap] = []
        self._counted: dict[str, int] = {}
        """Losses that were told already."""
        self._arrived_s = 0.0
        """Monotonic time at which the last line was written."""
        self._written_s: float | None = None
        """The same of the last line that told the time."""
        self.heard_s: float | None = None
        """Monotonic time at which something was last heard of it; None before anything was."""
        self._is_live = False
        """All that was there at the start has been read."""
        self._clock_s: float | None = None
        """The time that it told."""
        self._sniffed: tuple[str, int] = ("", 0)
        """The file whose envelope was looked at, and how much of it."""

    def go_on(self) -> None:
        """Take up the stamps where the pipeline stands, once it has been brought there."""
        if self.pipeline.now_s is not None:
            self._stamper.go_on_from(self.pipeline.now_s)
        self.pipeline.window.unparsed = self.pipeline.window.impossible = 0  # the parser counts from here
        self.pipeline.window.count_anew()
        self.pipeline.leaps.refused = 0  # those were told

    def take(self, piece: Piece, now_s: float, wall_s: float) -> None:
        """Take in the next lines of the log."""
        self._gaps += [gap if gap.ts_s is not None else gap._replace(ts_s=self.pipeline.now_s) for gap in piece.gaps]
        if piece.position is not None:
            self._held_positions[piece.position.file_id] = piece.position
        if not piece.data:
            if not self._held:
                self._read_held()
            return
        self.heard_s = now_s
        mtime_s = wall_s if piece.mtime_s is None else piece.mtime_s
        self._stamper.mtime_s = mtime_s
        # what comes once all was read is fresh, whatever the clock of a file server or a jump of ours may say
        self._arrived_s = now_s if self._is_live else now_s - max(0.0, wall_s - mtime_s)
        self._sniff(piece)
        if piece.is_last:
            self._read_held()
            self.pipeline.take(self._scanner.finish())
            self.pipeline.take(self._scanner.last(piece.data))
            return
        self._held.append(piece.data)
        self._held_bytes += len(piece.data)
        if self._held_since_s is None:
            self._held_since_s = now_s
        if self._held_bytes >= HELD_BYTES or STATS_NEEDLE in piece.data:
            self._read_held()

    def scraped(self, scrape: Scrape) -> bool:
        """Take in what /metrics told of one of its engines; return whether it is known which."""
        if scrape.since_s is None or scrape.restarted:
            # what the log has said of a start so far comes first: it tells the life
            self._read_held()
            self.pipeline.take(self._scanner.finish())
        return self.pipeline.scraped(scrape)

    def caught_up(self, now_s: float) -> None:
        """Say that all that was there at the start has been read."""
        self._is_live = True
        if self._written_s is None and self.pipeline.now_s is not None:
            # after a restart, silence is counted from now on: when the last line was written is not known
            self._written_s, self._clock_s = now_s, self.pipeline.now_s

    def is_due(self, now_s: float) -> bool:
        """Return whether so much time has passed that `rest` has something to do."""
        if self._held_since_s is not None:
            return now_s - self._held_since_s >= REST_S
        return self._reached_s(now_s) >= self.pipeline.next_tick_s

    def rest(self, now_s: float) -> None:
        """Let time pass, where nothing is left to read: the rules see the silence."""
        if self._held_since_s is not None:
            self._read_held()
            self.pipeline.take(self._scanner.finish())
        reached_s = self._reached_s(now_s)
        if reached_s >= self.pipeline.next_tick_s:
            self.pipeline.advance(reached_s)

    def hold(self, now_s: float) -> None:
        """Let no time pass: the log cannot be read, and that is not its silence. What was read of it counts."""
        if self._held_since_s is not None and now_s - self._held_since_s >= REST_S:
            self._read_held()
            self.pipeline.take(self._scanner.finish())
        self._written_s = now_s

    @property
    def is_settled(self) -> bool:
        """Return whether all that was taken in has been harvested, so that the store knows it as well."""
        waiting = self._held or self._held_positions or self._positions or self._gaps
        return not waiting and not self.pipeline.pending()

    def _reached_s(self, now_s: float) -> float:
        if self._written_s is None or self._clock_s is None:
            return float("-inf")
        return self._clock_s + now_s - self._written_s - REST_S

    def harvest(self) -> Reaped:
        """Return what came of the lines that were read, and forget it."""
        self.pipeline.take(self._scanner.finish())
        self.pipeline.settle(self._stamper.latest_s())
        self._count_losses()
        reaped = Reaped(self.pipeline.harvest(), list(self._positions.values()), self._gaps)
        if reaped.harvest.runs:
            self.pipeline.window.count_anew()
        self._positions, self._gaps = {}, []
        return reaped

    def pending(self) -> int:
        """Return how many records wait to be harvested."""
        return self.pipeline.pending()

    def unread(self) -> tuple[int, int]:
        """Return how many stats-like lines were not understood, and how many held impossible values."""
        counts = self._parser.counts
        return counts["unparsed"], counts["impossible"]

    def _read_held(self) -> None:
        data = b"".join(self._held)
        self._positions |= self._held_positions
        self._held, self._held_bytes, self._held_positions, self._held_since_s = [], 0, {}, None
        if data:
            before = self._told()
            self.pipeline.take(self._scanner.feed(data))
            self.pipeline.window.unparsed, self.pipeline.window.impossible = self.unread()
            self._move_clock(is_told=self._told() != before)

    def _told(self) -> tuple[float | None, float | None, int]:
        """Return what changes with each line that tells the time."""
        return self._parser.newest_s, self.pipeline.now_s, self.pipeline.pending()

    def _move_clock(self, *, is_told: bool) -> None:
        """Let lines without records tell that time goes on."""
        if is_told or self._clock_s is None:
            # lines without a stamp, as those of probes and scrapes, do not say that no time has passed
            heard_s, now_s = self._parser.newest_s, self.pipeline.now_s
            is_sure = heard_s is not None and heard_s <= self._stamper.latest_s() and not self.pipeline.leaps.held
            times = [time_s for time_s in (heard_s if is_sure else None, now_s) if time_s is not None]
            self._clock_s, self._written_s = max(times, default=None), self._arrived_s
        if self._clock_s is not None and self._clock_s - REST_S >= self.pipeline.next_tick_s:
            self.pipeline.advance(self._clock_s - REST_S)

    def _sniff(self, piece: Piece) -> None:
        file_id = piece.position.file_id if piece.position is not None else ""
        known, length = self._sniffed
        if known != file_id:
            length = 0
        if length < SNIFFED_BYTES:
            plain = sniff(piece.data[:SNIFFED_BYTES]) is Envelope.PLAIN
            self._scanner.plain = plain and (length == 0 or self._scanner.plain)
            self._sniffed = file_id, length + len(piece.data)

    def _count_losses(self) -> None:
        for name, n in {**self._scanner.losses(), **self.pipeline.leaps.losses()}.items():
            new = n - self._counted.get(name, 0)
            if new:
                self._counted[name] = n
                self._gaps.append(Gap(self.log, self.pipeline.now_s, name, new))
