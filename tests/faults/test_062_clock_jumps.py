"""62. The host's clock jumps: nothing fires, nothing ends, rows keep the time of their records."""

import os
from pathlib import Path

import pytest

from kvlogd.rules import load_rules, shipped_folder
from tests.course import Course, rule

HOUR_S, DAY_S, YEAR_S = 3600.0, 86400.0, 365 * 86400.0


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, DAY_S, -DAY_S, YEAR_S])
@pytest.mark.parametrize("running", [0, 3], ids=["idle", "busy"])
def test_nothing_is_told(tmp_path: Path, jump_s: float, running: int) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 300)
    course.go(0.2 if running else 0.0, 10, running=running)
    course.live.clock.wall += jump_s
    course.quiet(30)
    course.go(0.2, 300)
    assert course.told() == []
    assert course.live.count() == 61
    course.live.kill()


def test_a_jump_between_a_line_and_its_reading_is_no_silence(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 300)
    course.write(0.2, 10, running=3, moves=False)
    course.live.clock.wall += DAY_S
    course.quiet(60)
    assert course.told() == []
    course.live.kill()


def test_an_alert_that_fires_goes_on(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="1m", keep="10m"))
    course.go(0.7, 300)
    course.live.clock.wall -= DAY_S
    course.go(0.7, 60)
    course.live.restart()
    course.go(0.7, 60)
    assert [state for state, _ in course.states()] == ["firing"]
    course.live.kill()


def test_a_file_server_whose_clock_is_behind_makes_no_silence(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 60)
    for _ in range(30):
        course.write(0.2, 10, running=3, moves=False)
        course.write(0.2, 10)
        os.utime(course.log, (0, course.live.clock.wall - HOUR_S))
        course.live.turn(20)
    assert course.told() == []
    course.live.kill()
