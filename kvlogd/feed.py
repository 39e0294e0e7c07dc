"""One source of the config at work: its tailer, a stream for each log that the tailer finds, and its /metrics."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvlogd.piece import Health, Piece, Tailer
from kvlogd.scrape import Scraper
from kvlogd.stream import Reaped, Stream

PASS_S = 3.0
"""How often silence is looked for."""
FAR_BEHIND_BYTES = 1 << 20
SILENT_S = 86400.0
"""A log that has been silent for so long can be let go: nothing more can come of its silence."""

NEAR_BYTES = 1 << 20
"""A log of which no more is unread is read to the present: what /metrics tells now belongs to it as it stands."""
SHARED = "the log is that of several servers: make each a source of its own, with its own /metrics"

Revive = Callable[[str], tuple[Stream, Iterator[None]]]
"""Returns the stream of a log as the store remembers it, and the steps that bring it to where it stood."""


class Feed:
    """Reads one source. `logs` are those that the store knows already: they stand as they stood before any is read.

    A source that has one log, called like itself, can be told of by `scraper` before its log says anything.
    """

    def __init__(
        self,
        name: str,
        tailer: Tailer,
        revive: Revive,
        logs: Iterable[str],
        scraper: Scraper | None = None,
        *,
        has_one_log: bool = False,
    ) -> None:
        self.name = name
        self.scraper = scraper
        self._has_one_log = has_one_log
        self._is_shared = False
        """The log is that of several servers: whose /metrics it is, nobody knows."""
        self.streams: dict[str, Stream] = {}
        self._tailer = tailer
        self._revive = revive
        self._pass_at_s = float("-inf")
        self._behind: set[str] = set()
        """Logs of which not all was read that was there at the start."""
        self._reviving = [self._begin(log) for log in logs]
        self._kept: list[Piece] = []
        """What was read and waits for its log to be brought to where it stood."""

    @property
    def is_reviving(self) -> bool:
        """Return whether a log has not been brought to where it stood."""
        return bool(self._reviving)

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> int:
        """Read what is new; return how many bytes: far less than the budget where nothing more is there.

        As long as a log is not brought to where it stood, a little of its past is remembered instead.
        """
        if self._reviving:
            if next(self._reviving[0], self) is self:
                self._reviving.pop(0)
            return budget_bytes
        if self._kept:
            self._take(self._kept, now_s, wall_s)
            return budget_bytes
        pieces = self._tailer.poll(budget_bytes, now_s, wall_s)
        self._take(pieces, now_s, wall_s)
        if self._kept:
            return budget_bytes
        spoke = {piece.log for piece in pieces}
        for log in self._behind - spoke:
            self.streams[log].caught_up(now_s)
        self._behind &= spoke
        if self.scraper is not None and self.scraper.is_waiting():
            self._hand_on(self.scraper)
        if now_s >= self._pass_at_s:
            self._pass_at_s = now_s + PASS_S
            self._let_time_pass(now_s)
        return sum(len(piece.data) + piece.unpacked_bytes or 1 for piece in pieces)

    def _take(self, pieces: list[Piece], now_s: float, wall_s: float) -> None:
        """Give each piece to its log, as far as all that was known of those logs has been remembered."""
        self._kept = []
        for number, piece in enumerate(pieces):
            if piece.log not in self.streams:
                steps = self._begin(piece.log)
                if next(steps, self) is not self:  # it was let go: its past is remembered a little each turn
                    self._reviving.append(steps)
                    self._kept = pieces[number:]
                    return
            self.streams[piece.log].take(piece, now_s, wall_s)

    def _hand_on(self, scraper: Scraper) -> None:
        """Give what /metrics told to the log that tells of the same server: the latest that is read to its end."""
        behind = {health.log for health in self._tailer.health() if (health.behind_bytes or 0) > NEAR_BYTES}
        if not self.streams and self._has_one_log:
            for _ in self._begin(self.name):
                pass  # it has no past
        read = [stream for log, stream in self.streams.items() if log not in behind and log not in self._behind]
        if read:
            latest = max(read, key=lambda stream: stream.pipeline.now_s or 0.0)
            placed = [latest.scraped(scrape) for scrape in scraper.taken()]
            self._is_shared = not all(placed)

    def _let_time_pass(self, now_s: float) -> None:
        due = [stream for stream in self.streams.values() if stream.is_due(now_s)]
        if due:
            # while there is something to read, a log is not silent
            found = self._tailer.health()
            behind = {health.log for health in found if health.behind_bytes}
            blind = self._tailer.blind({stream.log for stream in due})
            for stream in due:
                if stream.log in blind or not (self.scraper or self._tailer.has_seen(stream.log)):
                    stream.hold(now_s)
                elif stream.log not in behind:
                    stream.rest(now_s)

    def _begin(self, log: str) -> Iterator[None]:
        self.streams[log], steps = self._revive(log)
        self._behind.add(log)
        return steps

    def silent(self, now_s: float) -> list[Stream]:
        """Return the logs that have told nothing for a day, about which no alert stands and of which all is stored.

        Call it with what `harvest` returned about to be stored. A log that cannot be seen is not silent.
        """
        if self._reviving or self.scraper is not None:
            return []
        blind = self.blind()
        for log, stream in self.streams.items():
            stream.heard_s = now_s if stream.heard_s is None or log in blind else stream.heard_s
        silent = [one for one in self.streams.values() if now_s - (one.heard_s or 0.0) >= SILENT_S]
        if not silent:
            return []
        behind = {health.log for health in self._tailer.health() if health.behind_bytes}
        return [one for one in silent if one.is_settled and one.log not in behind and not one.pipeline.is_alerting()]

    def let_go(self, log: str) -> None:
        """Forget what a log has told: it is brought to where it stood when it speaks again."""
        del self.streams[log]
        self._behind.discard(log)

    def harvest(self) -> list[tuple[Stream, Reaped]]:
        """Return what came of each log since the last time."""
        return [(stream, stream.harvest()) for stream in self.streams.values() if not self._reviving]

    def pending(self) -> int:
        """Return how many records wait to be harvested."""
        return sum(stream.pending() for stream in self.streams.values())

    def has_news(self) -> bool:
        """Tell whether an alert waits to be harvested."""
        return not self._reviving and any(stream.pipeline.has_news() for stream in self.streams.values())

    def behind(self) -> set[str]:
        """Return the logs of which much is still to be read."""
        return self._behind | {one.log for one in self.health() if (one.behind_bytes or 0) > FAR_BEHIND_BYTES}

    def blind(self) -> set[str]:
        """Return the logs that cannot be seen now: that they say nothing is not their silence."""
        return self._tailer.blind(self.streams)

    def hint(self) -> None:
        """Say that files may have come, gone or changed their names."""
        self._tailer.hint()

    def folders(self) -> set[Path]:
        """Return the folders in which its files come and go."""
        return self._tailer.folders()

    def health(self) -> list[Health]:
        """Return how its logs fare."""
        return self._tailer.health()

    def eye(self) -> Health | None:
        """Return how asking for /metrics fares; None where it is not asked for."""
        if self.scraper is None:
            return None
        found = self.scraper.health()
        return found._replace(state="unreadable", mend=SHARED) if self._is_shared else found

    def close(self) -> None:
        """Let go of files, children and threads."""
        self._tailer.close()
        if self.scraper is not None:
            self.scraper.close()
