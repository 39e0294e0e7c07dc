"""33. An alert that was pending when kvlogd went down goes on where it stood: only time that was seen counts."""

from pathlib import Path

import pytest

from tests.course import Course, rule


def test_downtime_without_lines_does_not_count(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="5m"))
    course.go(0.7, 120)
    course.live.restart()
    course.at_s += 180  # neither kvlogd nor vLLM
    course.go(0.7, 150)
    assert course.states() == []
    course.go(0.7, 120)
    [(state, at_s)] = course.states()
    assert state == "firing"
    assert 480 <= at_s <= 510
    course.live.kill()


@pytest.mark.parametrize("ends", ["restart", "killed"])
def test_downtime_that_the_log_covers_counts(tmp_path: Path, ends: str) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="5m"))
    course.go(0.7, 120)
    course.live.commit()
    if ends == "killed":
        course.live.kill()
    else:
        course.live.stop()
    course.write(0.7, 180)
    course.live.start()
    course.go(0.7, 60)
    assert course.states() == [("firing", 330.0)]
    course.live.kill()
