"""42. A rule that is gone ends its alert as such; one that asks for more goes back to pending; others are untouched."""

from pathlib import Path

from kvlogd.model import AlertState
from kvlogd.rules import Rule
from tests.course import Course, rule


def restarted(course: Course, *rules: Rule) -> Course:
    course.live.stop()
    course.live.rules = rules
    course.live.start()
    return course


def test_a_removed_rule_ends_its_alert(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, id_="one", for_="0s"), rule(tmp_path, id_="two", for_="0s"))
    course.go(0.7, 120)
    restarted(course, rule(tmp_path, id_="two", for_="0s")).go(0.7, 120)
    ends = [(one.rule, one.state, one.reason) for one in course.told()[2:]]
    assert ends == [("one", "resolved", "rule removed")]
    assert [standing.key.rule for standing in course.live.store.standings()] == ["two"]
    course.live.kill()


def test_a_rule_that_asks_for_longer_goes_back_to_pending(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="1m"))
    course.go(0.7, 180)
    assert len(course.told()) == 1
    restarted(course, rule(tmp_path, for_="30m")).go(0.7, 120)
    assert [(one.state, one.reason) for one in course.told()] == [("firing", ""), ("resolved", "rule changed")]
    [standing] = course.live.store.standings()
    assert standing.state is AlertState.PENDING
    course.live.kill()
