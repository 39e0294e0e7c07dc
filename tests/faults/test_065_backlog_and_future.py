"""65. A backlog found at the start is judged by its own time; lines from the future do not stop the clock."""

import os
from pathlib import Path

from tests.course import STEP_S, Course, rule
from tests.lines import line_of, record


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


def test_one_line_from_the_future_costs_nothing(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    course.go(0.2, 120)
    with course.log.open("ab") as out:
        out.write(line_of(record(course.at_s + 30 * 86400, running=4, generation_tps=9.0, kv_usage=0.2)) + b"\n")
    course.go(0.2, 120)
    course.go(0.7, 120)
    fired = [at_s for state, at_s in course.states() if state == "firing"]
    assert len(fired) == 1
    assert 240 <= fired[0] <= 300
    course.go(0.7, STEP_S)
    course.live.kill()
