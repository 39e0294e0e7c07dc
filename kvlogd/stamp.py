"""Turns vLLM's stamps, which have no year and no zone, into Unix seconds.

Promises: the time of a record depends only on the stamps before it in the same stream, on the envelope's clock
where there is one, and on the year, zone and file time given. New Year and both changes of the clock come out right; a
stamp that is wrong by months leaves the year of those behind it as it was.
Does not promise: to notice a silence of more than 300 days in a log without years, or that a day between two silences
which last a year together is no wrong stamp; to tell the two passes of the repeated hour apart after a silence of an
hour, or to know which of them a log begins in.
"""

import difflib
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from math import inf
from typing import NamedTuple

from kvlogd.errors import ConfigError

DAY_S = 86_400
LEAST_STEP_S = -64 * DAY_S
"""The furthest step back that is not a new year: replayed records step back, a silence is under 300 days."""
JITTER_S = 60
"""Processes that write into one log step back by seconds; in the repeated hour more than this is its second pass."""
QUARTER_S = 900
CLOSE_S = 120
"""How near the envelope's clock and the stamp must be before the stream's known offset is given up for theirs."""
LEAST_OFFSET_S, MOST_OFFSET_S = -12 * 3600, 14 * 3600
YEAR_9999_S = 253_402_300_800

_EPOCH = date(1970, 1, 1).toordinal()
_STAMP = re.compile(rb"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")


class _Seconds(dict[bytes, int]):
    """`:SS` -> seconds; anything else is a ValueError, as for any other broken stamp."""

    def __missing__(self, text: bytes) -> int:
        raise ValueError("the seconds of a stamp are broken")


_SECONDS = _Seconds({b":%02d" % second: second for second in range(61)})


