"""34. A restart while an alert fires tells nothing again and resolves nothing; the alert keeps its beginning."""

from pathlib import Path

import pytest

from tests.course import Course, rule
from tests.lines import START_S


@pytest.mark.parametrize("ends", ["restart", "killed", "another kvlogd"])
def test_told_once(tmp_path: Path, ends: str) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="1m"))
    course.go(0.7, 300)
    before = course.told()
    assert [one.state for one in before] == ["firing"]
    if ends == "killed":
        course.live.kill()
    else:
        course.live.stop()
    if ends == "another kvlogd":  # its memory cannot be read: the rows must do
        course.live.rules = (rule(tmp_path, for_="1m", more="notify: [oncall]\n"),)
    course.live.start()
    course.go(0.7, 300)
    assert course.told() == before
    [standing] = course.live.store.standings()
    assert standing.since_s - START_S == before[0].since_s
    course.live.kill()
