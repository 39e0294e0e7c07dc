"""Lines whose stamps leap away from where a log is, held until others tell whether time went there. Pure.

A clock that is wrong for a moment, or a damaged stamp, must cost nothing but itself: taken at its word it would end the
memory of a run and the alerts that stand on it. Whether a leap is real, as behind a silent week, the next line tells:
it is nearer to the leap, or to what was before.
Promises: lines come out in their order; what is refused has a stamp that the next one contradicts, and is counted.
Does not promise: to see through a clock that is wrong for longer than `MOMENT_S`, or a log's first stamp. Two clocks in
one log are both believed, from the second leap of the same length within `AGAIN_S` on.
"""

from collections.abc import Sequence

from kvlogd.model import Event, Stats

JITTER_S = 60.0
"""Processes of one log step back by seconds; a stamp further behind than this says that the time before was wrong."""
AHEAD_S = 120.0
"""How far a stamp may be ahead of the log's clock, which runs up to 48 s behind while nothing comes."""
MOMENT_S = 5.0
"""Several engines write their records within a moment: only a later one confirms them."""
AGAIN_S = 3600.0
MOST_HELD = 10_000

Line = Stats | Event


class Leaps:
    """The lines of one log that are in doubt."""

    def __init__(self) -> None:
        self.held: list[Line] = []
        """Those in doubt, and what stood behind them without a stamp; the first has one."""
        self.refused = 0
        """How many lines were given up so far."""
        self.last_s: float | None = None
        """The stamp of the last line that was taken in: the clock may have run on from there."""
        self._refused: tuple[float, float] | None = None
        """How far the last that was refused leapt, and from when."""
        self._has_two_clocks = False

    def losses(self) -> dict[str, int]:
        """Return how many lines were lost so far, by reason."""
        return {"stamp out of line": self.refused}

    def weigh(self, line: Line, now_s: float | None) -> Sequence[Line]:
        """Take in the next line while the log's clock is at `now_s`; return those that are not in doubt, or no more."""
        at_s = line.ts_s
        if now_s is None:
            return (line,)
        if not self.held:
            if at_s is None or now_s - JITTER_S <= at_s <= now_s + AHEAD_S:
                return (line,)  # as nearly all are
            return self._hold(line, now_s) if self._is_leap(line, now_s) else (line,)
        leapt_s = self.held[0].ts_s or 0.0
        if at_s is None:
            self.held.append(line)
            return self.settle() if len(self.held) >= MOST_HELD else ()
        from_before_s = max(self._since_s(now_s) - at_s, at_s - now_s, 0.0)
        if abs(at_s - leapt_s) >= from_before_s:
            free = self._refuse((leapt_s - now_s, now_s))
        elif at_s < leapt_s + MOMENT_S and len(self.held) < MOST_HELD:
            self.held.append(line)
            return ()
        else:
            free = self.settle()
            now_s = self.last_s = max(one.ts_s for one in free if one.ts_s is not None)
        return [*free, *(self._hold(line, now_s) if self._is_leap(line, now_s) else (line,))]

    def _is_leap(self, line: Line, now_s: float) -> bool:
        at_s = line.ts_s
        if at_s is None or self._has_two_clocks:
            return False
        # an event moves the clock only forward
        return at_s > now_s + AHEAD_S or (at_s < self._since_s(now_s) - JITTER_S and isinstance(line, Stats))

    def _since_s(self, now_s: float) -> float:
        return now_s if self.last_s is None else min(self.last_s, now_s)

    def settle(self, latest_s: float | None = None) -> Sequence[Line]:
        """Return what is held, for nothing more is there to tell; but for what is later than it can be."""
        stamps = [one.ts_s for one in self.held if one.ts_s is not None]
        if latest_s is not None and max(stamps, default=latest_s) > latest_s:
            return self._refuse(None)
        held, self.held = self.held, []
        return held

    def _hold(self, line: Line, now_s: float) -> Sequence[Line]:
        leapt_s, from_s = self._refused or (0.0, now_s)
        if abs((line.ts_s or 0.0) - now_s - leapt_s) < JITTER_S and now_s - from_s < AGAIN_S:
            self._has_two_clocks = True
            return (line,)
        self.held = [line]
        return ()

    def _refuse(self, leap: tuple[float, float] | None) -> Sequence[Line]:
        """Give up what leapt so far; return what stood behind it without a stamp."""
        kept = [one for one in self.held if one.ts_s is None]
        self.refused += len(self.held) - len(kept)
        self._refused, self.held = leap, []
        return kept
