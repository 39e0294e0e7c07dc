"""A rule with a query of its own: the same answers in a replay and live; a query that is wrong costs nothing."""

import random
from pathlib import Path

import pytest

from kvlogd.model import Broken, Finding
from kvlogd.rules import Rule, load_rule
from kvlogd.ruletest import run_file
from kvlogd.yamlfile import FaultsError
from tests.command import kvlogd
from tests.course import Course
from tests.lines import START_S, line_of, record
from tests.live import replayed

FULL = """\
SELECT engine, max(kv_usage) AS value, min(ts) AS since, max(running) AS most_running, 'text' AS note
FROM kv WHERE ts BETWEEN $now - INTERVAL 5 MINUTE AND $now
GROUP BY engine HAVING min(kv_usage) > 0.5
"""


def written(folder: Path, query: str = FULL, *, when: str = "", more: str = "every: 1m") -> Path:
    path = folder / "own.yaml"
    lines = "".join(f"      {line}\n" for line in query.splitlines())
    sql = when or f"when:\n  sql:\n    query: |\n{lines}    {more}\n"
    path.write_text(
        f"id: own\nverdict: own-finding\nseverity: warning\nper: engine\n{sql}for: 3m\nkeep_firing_for: 0s\n"
        "why: it is full\ndo: [give it room]\n"
    )
    return path


def rule(folder: Path, query: str = FULL) -> Rule:
    return load_rule(written(folder, query))


def busy_then_idle(course: Course, dice: random.Random | None = None) -> None:
    for usage, seconds in ((0.2, 900), (0.7, 1200), (0.1, 900)):
        for _ in range(seconds // 60):
            course.go(usage, 60)
            course.live.commit()
            if dice is not None and dice.random() < 0.1:
                course.live.kill()
                course.live.start()
            elif dice is not None and dice.random() < 0.1:
                course.live.restart()
    course.live.commit()


def test_it_fires_and_resolves_as_the_query_says(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path))
    busy_then_idle(course)
    # five full minutes above the half, asked every minute, for three minutes
    fired, over = course.told()
    assert (fired.state, fired.at_s, fired.value) == ("firing", 900 + 300 + 180, 0.7)
    assert fired.since_s == 900
    assert (over.state, over.at_s) == ("resolved", 900 + 1200)
    [event, _] = course.live.store.alert_events()
    assert event.evidence == {"value": 0.7, "most_running": 4.0}
    assert event.key.run is None
    course.live.kill()


def test_a_long_log_is_asked_about_all_along(tmp_path: Path) -> None:
    """A replay stores twenty thousand records at a time: days, of which each minute counts."""
    log = tmp_path / "vllm.log"
    with log.open("wb") as out:
        for minute in range(66 * 60):
            usage = 0.7 if 300 <= minute < 360 else 0.2
            out.write(line_of(record(minute * 60.0, running=4, kv_usage=usage)) + b"\n")
    told = replayed(log, tmp_path / "replay.duckdb", (load_rule(written(tmp_path, more="every: 5m")),))
    assert [(one.state, one.at_s - START_S) for one in told] == [("firing", 310 * 60.0), ("resolved", 360 * 60.0)]


