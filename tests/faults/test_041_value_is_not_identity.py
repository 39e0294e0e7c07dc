"""41. A value that changes is no other alert: one key for the whole episode."""

from pathlib import Path

from tests.course import Course, rule


def test_one_alert(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    for step in range(40):
        course.go(0.51 + step / 100, 30)
    course.live.commit()
    [standing] = course.live.store.standings()
    assert standing.value is not None
    assert standing.value > 0.85
    assert [state for state, _ in course.states()] == ["firing"]
    course.live.kill()
