"""37. A log goes quiet: idle is no alert, a hang is one, across a restart too; a log that is gone ends nothing."""

from pathlib import Path

from kvlogd.rules import load_rules, shipped_folder
from tests.course import Course, rule


def test_an_idle_engine_is_no_alert(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 300)
    course.go(0.0, 10, running=0)
    course.quiet(3600)
    assert course.told() == []
    course.live.kill()


def test_a_hang_is_told_also_when_kvlogd_restarts_in_its_midst(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 300)
    course.go(0.2, 10, running=3, moves=False)
    course.quiet(60)
    course.live.restart()
    course.quiet(120)
    assert course.told() == []
    course.quiet(180)
    assert [(one.rule, one.state) for one in course.told()] == [("engine-stall", "firing")]
    course.live.restart()
    course.quiet(600)
    assert len(course.told()) == 1
    course.live.kill()


def test_a_log_that_is_gone_ends_no_alert(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    course.go(0.7, 120)
    course.log.unlink()
    course.quiet(7200)
    assert [state for state, _ in course.states()] == ["firing"]
    course.live.kill()


def test_what_kvlogd_cannot_see_is_no_silence(tmp_path: Path) -> None:
    course = Course(tmp_path, *load_rules([shipped_folder()]))
    course.go(0.2, 300)
    course.go(0.2, 10, running=3, moves=False)
    course.log.rename(tmp_path / "away")
    course.log.symlink_to(course.log)
    course.quiet(1200)
    assert course.told() == []
    course.live.kill()


def test_an_alert_about_a_source_that_is_no_longer_named_ends_as_such(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path, for_="0s"))
    course.go(0.7, 120)
    course.live.stop()
    course.live.log = tmp_path / "other" / "*.log"
    course.live.start()
    assert [(one.state, one.reason) for one in course.told()] == [("firing", ""), ("resolved", "source removed")]
    assert course.live.store.standings() == []
    course.live.kill()
