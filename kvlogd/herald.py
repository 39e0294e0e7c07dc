"""Says in kvlogd's own log what happened to the engines and to the reading of their logs, and how things stand.

Each alert and each loss once; a log that cannot be read as one lasting trouble. Numbers and labels only.
"""

from collections.abc import Iterable

from kvlogd.model import AlertEvent, AlertState, Gap, Severity
from kvlogd.notice import clock_text, label_text, subject
from kvlogd.piece import Health
from kvlogd.quantity import about_text, count_text
from kvlogd.rows import Batch
from kvlogd.voice import Level, Voice

LATE_S = 600.0
"""What happened so long ago, in a backlog, is told with its time."""
TOLD_BYTES = 1 << 20
"""To be behind by less is no backlog."""
_MISSING = {"gpu": "no GPU is read", "host": "no server's memory is read"}
_LEVELS = {Severity.CRITICAL: Level.ERROR, Severity.WARNING: Level.WARNING, Severity.INFO: Level.NOTICE}


class Herald:
    """Tells through a voice; remembers which logs are in trouble."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._troubled: set[str] = set()
        self._idle: set[tuple[str, str]] = set()

    def stored(self, batch: Batch, wall_s: float) -> None:
        """Tell what a batch that is stored holds of interest."""
        for event in batch.alert_events:
            level, text = _told(event)
            is_late = wall_s - event.at_s > LATE_S
            self._voice.say(level, f"{text} (at {clock_text(event.at_s)})" if is_late else text)
        for (source, reason), (times, lines) in _summed(batch.gaps).items():
            count = f", {count_text(lines, 'line')}" if lines else ""
            again = f" ({times} times)" if times > 1 else ""
            self._voice.say(Level.NOTICE, f"{label_text(source)}: {reason}{count}{again}")

    def fares(self, found: Iterable[Health], now_s: float, wall_s: float) -> None:
        """Tell which logs cannot be read, or only with trouble, and which can again."""
        troubled = {
            health.log: health.mend or health.state
            for health in found
            if health.state in ("unreadable", "skipped") or (health.state == "reading" and health.mend)
        }
        for log, mend in troubled.items():
            self._voice.complain(label_text(log), mend, now_s, wall_s)
        for log in self._troubled - troubled.keys():
            self._voice.relent(label_text(log))
        self._troubled = set(troubled)

    def idle(self, found: Iterable[tuple[str, str]]) -> None:
        """Tell once which rules have had nothing to judge for a day."""
        now = set(found)
        for rule, scope in sorted(now - self._idle):
            what = _MISSING.get(scope, "what it looks at is not in this log")
            told = f"has had nothing to judge for a day: {what}, so it cannot fire"
            self._voice.say(Level.NOTICE, f"{rule} {label_text(scope)}: {told}")
        # a GPU that came and went again is news
        self._idle = {one for one in self._idle if one[1] not in _MISSING} | now


def _told(event: AlertEvent) -> tuple[Level, str]:
    if event.state is AlertState.RESOLVED:
        return Level.NOTICE, subject(event)
    return _LEVELS[event.severity], f"{event.severity}: {subject(event)}"


def _summed(gaps: Iterable[Gap]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how often each loss came, and the lines lost by it."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for gap in gaps:
        times, lines = found.get((gap.source, gap.reason), (0, 0))
        found[gap.source, gap.reason] = times + 1, lines + gap.lines
    return found


class Backlog:
    """How fast what is still to be read gets less: the rate between two looks, a few seconds apart."""

    def __init__(self) -> None:
        self.left_s: float | None = None
        """How long it takes at this rate; None where there is hardly anything, or it does not get less."""
        self._seen: tuple[float, int] | None = None

    def look(self, behind_bytes: int, now_s: float) -> None:
        """Take in how much is to be read now."""
        before_s, before = self._seen or (now_s, behind_bytes)
        self._seen = now_s, behind_bytes
        done = before - behind_bytes
        is_told = behind_bytes > TOLD_BYTES and done > 0 and now_s > before_s
        self.left_s = behind_bytes * (now_s - before_s) / done if is_told else None


def status_line(engines: int, firing: int, logs: int, behind_bytes: int, left_s: float | None, mode: str) -> str:
    """Return the line that `systemctl status` shows."""
    parts = [count_text(logs, "log"), count_text(engines, "engine"), f"{count_text(firing, 'alert')} firing"]
    if behind_bytes > TOLD_BYTES:
        left = "" if left_s is None else f", {about_text(left_s)} to go"
        parts.append(f"{behind_bytes >> 20} MiB behind{left}")
    return ", ".join([*parts, mode])
