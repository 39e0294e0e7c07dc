"""36. A fault that ends while kvlogd is down is resolved once, at the time at which it ended."""

from pathlib import Path

from tests.course import Course, rule


def test_resolved_at_its_true_end(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    course.go(0.7, 120)
    course.live.stop()
    course.write(0.7, 60)
    course.write(0.2, 3600)
    course.live.start()
    course.go(0.2, 60)
    assert course.states() == [("firing", 30.0), ("resolved", 210.0)]  # the ticks behind the change
    course.live.kill()
