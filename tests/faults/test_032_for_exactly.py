"""32. A finding becomes an alert when it has lasted for exactly as long as the rule says, in record time."""

from pathlib import Path

import pytest

from kvlogd.model import AlertState
from tests.course import Course, rule


@pytest.mark.parametrize("together", [True, False], ids=["read at once", "read as it comes"])
def test_pending_until_the_time_is_full(tmp_path: Path, together: bool) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="5m"))
    course.go(0.2, 60)
    (course.write if together else course.go)(0.7, 300)
    course.live.read_all()
    assert course.states() == []
    [standing] = course.live.store.standings()
    assert standing.state is AlertState.PENDING
    course.go(0.7, 60)
    assert course.states() == [("firing", 390.0)]  # found at the tick at 90 s, 5 minutes before
    course.live.kill()
