"""39. A value that crosses its bound every 20 s for an hour is told once, and once that it is over."""

from pathlib import Path

from tests.course import Course, rule


def test_two_notices_at_most(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s", keep="5m"))
    for _ in range(90):
        course.go(0.7, 20)
        course.go(0.2, 20)
    course.go(0.2, 600)
    assert [state for state, _ in course.states()] == ["firing", "resolved"]
    course.live.kill()
