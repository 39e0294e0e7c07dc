"""Follows one systemd unit in the journal, through a child `journalctl` that is started again when it dies.

Promises: every entry of the unit once, from its first on or from right behind the cursor that the store holds; what is
handed on carries the cursor that goes with it; where the entry at the cursor is gone, one gap tells from when to when;
what journald itself suppressed is a gap with the count; memory stays flat, and while nobody reads, the pipe makes
journalctl wait; the child ends with this process, however that ends; one that hangs is left for another within minutes.
Does not promise: to notice entries that were vacuumed while it lagged behind them, to follow units by pattern, or
to tell a unit that has not logged yet from one whose entries this user may not see.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kvlogd.envelope import JOURNAL_BREAKS, JOURNAL_CUT
from kvlogd.journalctl import FAREWELL_S, Child
from kvlogd.model import Gap
from kvlogd.piece import SEEING, Health, Piece
from kvlogd.rows import Position

FILE_ID = "journal"
FIELDS = (
    "MESSAGE", "_PID", "SYSLOG_PID", "_STREAM_ID", "_LINE_BREAK", "CONTAINER_ID_FULL", "CONTAINER_PARTIAL_MESSAGE",
    "MESSAGE_ID", "N_DROPPED",
)  # fmt: skip
SUPPRESSED = b"a596d6fe7bfa4994828e72309e95d61e"
"""MESSAGE_ID of journald's "Suppressed N messages from UNIT"."""
MAX_ENTRY = 8 << 20
"""Bytes of one entry as JSON; a byte that is not text takes up to four. A longer one is dropped and counted."""
LONGEST_WAIT_S = 60.0
SILENT_S, LONGEST_SILENT_S = 300.0, 900.0
"""After so long without an entry the journal is gone through again, ever more seldom where nothing is found: a
journalctl that hangs looks like a unit that is silent."""
SEARCH_S = 3600.0
"""How long it may take to come to the first entry, or to the end, of what is there already."""
LATE_S = 30.0
"""An entry that was this old when it was found by going through again was held back."""
TOLD_S = 3600.0
"""How long it is shown that journalctl hung."""

TOO_LONG, SILENCED, GONE = "journal entry too long", "suppressed by journald", "journal cursor gone"
ACCESS = "let this user read the journal: SupplementaryGroups=systemd-journal in the unit, or the group adm"
NOT_YET = "no entry of this unit yet: see that the unit is named rightly, and that this user is in systemd-journal"
HUNG = "journalctl hung within the last hour and was started anew: if it goes on, see journalctl --verify"
STUCK = "journalctl hangs and cannot be ended: see that the disk of the journal answers"
MISSING = "journalctl cannot be started: install systemd, or give the log as files"

# No text of an entry can look like these: a quote inside a JSON string has a backslash before it.
_CURSOR = re.compile(rb'"__CURSOR"\s*:\s*"([^"\\]{1,1000})"')
_TIME = re.compile(rb'"__REALTIME_TIMESTAMP"\s*:\s*"(\d{1,17})"')
_PART = re.compile(r"(?:^|;)([a-z])=([0-9a-f]{1,32})(?=;)")
"""One part of a cursor, and whole: the last one, `x`, is a check sum that nothing here needs."""


