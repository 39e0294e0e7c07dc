"""35. What is left of `keep_firing_for` when kvlogd goes down is what is left when it is back."""

from pathlib import Path

from tests.course import Course, rule


def test_the_rest_is_kept(tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    told = []
    for folder in (straight, stopped):
        folder.mkdir()
        course = Course(folder, rule(folder, for_="0s", keep="10m"))
        course.go(0.7, 120)
        course.go(0.2, 300)
        if folder is stopped:
            course.live.restart()
        course.go(0.2, 240)
        assert [state for state, _ in course.states()] == ["firing"]
        course.go(0.2, 180)
        told.append(course.told())
        course.live.kill()
    assert told[0] == told[1]
    assert [one.state for one in told[1]] == ["firing", "resolved"]
    assert told[1][1].at_s == 750.0  # the tick at 150 s was the first to find it clear