@pytest.mark.parametrize("seed", range(2))
def test_live_with_restarts_is_replay(tmp_path: Path, seed: int) -> None:
    own = rule(tmp_path)
    course = Course(tmp_path, own)
    busy_then_idle(course, random.Random(seed))
    assert course.live.told() == replayed(course.log, tmp_path / "replay.duckdb", (own,))
    assert [one.state for one in course.told()] == ["firing", "resolved"]
    course.live.kill()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT engine FROM nothing WHERE ts < $now", "nothing"),
        ("SELECT ts FROM kv WHERE ts < $now", "no column engine"),
        ("SELECT engine FROM kv WHERE ts < $now AND CAST(engine AS INTEGER) > 0", "Could not convert"),
        ("DELETE FROM samples WHERE ts < $now", "no reading statement"),
        ("SELECT content AS engine FROM read_text('/etc/passwd') WHERE $now > 0", "read_text"),
    ],
)
def test_a_query_that_fails_is_broken_and_the_alert_stands(tmp_path: Path, query: str, why: str) -> None:
    own = rule(tmp_path)
    course = Course(tmp_path, own)
    course.go(0.7, 900)
    assert [one.state for one in course.told()] == ["firing"]
    written(tmp_path, query)
    course.live.stop()
    course.live.rules = (load_rule(tmp_path / "own.yaml"),)
    course.live.start()
    course.go(0.1, 600)
    assert [one.state for one in course.told()] == ["firing"]
    [stream] = course.live.intake.streams()
    [(_, _, last, standing)] = list(stream.pipeline.at_work())
    assert isinstance(last, Broken)
    assert why in last.why
    assert standing is not None
    course.live.kill()


def test_text_of_an_answer_goes_nowhere(tmp_path: Path) -> None:
    course = Course(tmp_path, rule(tmp_path))
    course.go(0.7, 900)
    course.live.commit()
    [stream] = course.live.intake.streams()
    [(_, _, last, _)] = list(stream.pipeline.at_work())
    assert isinstance(last, Finding)
    assert set(last.evidence) == {"value", "most_running"}
    course.live.kill()


@pytest.mark.parametrize(
    ("when", "what"),
    [
        ("when: {sql: {query: SELECT engine FROM kv}}\n", "$now"),
        ("when: {sql: {query: SELECT engine FROM kv WHERE ts < $now, every: 1s}}\n", "1m or longer"),
        ("when: {all: [{sql: {query: SELECT engine FROM kv WHERE ts < $now}}]}\n", "cannot be combined"),
        (
            "when: {threshold: {signal: kv_usage, above: 50%}}\nunless: [{sql: {query: SELECT 1 WHERE 1 < $now}}]\n",
            "cannot be combined",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_line(tmp_path: Path, when: str, what: str) -> None:
    path = written(tmp_path, when=when)
    with pytest.raises(FaultsError) as error:
        load_rule(path)
    assert what in str(error.value)
    assert f"{path}:5" in str(error.value) or f"{path}:6" in str(error.value)


def test_check_tries_the_query(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    config = tmp_path / "etc" / "kvlogd.yaml"
    config.write_text("{}\n")
    written(tmp_path)
    fine = kvlogd("check", "--config", str(config), "--rules", str(tmp_path))
    assert (fine.status, fine.err) == (0, "")
    written(tmp_path, "SELECT engin FROM kv WHERE ts < $now")
    wrong = kvlogd("check", "--config", str(config), "--rules", str(tmp_path))
    assert wrong.status == 2
    assert "own.yaml" in wrong.err
    assert "engin" in wrong.err
    shown = kvlogd("rules", "show", "own", "--rules", str(tmp_path))
    assert "SELECT engin FROM kv" in shown.out


TEST = """\
rule: own
cases:
  - name: full for ten minutes
    series: {running: "4 x60", kv_usage: "0.7 x60"}
    expect: [{fires: true, after: 3m, before: 9m}]
  - name: half full
    series: {running: "4 x60", kv_usage: "0.4 x60"}
    expect: [{fires: false}]
"""


def test_such_a_rule_has_tests_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "own.test.yaml"
    path.write_text(TEST)
    results = list(run_file(path, {"own": rule(tmp_path)}))
    assert [(result.case, list(result.faults)) for result in results] == [
        ("full for ten minutes", []),
        ("half full", []),
    ]


def test_the_times_in_a_query_are_those_of_the_log(tmp_path: Path) -> None:
    own = rule(tmp_path)
    assert own.query is not None
    assert "TIMESTAMPTZ '2026" in own.query.at(START_S)
    assert "$now" not in own.query.at(START_S)