class Journal:
    """The journal of one unit; a `Tailer`. `directory` is for journals of other machines and of containers."""

    def __init__(
        self,
        source: str,
        unit: str,
        last: Position | None = None,
        *,
        directory: Path | None = None,
        program: str = "journalctl",
    ) -> None:
        self._source = source
        # --follow means --boot, and --boot=all does not undo that before 258; in a folder of journals --merge does
        folder = [] if directory is None else [f"--directory={directory}", "--merge"]
        self._command = [
            program, "--quiet", "--no-pager", "--all", "--output=json", f"--output-fields={','.join(FIELDS)}",
            f"--unit={unit}", *folder,
        ]  # fmt: skip
        self._place = _Place(source, last)
        self._is_resumed = last is not None
        self._cut: bytes | None = None
        self._child: Child | None = None
        self._lines = _Lines()
        self._follows = False
        self._fails = 0
        self._retry_s: float | None = None
        self._trouble: tuple[str, str] | None = None
        self._left: Child | None = None
        """One that was silent and may not have ended, since `_left_s`."""
        self._now_s = self._heard_s = self._left_s = 0.0
        """`_heard_s`: when the child last said something."""
        self._patience_s = SILENT_S
        self._offset_s = 0.0
        """The host's clock less the monotonic one."""
        self._again: tuple[float, float] | None = None
        """Host's time when the journal was gone through again for the last time, and the offset then."""
        self._hung_s = float("-inf")

    def poll(self, budget_bytes: int, now_s: float, wall_s: float) -> list[Piece]:
        """Return what is new, about `budget_bytes` at most; starts and reaps the child."""
        self._now_s, self._offset_s = now_s, wall_s - now_s
        if self._child is None:
            self._child, self._heard_s = self._start(now_s), now_s
        child = self._child
        if child is None:
            return []
        data = child.read(budget_bytes)
        pieces = self._pieces(self._lines.add(data), wall_s)
        if data:
            self._heard_s = now_s
        elif now_s - self._heard_s >= (self._patience_s if self._follows else SEARCH_S):
            self._go_through_again(child, wall_s)
            return pieces
        status = child.ended(now_s)
        if status is not None:
            self._child = None
            child.close()
            self._ended(status, child.said, now_s)
        return pieces

    def hint(self) -> None:
        """Do nothing: journalctl itself follows."""

    def folders(self) -> set[Path]:
        """Return none: there are no files to follow."""
        return set()

    def health(self) -> list[Health]:
        """Return how the journal fares."""
        if self._trouble is not None:
            state, mend = self._trouble
        elif self._follows and self._place.is_new:
            state, mend = "waiting", NOT_YET
        else:
            state, mend = "reading", HUNG if self._now_s - self._hung_s < TOLD_S else ""
        return [Health(self._source, state, None, mend)]

    def blind(self, logs: Iterable[str]) -> set[str]:
        """Return all of these logs while the journal cannot be read."""
        return set() if self.health()[0].state in SEEING else set(logs)

    def has_seen(self, log: str) -> bool:
        """Return True: the journal is always there."""
        return True

    def close(self) -> None:
        """End the child, within a second."""
        for child in (self._child, self._left):
            if child is not None:
                child.close()
        self._child = self._left = None

    # --- the child

    def _start(self, now_s: float) -> Child | None:
        """Start journalctl: first to the end of what is there, then on from there.

        Only without --follow are entries of earlier boots shown. The entry at the cursor is asked for too: it tells
        whether the cursor still holds, and --after-cursor skips an entry where the one at the cursor is gone.
        """
        if self._retry_s is not None and now_s < self._retry_s:
            return None
        if self._left is not None and self._left.is_there():
            if now_s - self._left_s > FAREWELL_S:
                self._trouble = "unreadable", STUCK
            return None
        self._left = None
        # who has followed it in its silence need not find the last entry again: it may have been vacuumed since
        self._place.seek(again=self._follows or self._again is not None)
        follow = ["--follow", "--no-tail"] if self._follows else []
        try:
            return Child([*self._command, *self._place.start(), *follow])
        except (OSError, ValueError):
            self._later(now_s, "unreadable", MISSING)
            return None

    def _go_through_again(self, child: Child, wall_s: float) -> None:
        """Leave a child that has been silent for long, and see whether there is more than it has shown."""
        child.leave()
        self._child, self._left, self._left_s = None, child, self._now_s
        self._lines = _Lines()
        self._again, self._follows = (wall_s, self._offset_s), False
        self._patience_s = min(2 * self._patience_s, LONGEST_SILENT_S)

    def _ended(self, status: int, said: bytes, now_s: float) -> None:
        self._lines = _Lines()  # what was cut off lies behind the cursor: it comes again
        if status == 0 and not self._follows:
            self._follows, self._trouble = True, None
            return
        self._follows = False
        if b"seek to cursor" in said and self._place.cursor is not None:
            self._place.give_up()
        elif b"permission" in said.lower():
            self._later(now_s, "unreadable", ACCESS)
        else:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            self._later(now_s, "restarting", f"journalctl ended {how}: if it goes on, see journalctl --verify")

    def _later(self, now_s: float, state: str, mend: str) -> None:
        self._retry_s = now_s + min(LONGEST_WAIT_S, 2.0**self._fails)
        self._fails = min(self._fails + 1, 10)
        self._trouble = state, mend

    # --- the entries

    def _pieces(self, lines: Sequence[bytes], wall_s: float) -> list[Piece]:
        kept: list[bytes] = []
        gaps: list[Gap] = []
        before = self._place.cursor
        for line in lines:
            self._take(line, kept, gaps)
        if self._place.cursor == before and not gaps:
            return []
        cursor = self._place.cursor
        position = None if cursor is None else Position(self._source, FILE_ID, 0, cursor=cursor, seen_s=wall_s)
        return [Piece(self._source, b"".join(b"%s\n" % line for line in kept), position, gaps)]

    def _take(self, line: bytes, kept: list[bytes], gaps: list[Gap]) -> None:
        """Add a line to what is handed on, or what was lost to the gaps."""
        entry = _Entry.of(line)
        missed = [] if entry is None else self._place.take(entry)
        if missed is None:
            self._cut = _cut_before(line) if self._is_resumed else None
            return
        gaps += missed
        if (lost := self._lost(line, entry)) is not None:
            gaps.append(lost)
        if entry is None:
            return
        if lost is None:
            kept += [line] if self._cut is None else [self._cut, line]
        self._fails, self._trouble, self._patience_s = 0, None, SILENT_S
        self._cut, self._is_resumed = None, False
        if self._again is not None:
            again_s, offset_s = self._again
            back_s = max(0.0, offset_s - self._offset_s)  # the clock was set back since: what is new looks old
            if entry.us is not None and entry.us / 1e6 < again_s - back_s - LATE_S:
                self._hung_s = self._now_s
            self._again = None

    def _lost(self, line: bytes, entry: "_Entry | None") -> Gap | None:
        ts_s = None if entry is None or entry.us is None else entry.us / 1e6
        if b"\0" in line:
            return Gap(self._source, ts_s, TOO_LONG, 1)
        dropped = _suppressed(line) if SUPPRESSED in line else None
        return None if dropped is None else Gap(self._source, ts_s, SILENCED, dropped)


