"""38. A rule that fails is shown as broken; its alert stays as it is and the other rules go on."""

from pathlib import Path
from typing import Any

import pytest

from kvlogd.kinds import threshold
from kvlogd.model import Broken, Finding
from tests.course import Course, rule


def test_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(tmp_path, rule(tmp_path, id_="good", for_="0s"), rule(tmp_path, id_="bad", for_="0s", above="51%"))
    course.go(0.7, 60)
    assert sorted(one.rule for one in course.told()) == ["bad", "good"]
    _break(monkeypatch)
    course.go(0.2, 300)
    assert [(one.rule, one.state) for one in course.told()[2:]] == [("good", "resolved")]
    last = {rule_.id: last for rule_, _, last, _ in _at_work(course)}
    assert isinstance(last["bad"], Broken)
    assert "ZeroDivisionError" in last["bad"].why
    monkeypatch.undo()
    course.go(0.7, 60)
    assert isinstance({rule_.id: last for rule_, _, last, _ in _at_work(course)}["bad"], Finding)
    course.live.kill()


def _at_work(course: Course) -> list[Any]:
    [stream] = course.live.intake.feeds[0].streams.values()
    return list(stream.pipeline.at_work())


def _break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one rule divide by zero: the second that is asked."""
    judge = threshold.Threshold.judge
    seen: list[threshold.Threshold] = []

    def fails(self: threshold.Threshold, window: Any, at_s: float) -> Any:
        if self not in seen:
            seen.append(self)
        if seen.index(self) == 1:
            raise ZeroDivisionError
        return judge(self, window, at_s)

    monkeypatch.setattr(threshold.Threshold, "judge", fails)
