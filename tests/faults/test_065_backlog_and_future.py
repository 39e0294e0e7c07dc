"""65. A backlog found at the start is judged by its own time; a stamp that cannot be costs nothing but itself."""

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvlogd.rules import load_rules, shipped_folder
from tests.command import SAMPLES, replay, sql
from tests.course import Course, rule
from tests.lines import START_S, line_of, logged, record
from tests.live import Live, replayed

LOG = Path(__file__).parent.parent / "data" / "real" / "leak-to-hang-and-restart.log"
STAMP = re.compile(rb"\d\d-\d\d \d\d:\d\d:\d\d")
WRITTEN_S = datetime(2026, 11, 29, 14, 44, tzinfo=UTC).timestamp()
DAY_S = 86400.0


def test_episodes_of_a_backlog_have_their_own_times(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    course.write(0.2, 120)
    course.write(0.7, 300)
    course.write(0.2, 300)
    course.live.clock.wall += 30 * 86400
    course.live.read_all()
    assert course.states() == [("firing", 150.0), ("resolved", 450.0)]
    course.live.kill()


def test_a_backlog_that_ends_in_a_hang_is_told_by_the_age_of_the_file(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, id_="still", for_="0s", more=""))
    course.write(0.7, 60)
    os.utime(course.log, (0, course.live.clock.wall - 3600))
    course.live.read_all()
    course.quiet(30)
    assert [state for state, _ in course.states()] == ["firing"]
    course.live.kill()


def lines_with_a_leap(leap_s: float, part: float) -> tuple[list[bytes], int]:
    """Return the lines of a real log with a record twice, the second time with a stamp that leaps, and which it is."""
    lines = LOG.read_bytes().splitlines(keepends=True)
    records = [number for number, line in enumerate(lines) if b"Avg prompt throughput" in line]
    at = records[int(part * len(records))]
    match = STAMP.search(lines[at])
    assert match is not None
    when = datetime.strptime(f"2026-{match[0].decode()}", "%Y-%m-%d %H:%M:%S") + timedelta(seconds=leap_s)
    lines.insert(at + 1, lines[at].replace(match[0], when.strftime("%m-%d %H:%M:%S").encode()))
    return lines, at + 1


@pytest.mark.parametrize("leap_s", [3 * 3600, 20 * DAY_S, 183 * DAY_S, -3 * 3600, -20 * DAY_S])
@pytest.mark.parametrize("part", [0.2, 0.45, 0.6], ids=["before the leak is found", "while it fires", "while it hangs"])
def test_a_replay_with_one_stamp_out_of_line_finds_what_it_finds_without(
    leap_s: float, part: float, tmp_path: Path
) -> None:
    log = tmp_path / LOG.name
    log.write_bytes(b"".join(lines_with_a_leap(leap_s, part)[0]))
    told = [replay("--db", db, path) for db, path in ((tmp_path / "a.duckdb", LOG), (tmp_path / "b.duckdb", log))]
    assert told[0].alerts == told[1].alerts
    assert sql(tmp_path / "a.duckdb", SAMPLES) == sql(tmp_path / "b.duckdb", SAMPLES)
    assert sql(tmp_path / "b.duckdb", "SELECT reason, lines FROM gaps") == [
        {"reason": "stamp out of line", "lines": "1"}
    ]


@pytest.mark.parametrize("leap_s", [20 * DAY_S, 183 * DAY_S, 3 * 3600, -3 * 3600])
@pytest.mark.parametrize("what", ["no more", "commit", "restart", "kill"])
def test_a_daemon_that_reads_one_stamp_out_of_line_tells_what_it_tells_without(
    leap_s: float, what: str, tmp_path: Path
) -> None:
    lines, at = lines_with_a_leap(leap_s, 0.45)
    grown = tmp_path / "vllm.log"
    grown.touch()
    live = Live(grown, tmp_path / "live.duckdb", wall_s=WRITTEN_S)

    def write(some: list[bytes]) -> None:
        with grown.open("ab") as out:
            out.write(b"".join(some))
        os.utime(grown, (WRITTEN_S, WRITTEN_S))
        live.read_all()

    write(lines[:at])
    live.commit()
    write(lines[at : at + 1])
    if what == "restart":
        live.restart()
    elif what == "kill":
        live.kill()
        live.start()
    elif what == "commit":
        live.commit()
    write(lines[at + 1 :])
    live.restart()
    live.commit()
    if abs(leap_s) > DAY_S or what in ("no more", "kill"):  # else it might be, and nothing contradicts it yet
        assert live.told() == replayed(LOG, tmp_path / "replay.duckdb")
        assert live.count() == 291
    live.kill()


def test_a_log_that_ends_with_a_stamp_from_the_future(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.7, 600)
    with course.log.open("ab") as out:
        out.write(line_of(record(course.at_s + 183 * DAY_S, running=4, kv_usage=0.2)) + b"\n")
    os.utime(course.log, (START_S + 600, START_S + 600))
    course.live.read_all()
    course.quiet(60)
    assert course.told() == []
    course.live.restart()
    course.go(0.7, 600)
    assert course.told() == []
    assert course.live.count() == 120
    course.live.kill()


def test_chatter_with_a_stamp_from_the_future_lets_no_time_pass(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="1h"))
    course.go(0.7, 600)
    with course.log.open("ab") as out:
        out.write(logged("a line that tells nothing", course.at_s + 30 * DAY_S) + b"\n")
    os.utime(course.log, (START_S + 600, START_S + 600))
    course.live.read_all()
    course.quiet(60)
    course.go(0.7, 600)
    assert course.told() == []
    assert replayed(course.log, tmp_path / "replay.duckdb", course.live.rules) == []
    course.live.kill()


@pytest.mark.parametrize("silent_s", [7 * DAY_S, 100 * DAY_S])
def test_a_log_that_goes_on_after_a_long_silence_is_right(silent_s: float, tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s", keep="1m"))
    course.go(0.2, 300)
    course.live.restart()
    course.at_s += silent_s
    back_s = course.at_s
    course.write(0.7, 300)
    course.write(0.2, 300)
    wall_s = START_S + course.at_s
    course.live.clock.wall = wall_s
    os.utime(course.log, (wall_s, wall_s))
    course.live.read_all()
    assert course.states() == [("firing", back_s + 30), ("resolved", back_s + 390)]
    assert course.live.count() == 90
    course.live.kill()