class _HostZone(tzinfo):
    """The zone that this host's own clock shows, summer time included."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None if when is None else when.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def fromutc(self, when: datetime) -> datetime:
        # Python's own would need dst()
        local = when.replace(tzinfo=UTC).astimezone()
        shown = local.replace(tzinfo=self)
        return shown if shown.utcoffset() == local.utcoffset() else shown.replace(fold=1)

    def tzname(self, when: datetime | None) -> str | None:
        return None if when is None else when.replace(tzinfo=None).astimezone().tzname()


HOST_ZONE: tzinfo = _HostZone()


class Wall(NamedTuple):
    """What a clock on a wall shows, to the minute; the year only where the log gives one."""

    month: int
    day: int
    hour: int
    minute: int
    year: int | None = None

    def naive_s(self, year: int) -> int:
        """Return the seconds since 1970 of this reading in `year` as if it were UTC; raises ValueError."""
        if not (0 <= self.hour < 24 and 0 <= self.minute < 60):
            raise ValueError("the time of a stamp is broken")
        return (date(year, self.month, self.day).toordinal() - _EPOCH) * DAY_S + self.hour * 3600 + self.minute * 60

    def exists_in(self, year: int) -> bool:
        """Return whether the calendar has this day in `year`: false for 29 February in most of them."""
        return 1970 <= year <= 9999 and not (
            self.month == 2 and self.day == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0))
        )


class Stamper:
    """Resolves the stamps of one stream, in the order in which they stand there.

    `year` is that of the first stamp; without it `mtime_s` (Unix seconds, when the log was last written) decides.
    Keep one over all rotated files of a source: the next file goes on where the last one ended.
    """

    def __init__(self, *, year: int | None, zone: tzinfo, mtime_s: float | None) -> None:
        self.year = year
        self.zone = zone
        self.mtime_s = mtime_s
        self._offset_s: int | None = None
        self._offset_is_sure = False
        self._last_naive_s: int | None = None
        self._last_s: float | None = None
        self._leap: tuple[int, int] | None = None
        """The readings from and to which the stream leapt further than the year of what follows can be told from."""
        self._minute = b""
        self._minute_s = 0.0
        self._hour = b""
        self._hour_s = 0.0

    def latest_s(self) -> float:
        """Return what no stamp of the log can be later than, in whatever zone; with a year given, anything."""
        return inf if self.mtime_s is None or self.year is not None else self.mtime_s + DAY_S

    def go_on_from(self, last_s: float) -> None:
        """Take up a stream whose last stamp meant `last_s`: the year of the next one follows from it."""
        offset = self.zone.utcoffset(datetime.fromtimestamp(last_s, UTC).replace(tzinfo=None)) or timedelta()
        self._last_s = last_s
        self._last_naive_s = int(last_s + offset.total_seconds())

    def at(self, stamp: bytes, envelope_s: float | None = None) -> float:
        """Return the Unix seconds of a stamp `MM-DD HH:MM:SS`; raises ValueError where it is not one."""
        if stamp[:11] == self._minute and (envelope_s is None or -1800 < envelope_s - self._minute_s < 1800):
            return self._minute_s + _SECONDS[stamp[11:]]
        match = _STAMP.fullmatch(stamp)
        if match is None:
            raise ValueError("the stamp is broken")
        if envelope_s is None and stamp[:8] == self._hour and stamp[9:11] < b"60":
            return self._in_same_hour(stamp)
        month, day, hour, minute, second = map(int, match.groups())
        seconds = _SECONDS[stamp[11:]]  # a broken stamp must raise before it moves the stream's present
        minute_s = self._place(Wall(month, day, hour, minute), second, envelope_s)
        result = minute_s + seconds
        self._minute, self._minute_s = stamp[:11], minute_s
        return result

    def resolve(
        self,
        month: int,
        day: int,
        hour: int,
        minute: int,
        second: int,
        *,
        year: int | None = None,
        envelope_s: float | None = None,
    ) -> float:
        """Return the Unix seconds of a stamp given in parts, `year` where the log has it; raises ValueError."""
        if not 0 <= second <= 60:
            raise ValueError("the seconds of a stamp are broken")
        self._minute = self._hour = b""
        return self._place(Wall(month, day, hour, minute, year), second, envelope_s) + second

    def _in_same_hour(self, stamp: bytes) -> float:
        """Return the time of a stamp in an hour that has been placed and in which no clock is changed."""
        seconds = _SECONDS[stamp[11:]]
        minute = int(stamp[9:11])
        minute_s = self._hour_s + 60 * minute
        if self._last_naive_s is not None:
            self._last_naive_s += 60 * minute - self._last_naive_s % 3600
        self._minute, self._minute_s, self._last_s = stamp[:11], minute_s, minute_s
        return minute_s + seconds

    def _place(self, wall: Wall, second: int, envelope_s: float | None) -> float:
        """Return the Unix seconds of the minute's begin and remember it as the stream's present."""
        self._hour = b""
        naive_s = None
        if envelope_s is not None and 0 <= envelope_s < YEAR_9999_S:
            naive_s = self._by_envelope(wall, second, envelope_s)
        if naive_s is None:
            naive_s = wall.naive_s(self._year_of(wall) if wall.year is None else wall.year)
            utc_s = self._to_utc(naive_s)
        else:
            utc_s = float(naive_s - (self._offset_s or 0))
        self._note_leap(naive_s)
        self._last_naive_s, self._last_s = naive_s, utc_s
        return utc_s

    def _note_leap(self, naive_s: int) -> None:
        last_s = self._last_naive_s
        if last_s is not None and abs(naive_s - last_s) > -LEAST_STEP_S:
            self._leap = last_s, naive_s
        elif self._leap is not None and abs(naive_s - self._leap[1]) > DAY_S:
            self._leap = None

    # --- with an envelope

    def _by_envelope(self, wall: Wall, second: int, envelope_s: float) -> int | None:
        """Return the reading nearest to the envelope's clock, having learnt the offset; None where they disagree."""
        now = datetime.fromtimestamp(envelope_s, UTC).year
        years = (now - 1, now, now + 1) if wall.year is None else (wall.year,)
        readings = [wall.naive_s(year) for year in years if wall.exists_in(year)]
        if not readings:
            return None
        naive_s = min(readings, key=lambda reading: abs(reading - envelope_s))
        apart_s = naive_s + second - envelope_s
        offset_s = round(apart_s / QUARTER_S) * QUARTER_S
        if not LEAST_OFFSET_S <= offset_s <= MOST_OFFSET_S:
            return None
        self._learn_offset(offset_s, is_close=abs(apart_s - offset_s) <= CLOSE_S)
        return naive_s

    def _learn_offset(self, offset_s: int, *, is_close: bool) -> None:
        """Keep the stream's offset unless the clocks agree on another one: a line flushed late is no new zone."""
        if self._offset_s is None or (is_close and not self._offset_is_sure):
            self._offset_s, self._offset_is_sure = offset_s, is_close
        elif is_close and (offset_s - self._offset_s) % 1800 == 0:
            self._offset_s = offset_s

    # --- without one

    def _year_of(self, wall: Wall) -> int:
        """Return the year that fits the stamps before, else the one given, else the file's time."""
        if self._last_naive_s is not None:
            year = self._year_after(wall, self._last_naive_s)
            return year if self._leap is None else self._year_beside(wall, year, self._leap[0])
        if self.year is not None:
            return _nearest(wall, self.year)
        if self.mtime_s is None:
            raise ValueError("neither the year nor the time of the file is known")
        newest_s = self.latest_s()
        this_year = datetime.fromtimestamp(newest_s, UTC).year
        past = (year for year in range(this_year + 1, this_year - 9, -1) if wall.exists_in(year))
        fitting = (year for year in past if self._to_utc(wall.naive_s(year)) <= newest_s)
        return next(fitting, _nearest(wall, this_year))

    def _year_after(self, wall: Wall, last_s: int) -> int:
        last_year = date.fromordinal(_EPOCH + last_s // DAY_S).year
        for year in (last_year - 1, last_year, last_year + 1):
            if wall.exists_in(year) and LEAST_STEP_S <= wall.naive_s(year) - last_s < LEAST_STEP_S + 366 * DAY_S:
                return year
        return _nearest(wall, last_year)

    def _year_beside(self, wall: Wall, year: int, before_s: int) -> int:
        """Return the year behind a leap, which may have been a wrong stamp: then time goes on from before."""
        other = self._year_after(wall, before_s)
        return other if abs(wall.naive_s(other) - before_s) < DAY_S else year

    def _to_utc(self, naive_s: int) -> float:
        """Return the UTC of a reading in the zone; in the repeated hour the pass that follows the stamps before."""
        if self._offset_s is not None:
            return float(naive_s - self._offset_s)
        first_s, second_s = self._both(naive_s)
        self._keep_hour(naive_s)
        if first_s >= second_s:
            # no repeated hour; in the missing one (first > second) the later reading never steps back
            return first_s
        if self._last_s is None or first_s >= self._last_s - JITTER_S:
            return first_s
        return second_s

    def _both(self, naive_s: int) -> tuple[float, float]:
        when = datetime(1970, 1, 1, tzinfo=self.zone) + timedelta(seconds=naive_s)
        first, second = when.replace(fold=0).utcoffset(), when.replace(fold=1).utcoffset()
        if first is None or second is None:
            raise ValueError("the zone has no offset")
        return naive_s - first.total_seconds(), naive_s - second.total_seconds()

    def _keep_hour(self, naive_s: int) -> None:
        """Remember an hour in which the clock runs on evenly, so that its other minutes need no calendar."""
        begin_s = naive_s - naive_s % 3600
        times = {*self._both(begin_s), *(time_s - 3540 for time_s in self._both(begin_s + 3540))}
        if len(times) == 1:
            hour = datetime.fromtimestamp(begin_s, UTC)
            self._hour = b"%02d-%02d %02d" % (hour.month, hour.day, hour.hour)
            self._hour_s = times.pop()


def _nearest(wall: Wall, year: int) -> int:
    """Return the year nearest to `year`, the earlier of two, in which the calendar has this day."""
    around = (year + sign * step for step in range(9) for sign in (-1, 1))
    return next((near for near in around if wall.exists_in(near)), year)


def zone(text: str) -> tzinfo:
    """Return the zone that `UTC`, `Europe/Berlin` or `+02:00` names; raises ConfigError with the nearest name."""
    if text.upper() in {"UTC", "Z"}:
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        return _fixed(text, int(offset[1] + "1") * (int(offset[2]) * 60 + int(offset[3])))
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError("no such time zone", where=repr(text), mend=_mend(text)) from error


def _fixed(text: str, minutes: int) -> tzinfo:
    if abs(minutes) > 14 * 60:
        raise ConfigError("no zone is more than 14 hours from UTC", where=repr(text), mend="write it like +02:00")
    return timezone(timedelta(minutes=minutes))


def _mend(text: str) -> str:
    names = {name.lower(): name for name in zoneinfo.available_timezones()}
    if not names:
        return "this host has no zone files: install tzdata, or write an offset like +02:00"
    wanted = text.lower().replace(" ", "_")
    cities = {name.rsplit("/", 1)[-1]: name for name in names}
    near = difflib.get_close_matches(wanted, [*names, *cities], n=1)
    if not near:
        return "write it like Europe/Berlin, UTC or +02:00"
    return f"did you mean {names[cities.get(near[0], near[0])]}?"
