import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.errors import ConfigError
from kvlogd.stamp import HOST_ZONE, Stamper, zone

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
HOUR = 3600
DAY = 86_400


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def stamper(*, year: int | None = None, in_zone: tzinfo = UTC, mtime: str | None = None) -> Stamper:
    return Stamper(year=year, zone=in_zone, mtime_s=None if mtime is None else utc(mtime))


def test_at_reads_a_stamp_in_the_given_year() -> None:
    stamps = stamper(year=2026)
    assert stamps.at(b"11-29 14:16:25") == utc("2026-11-29 14:16:25")
    assert stamps.at(b"11-29 14:16:59") == utc("2026-11-29 14:16:59")
    assert stamps.at(b"11-29 14:17:00") == utc("2026-11-29 14:17:00")
    assert stamps.at(b"11-29 15:00:00") == utc("2026-11-29 15:00:00")


def test_at_and_resolve_agree() -> None:
    one, other = stamper(year=2025, in_zone=BERLIN), stamper(year=2025, in_zone=BERLIN)
    for hour in (1, 2, 3, 23):
        assert one.at(b"07-01 %02d:30:07" % hour) == other.resolve(7, 1, hour, 30, 7)


@pytest.mark.parametrize(
    "broken",
    [
        b"", b"11-29", b"11-29 14:16", b"13-01 00:00:00", b"02-30 00:00:00", b"11-29 24:00:00", b"11-29 14:60:00",
        b"11-29 14:16:61", b"11-29 14:16:5", b"11-29 14:16:255", b"11-29 14:16: 5", b"00-00 00:00:00",
        "\u0661\u0661-29 14:16:25".encode(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [None, b"11-29 14:16:25"])
def test_a_broken_stamp_is_a_value_error(broken: bytes, before: bytes | None) -> None:
    stamps = stamper(year=2026)
    if before is not None:
        stamps.at(before)
    with pytest.raises(ValueError):
        stamps.at(broken)
    assert stamps.at(b"11-29 14:16:26") == utc("2026-11-29 14:16:26")


def test_without_year_and_file_time_there_is_no_answer() -> None:
    with pytest.raises(ValueError):
        stamper().at(b"11-29 14:16:25")


@pytest.mark.parametrize(
    ("stamp", "mtime", "expected"),
    [
        (b"12-24 08:00:00", "2026-03-02 00:00:00", "2025-12-24 08:00:00"),
        (b"03-01 08:00:00", "2026-03-02 00:00:00", "2026-03-01 08:00:00"),
        (b"03-02 20:00:00", "2026-03-02 00:00:00", "2026-03-02 20:00:00"),
        (b"03-04 08:00:00", "2026-03-02 00:00:00", "2025-03-04 08:00:00"),
        (b"01-01 00:30:00", "2025-12-31 23:59:00", "2026-01-01 00:30:00"),
        (b"02-29 08:00:00", "2026-03-02 00:00:00", "2024-02-29 08:00:00"),
        (b"02-29 08:00:00", "2024-02-28 12:00:00", "2024-02-29 08:00:00"),
        (b"02-29 08:00:00", "2024-02-20 00:00:00", "2020-02-29 08:00:00"),
    ],
)
def test_the_file_time_gives_the_year(stamp: bytes, mtime: str, expected: str) -> None:
    assert stamper(mtime=mtime).at(stamp) == utc(expected)


def test_a_file_time_of_zero_raises_nothing() -> None:
    assert Stamper(year=None, zone=UTC, mtime_s=0.0).at(b"11-29 14:16:25") > 0


def test_the_year_goes_on_at_new_year_and_a_small_step_back_does_not_undo_it() -> None:
    stamps = stamper(year=2025)
    assert stamps.at(b"12-31 23:59:59") == utc("2025-12-31 23:59:59")
    assert stamps.at(b"01-01 00:00:01") == utc("2026-01-01 00:00:01")
    assert stamps.at(b"12-31 23:59:58") == utc("2025-12-31 23:59:58")
    assert stamps.at(b"01-01 00:00:02") == utc("2026-01-01 00:00:02")
    assert stamps.at(b"01-01 00:01:00") == utc("2026-01-01 00:01:00")


def test_replayed_records_keep_their_year() -> None:
    stamps = stamper(year=2026)
    stamps.at(b"03-10 12:00:00")
    assert stamps.at(b"02-20 12:00:00") == utc("2026-02-20 12:00:00")
    assert stamps.at(b"03-10 12:00:10") == utc("2026-03-10 12:00:10")


def test_leap_day_takes_the_nearest_leap_year() -> None:
    assert stamper(year=2025).at(b"02-29 01:00:00") == utc("2024-02-29 01:00:00")
    stamps = stamper(year=2023)
    stamps.at(b"12-31 01:00:00")
    assert stamps.at(b"02-29 01:00:00") == utc("2024-02-29 01:00:00")


def test_a_stamp_with_its_year_sets_the_year_for_those_without() -> None:
    stamps = stamper(mtime="2026-11-29 00:00:00")
    assert stamps.resolve(12, 23, 18, 28, 20, year=2024) == utc("2024-12-23 18:28:20")
    assert stamps.at(b"12-23 18:28:30") == utc("2024-12-23 18:28:30")


@pytest.mark.parametrize("wrong", [b"02-10", b"06-01", b"09-01", b"12-20"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_stamp_of_another_season_leaves_the_year_of_what_follows(wrong: bytes, times: int) -> None:
    stamps = stamper(year=2025)
    stamps.at(b"11-30 12:00:00")
    for second in range(times):
        stamps.at(wrong + b" 12:00:0%d" % second)
    for minute in (0, 1, 59):
        assert stamps.at(b"11-30 12:%02d:30" % minute) == utc(f"2025-11-30 12:{minute:02d}:30")
    assert stamps.at(b"12-02 01:00:00") == utc("2025-12-02 01:00:00")
    assert stamps.at(b"01-02 01:00:00") == utc("2026-01-02 01:00:00")


def test_a_log_that_goes_on_after_months_gets_the_year_of_its_first_stamp_on() -> None:
    stamps = stamper(year=2025)
    stamps.at(b"06-30 12:00:00")
    for stamp in (b"01-30 12:00:00", b"01-30 12:00:10", b"02-02 12:00:00", b"06-30 12:00:00", b"06-30 12:00:01"):
        assert stamps.at(stamp) == utc(f"2026-{stamp.decode()}")


# --- the clock's changes


def test_the_repeated_hour_is_read_twice() -> None:
    stamps = stamper(year=2025, in_zone=BERLIN)
    times = [b"01:59:50", b"02:00:00", b"02:59:50", b"02:00:00", b"02:30:00", b"02:59:50", b"03:00:00"]
    got = [stamps.at(b"10-26 " + time) for time in times]
    first = utc("2025-10-25 23:59:50")
    assert [time_s - first for time_s in got] == [0, 10, 3600, 3610, 5410, 7200, 7210]


def test_jitter_in_the_repeated_hour_is_not_its_second_pass() -> None:
    stamps = stamper(year=2025, in_zone=BERLIN)
    stamps.at(b"10-26 02:10:00")
    assert stamps.at(b"10-26 02:09:58") == utc("2025-10-26 00:09:58")
    assert stamps.at(b"10-26 02:10:01") == utc("2025-10-26 00:10:01")


def test_the_missing_hour_neither_raises_nor_steps_back() -> None:
    stamps = stamper(year=2025, in_zone=BERLIN)
    got = [stamps.at(stamp) for stamp in (b"03-30 01:59:00", b"03-30 02:00:00", b"03-30 02:30:00", b"03-30 02:59:59")]
    assert got == sorted(got)
    assert got[1] - got[0] == 60
    assert stamps.at(b"03-30 04:00:00") == utc("2025-03-30 02:00:00")


def test_half_an_hour_of_summer_time() -> None:
    stamps = stamper(year=2025, in_zone=ZoneInfo("Australia/Lord_Howe"))
    got = [stamps.at(stamp) for stamp in (b"04-06 01:29:00", b"04-06 01:59:00", b"04-06 01:30:00", b"04-06 02:00:00")]
    assert [time_s - got[0] for time_s in got] == [0, 1800, 1860, 3660]


def in_repeated_hour(when: datetime) -> bool:
    return when.replace(fold=0).utcoffset() != when.replace(fold=1).utcoffset()


@given(
    zone_name=st.sampled_from(["Europe/Berlin", "America/New_York"]),
    begin_s=st.integers(int(utc("2019-01-01 00:00:00")), int(utc("2031-01-01 00:00:00"))),
    gaps_s=st.lists(
        st.one_of(st.integers(0, 90), st.integers(0, 3400), st.integers(0, 3 * DAY), st.integers(0, 300 * DAY - 1)),
        max_size=60,
    ),
)
def test_true_sequences_come_back(zone_name: str, begin_s: int, gaps_s: list[int]) -> None:
    where = ZoneInfo(zone_name)
    stamps = Stamper(year=datetime.fromtimestamp(begin_s, where).year, zone=where, mtime_s=None)
    now_s, unsure, before_s = begin_s, True, 0
    for gap_s in [0, *gaps_s]:
        if 363 * DAY < now_s + gap_s - before_s < 368 * DAY:
            return  # a year behind what was before a long silence: that may look like one wrong stamp
        before_s = now_s if gap_s > 63 * DAY else before_s
        now_s += gap_s
        when = datetime.fromtimestamp(now_s, where)
        unsure = in_repeated_hour(when) and (unsure or gap_s > HOUR - 120)
        got = stamps.at(when.strftime("%m-%d %H:%M:%S").encode())
        assert unsure or got == now_s


@pytest.mark.parametrize("where", [BERLIN, NEW_YORK])
def test_a_year_of_stats_comes_back(where: ZoneInfo) -> None:
    begin_s = int(utc("2027-06-01 00:00:00"))
    stamps = Stamper(year=2027, zone=where, mtime_s=None)
    for time_s in range(begin_s, begin_s + 366 * DAY, 1234):
        stamp = datetime.fromtimestamp(time_s, where).strftime("%m-%d %H:%M:%S").encode()
        assert stamps.at(stamp) == time_s


# --- with an envelope


def test_the_envelope_gives_year_and_zone() -> None:
    stamps = stamper(in_zone=BERLIN)
    envelope_s = utc("2025-10-14 23:52:48") + 0.29
    assert stamps.at(b"10-14 16:52:48", envelope_s) == utc("2025-10-14 23:52:48")
    assert stamps.at(b"10-14 17:32:28", utc("2025-10-15 00:32:28")) == utc("2025-10-15 00:32:28")
    assert stamps.at(b"10-14 17:33:28") == utc("2025-10-15 00:33:28")


@pytest.mark.parametrize("late_s", [0, 3, 55, 500, 1000, 5000])
def test_lines_flushed_late_do_not_change_the_offset(late_s: int) -> None:
    stamps = stamper()
    stamps.at(b"06-12 08:00:10", utc("2026-06-12 06:00:10"))
    assert stamps.at(b"06-12 08:10:10", utc("2026-06-12 06:10:10") + late_s) == utc("2026-06-12 06:10:10")
    assert stamps.at(b"06-12 08:20:10", utc("2026-06-12 06:20:11")) == utc("2026-06-12 06:20:10")


def test_a_late_first_line_is_mended_by_the_next() -> None:
    stamps = stamper()
    stamps.at(b"06-12 08:00:10", utc("2026-06-12 06:12:10"))
    assert stamps.at(b"06-12 08:20:10", utc("2026-06-12 06:20:11")) == utc("2026-06-12 06:20:10")


def test_the_envelope_shows_the_change_of_the_clock() -> None:
    stamps = stamper()
    assert stamps.at(b"10-26 02:15:10", utc("2025-10-26 00:15:10")) == utc("2025-10-26 00:15:10")
    assert stamps.at(b"10-26 02:15:10", utc("2025-10-26 01:15:10")) == utc("2025-10-26 01:15:10")


def test_envelope_over_new_year() -> None:
    stamps = stamper()
    assert stamps.at(b"12-31 23:59:50", utc("2026-01-01 04:59:50")) == utc("2026-01-01 04:59:50")
    assert stamps.at(b"01-01 00:00:00", utc("2026-01-01 05:00:00")) == utc("2026-01-01 05:00:00")


@pytest.mark.parametrize("envelope_s", [float("nan"), float("inf"), -1.0, 1e18, 0.0])
def test_an_impossible_envelope_is_ignored(envelope_s: float) -> None:
    assert stamper(year=2026).at(b"11-29 14:16:25", envelope_s) == utc("2026-11-29 14:16:25")


@given(
    stamp=st.binary(max_size=20) | st.from_regex(rb"\d\d-\d\d \d\d:\d\d:\d\d", fullmatch=True),
    envelope_s=st.none() | st.floats(),
)
def test_nothing_but_a_value_error_comes_out(stamp: bytes, envelope_s: float | None) -> None:
    stamps = stamper(mtime="2026-11-29 00:00:00")
    try:
        assert stamps.at(stamp, envelope_s) > 0
    except ValueError:
        assert stamps.at(b"11-29 00:00:00") == utc("2026-11-29 00:00:00")


# --- zones


@pytest.mark.parametrize(
    ("text", "hours"), [("UTC", 0), ("Z", 0), ("+02:00", 2), ("-0730", -7.5), ("Asia/Kolkata", 5.5), ("+14:00", 14)]
)
def test_zone(text: str, hours: float) -> None:
    assert zone(text).utcoffset(datetime(2026, 1, 1)) == timedelta(hours=hours)


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("Europe/Berlim", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("America/New York", "America/New_York"),
        ("+25:00", "+02:00"),
        ("../../etc/passwd", ""),
        ("Europe", ""),
        ("", ""),
        ("a\0b", ""),
        ("\udcff", ""),
    ],
)
def test_an_unknown_zone_names_the_nearest(text: str, mend: str) -> None:
    with pytest.raises(ConfigError) as caught:
        zone(text)
    assert mend in caught.value.mend
    assert caught.value.mend


def test_the_host_zone_is_the_hosts() -> None:
    local = datetime(2026, 7, 1, 12, tzinfo=HOST_ZONE)
    assert local.timestamp() == datetime(2026, 7, 1, 12).timestamp()
    stamps = Stamper(year=2026, zone=HOST_ZONE, mtime_s=None)
    assert stamps.at(b"07-01 12:00:00") == local.timestamp()


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("at", ["2026-07-01 20:30", "2026-12-01 21:30", "2026-10-25 00:30", "2026-10-25 01:30"])
def test_the_host_zone_tells_what_the_hosts_clock_shows(in_berlin: None, at: str) -> None:
    shown = datetime.fromtimestamp(utc(f"{at}:00"), HOST_ZONE)
    real = datetime.fromtimestamp(utc(f"{at}:00"), zone("Europe/Berlin"))
    assert (shown.replace(tzinfo=None), shown.fold) == (real.replace(tzinfo=None), real.fold)
    assert shown.timestamp() == utc(f"{at}:00")


def test_fixed_offsets_are_zones_too() -> None:
    assert stamper(year=2026, in_zone=timezone(timedelta(hours=3))).at(b"05-17 01:30:00") == utc("2026-05-16 22:30:00")
