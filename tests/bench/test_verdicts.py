"""Streams go through kvlogd's own replay, and what comes out is summed up, held against the bars and shown."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.figures import OURS, SIGHTED, Judged, figures, tables, verdict_on_bars
from bench.rightness import Made, as_markdown, as_text, page, wrong
from bench.rivals import RIVALS
from bench.scoring import WEEK_S, Question, Score
from bench.traces.labels import TraceClass
from bench.traces.plan import Hang, Leak, LeakMode
from bench.traces.server import run
from bench.verdicts import as_json, judged, replayed, rules_in
from tests.bench.streams import HOUR_S, plan_of

ROOT = Path(__file__).parent.parent.parent
MADE = Made("python bench/verdicts.py", 7, 3, "1.0")
FOUND = Score(True, 7200.0, 3600.0, 0.03, (), WEEK_S)
MISSED = Score(True, None, None, None, (), WEEK_S)
CLEAN = Score(False, None, None, None, (), WEEK_S)
FALSE = CLEAN._replace(false_at_s=(3600.0,))
NEITHER = Score(None, None, None, None, (), 0.0)


def one(number: int, leak: Score, *, idle: bool = True, rules: Sequence[str] = (OURS,)) -> Judged:
    """Return a stream on which each rule that is asked for a leak has the same score."""
    scores = {question: dict.fromkeys(RIVALS[question], CLEAN) for question in Question}
    scores[Question.LEAK] |= dict.fromkeys((*rules, *RIVALS[Question.LEAK]), leak)
    spent_s = {name: 0.1 for question in Question for name in RIVALS[question]}
    name = f"leak_abort-7-{number:03d}-0"
    return Judged(name, TraceClass.LEAK_ABORT, "constant", idle, WEEK_S, 60480, 2.0, scores, spent_s)


MIXED = [one(0, FOUND), one(1, FOUND._replace(loss=0.05)), one(2, MISSED, idle=False), one(3, FALSE), one(4, NEITHER)]


def test_figures_leave_out_what_counts_neither_way() -> None:
    got = figures(MIXED, Question.LEAK, OURS)
    assert (got.streams, got.positives, got.found, got.false_pages, got.clean_weeks) == (4, 3, 2, 1, 4.0)
    assert got.losses == [0.03, 0.05]
    assert got.delays_h == [1.0, 1.0]
    assert got.cpu_s_per_week == 2.0
    assert figures(MIXED, Question.LEAK, "usage > 90 % for 10 min").cpu_s_per_week == pytest.approx(0.1)


def test_bars_tell_what_was_missed_and_what_has_no_rule() -> None:
    words = {(held.bar.question, held.bar.group.name, held.bar.what): held.word for held in verdict_on_bars(MIXED)}
    assert words[Question.LEAK, "idle lines", "recall"] == "kept"
    assert words[Question.LEAK, "never idle", "recall"] == "MISSED"
    assert words[Question.LEAK, "all", "false pages per engine-week"] == "MISSED"
    assert words[Question.LATENCY_CREEP, "all", "recall"] == "no such rule"


def test_tables_are_aligned_and_the_page_marks_the_missed() -> None:
    shown = tables(MIXED)
    lines = as_text(shown[0]).splitlines()
    assert lines[1].index("found") == lines[2].index("2/3")
    assert len(shown[0].rows) == 3 * (1 + len(RIVALS[Question.LEAK]))
    text = page(MIXED, MADE)
    assert "| leak | kvlogd | never idle | recall | >= 0.85 | 0 | MISSED | [0, 0.793] |" in text
    assert "| kvlogd |  | no such rule |" in text
    assert "- leak: missed in leak_abort-7-002-0 (constant) by kvlogd" in text
    assert "- leak: false in leak_abort-7-003-0 (constant) by kvlogd at 1.00 h" in text
    assert "seed 7, 3 traces, 5 engine streams, 5 engine-weeks" in text
    assert as_markdown(shown[0]).count("\n") == len(shown[0].rows) + 1


def test_nothing_wrong_is_said_so() -> None:
    assert list(wrong([one(0, FOUND)])) == []
    assert "- none" in page([one(0, FOUND)], MADE)


def test_json_holds_each_streams_scores() -> None:
    told = json.loads(as_json(MIXED, MADE))
    assert told["made"]["seed"] == 7
    assert told["streams"][2]["scores"]["leak"][OURS]["hit_s"] is None
    assert {bar["result"] for bar in told["bars"]} == {"kept", "MISSED", "no such rule"}


def test_a_leak_is_found_by_replay_and_scored() -> None:
    plan = plan_of(TraceClass.LEAK_REQUEST, number=4, duration_s=4 * HOUR_S)
    kinds = [kind._replace(per_s=[0.05] * len(kind.per_s)) for kind in plan.kinds]
    leak = Leak(LeakMode.REQUEST, HOUR_S, 0.9, 1.0, plan.pool_blocks // 100)
    plan = plan._replace(kinds=kinds, closed_loop=None, sessions=None, engines=1, leaking_engine=None, leak=leak)
    (stream,) = run(plan._replace(restarts_s=(), recovery=None, missing_share=0.0))
    scores = judged(stream, rules_in(None)).scores[Question.LEAK]
    for got in (scores[OURS], scores[SIGHTED]):
        assert got.positive is True
        assert got.delay_s is not None
        assert 0 < got.delay_s < HOUR_S
        assert got.false_at_s == []
    assert replayed(stream, rules_in(None))[0] == replayed(stream, rules_in(None))[0]


def test_a_folder_of_rules_takes_the_place_of_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes((ROOT / "rules" / "engine-stall.yaml").read_bytes())
    plan = plan_of(TraceClass.HANG, number=1, duration_s=4000)
    kinds = [kind._replace(per_s=[0.5] * len(kind.per_s)) for kind in plan.kinds]
    plan = plan._replace(kinds=kinds, sessions=None, hang=Hang(2400.0, 1200.0), restarts_s=(), missing_share=0.0)
    (stream,) = run(plan)
    got = judged(stream, rules_in(tmp_path)).scores
    assert got[Question.ENGINE_STALL][OURS].hit_s is not None
    assert OURS not in got[Question.LEAK]


@pytest.mark.parametrize("command", [["bench/verdicts.py", "--help"], ["-m", "bench.traces", "--help"]])
def test_the_commands_start(command: list[str]) -> None:
    asked = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert asked.returncode == 0
    assert asked.stdout.startswith("usage: ")
    assert asked.stderr == ""


def test_one_trace_is_printed_as_its_log() -> None:
    command = [sys.executable, "-m", "bench.traces", "thermal", "7", "0", "--hours", "0.5"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert asked.stderr == ""
    assert "version 0.32.0" in asked.stdout.splitlines()[0]