def _suppressed(line: bytes) -> int | None:
    """Return how many lines journald says that it dropped; None for any other entry."""
    fields = _fields(line)
    if fields.get("MESSAGE_ID") != SUPPRESSED.decode():
        return None
    number = fields.get("N_DROPPED")
    return int(number) if isinstance(number, str) and number.isdecimal() and len(number) < 10 else 0


def _cut_before(line: bytes) -> bytes | None:
    """Return an entry that says that a line of this stream was cut off; None where the entry ends a line.

    Who starts again behind half a line must not take its rest for a line.
    """
    fields = _fields(line)
    message = fields.get("MESSAGE")
    long = isinstance(message, str | list) and len(message) >= JOURNAL_CUT
    is_cut = long or fields.get("_LINE_BREAK") in JOURNAL_BREAKS
    if not is_cut and fields.get("CONTAINER_PARTIAL_MESSAGE") != "true":
        return None
    kept = {name: fields[name] for name in ("_PID", "SYSLOG_PID", "_STREAM_ID", "CONTAINER_ID_FULL") if name in fields}
    return json.dumps({**kept, "MESSAGE": "", "_LINE_BREAK": JOURNAL_BREAKS[0]}).encode()


def _fields(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


class _Entry(NamedTuple):
    """What is looked at of an entry; the rest is the envelope's."""

    cursor: str
    us: int | None
    """When it was written, in microseconds."""

    @staticmethod
    def of(line: bytes) -> "_Entry | None":
        """Return None for what is no entry."""
        cursor = _CURSOR.search(line)
        if cursor is None:
            return None
        time = _TIME.search(line)
        return _Entry(cursor[1].decode("utf-8", "replace"), None if time is None else int(time[1]))


class _Place:
    """Which entry was read last, and whether it is still there."""

    def __init__(self, source: str, last: Position | None) -> None:
        self._source = source
        self.cursor = None if last is None else last.cursor
        self.is_new = last is None
        """Nothing of this unit was ever read."""
        self._is_missing = not self.is_new
        """The last entry has not been found again."""
        self._is_sought = False
        self._us: int | None = None
        if last is not None:
            seen_us = None if last.seen_s is None else round(last.seen_s * 1e6)
            told = int(_parts(self.cursor).get("t", "0"), 16)
            self._us = told if told and (seen_us is None or told <= seen_us) else seen_us
        if self.cursor is not None and not (self.cursor.isascii() and self.cursor.isprintable()):
            self.cursor = None  # not even an argument

    def start(self) -> list[str]:
        """Return the options that make journalctl begin at this place."""
        if self.cursor is not None:
            return [f"--cursor={self.cursor}"]
        if self._us is None:
            return []
        seconds, us = divmod(self._us + 1, 1_000_000)
        return [f"--since=@{seconds}.{us:06d}"]

    def seek(self, *, again: bool) -> None:
        """Prepare for entries from `start` on; `again` where they have been gone through to their end."""
        self._is_sought = not self.is_new
        self._is_missing = self._is_missing if again else not self.is_new

    def give_up(self) -> None:
        """Go by time from now on: the cursor leads nowhere."""
        self.cursor = None

    def take(self, entry: _Entry) -> list[Gap] | None:
        """Go on to an entry, and return what was lost before it; None where it has been read already."""
        if self._is_sought and entry.cursor == self.cursor:
            self._is_sought = self._is_missing = False
            return None
        if self._is_missing and not self._is_behind(entry):
            return None
        since_s, until_s = (None if us is None else us / 1e6 for us in (self._us, entry.us))
        gaps = [Gap(self._source, since_s, GONE, 0, until_s=until_s)] if self._is_missing else []
        self._is_sought = self._is_missing = self.is_new = False
        self.cursor, self._us = entry.cursor, entry.us
        return gaps

    def _is_behind(self, entry: _Entry) -> bool:
        """Tell by journald's numbers, where they are of one series, else by the time."""
        old, new = _parts(self.cursor), _parts(entry.cursor)
        if "i" in old and "i" in new and old.get("s") == new.get("s"):
            return int(new["i"], 16) > int(old["i"], 16)
        return self._us is None or entry.us is None or entry.us > self._us


def _parts(cursor: str | None) -> dict[str, str]:
    return dict(_PART.findall(cursor or ""))


class _Lines:
    """Puts whole lines together; one that is too long comes out as its begin and its end with a NUL between."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their newlines."""
        lines: list[bytes] = []
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            self._rest += head
            lines = bytes(self._rest).split(b"\n")
            self._rest.clear()
        self._rest += tail
        if len(self._rest) > MAX_ENTRY:
            self._rest[4096:-4096] = b"\0"
        return lines
