"""43. A rule whose signal the log never gives is told after a day of records; one with a wrong name is refused."""

import io
from pathlib import Path

import pytest

from kvlogd.errors import ConfigError
from kvlogd.herald import Herald
from kvlogd.voice import Voice
from tests.course import Course, rule


def test_a_signal_that_is_not_in_the_log_is_told_after_a_day(tmp_path: Path) -> None:
    fine, odd = rule(tmp_path, id_="fine"), rule(tmp_path, id_="odd", signal="swapped", above="5")
    course = Course(tmp_path, fine, odd)
    out = io.StringIO()
    herald = Herald(Voice(out, for_journal=False))
    for hours in (23, 2, 1):
        course.write(0.2, hours * 3600)
        course.live.read_all()
        herald.idle(course.live.intake.without_evidence())
        assert out.getvalue().count("\n") == (hours != 23)
    assert out.getvalue().startswith("kvlogd: odd chat/0: has had nothing to judge for a day")
    course.live.restart()
    course.live.read_all()
    assert course.live.intake.without_evidence() == [("odd", "chat/0")]
    course.live.kill()


def test_a_name_that_is_nearly_right_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_usage"):
        rule(tmp_path, signal="kv_usag")
