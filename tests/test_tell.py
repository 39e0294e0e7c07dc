import json
import math
from pathlib import Path

import pytest

from kvlogd.errors import SourceError
from kvlogd.model import AlertEvent, AlertKey, AlertState, Engine, Gap, Run, Severity
from kvlogd.outcome import Outcome, SourceReport
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.tell import json_lines, status_of, text_blocks
from tests.lines import START_S

RULES = load_rules([shipped_folder()])
ALERT_KEYS = {
    "type", "state", "rule", "verdict", "severity", "source", "engine", "engine_index", "run", "at", "since", "value",
    "summary", "evidence",
}  # fmt: skip
SUMMARY_KEYS = {
    "type", "stats_lines", "lines", "unparsed_stats_lines", "engines", "runs", "first", "last", "gaps", "abstained",
}  # fmt: skip
BESIDES = {"duplicates", "blind"}
"""What the summary says beyond DESIGN section 2."""


def event(
    state: AlertState = AlertState.FIRING,
    *,
    at_s: float = 600.0,
    severity: Severity = Severity.CRITICAL,
    rule: str = "kv-leak",
    run: int | None = 9,
    value: float | None = -0.021,
    evidence: dict[str, float] | None = None,
    reason: str = "",
) -> AlertEvent:
    return AlertEvent(
        AlertKey(rule, "vllm.log/0", run), state, rule, severity, "vllm.log", 0, START_S + at_s, START_S, value,
        {"kv_usage": 0.5} if evidence is None else evidence, reason,
    )  # fmt: skip


def report(
    *,
    stats_lines: int = 12_400,
    lines: int = 20_511,
    engines: int = 1,
    runs: int = 2,
    unparsed: int = 0,
    duplicates: int = 0,
    gaps: tuple[Gap, ...] = (),
    abstained: tuple[tuple[str, str, str], ...] = (),
    blind: str | None = None,
    span: tuple[float | None, float | None] = (START_S, START_S + 7200),
    source: str = "vllm.log",
) -> SourceReport:
    return SourceReport(
        source, stats_lines, lines, unparsed, duplicates, engines, runs, *span, gaps, abstained, blind, True
    )  # fmt: skip


def outcome(
    *alerts: AlertEvent, sources: tuple[SourceReport, ...] = (report(),), errors: tuple[SourceError, ...] = ()
) -> Outcome:
    run = Run(9, 1, 2, START_S, True)
    return Outcome(alerts, [Engine(1, "vllm.log", 0, "vllm.log/0")], [run], sources, errors)


def as_json(found: Outcome) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in json_lines(found)]


def text(found: Outcome, *, db: Path | None = None, colour: bool = False) -> list[str]:
    return list(text_blocks(found, RULES, db, colour))


# --- JSON


def test_a_firing_alert_has_the_keys_of_the_contract() -> None:
    alert, _ = as_json(outcome(event()))
    assert set(alert) == ALERT_KEYS
    assert alert == {
        "type": "alert",
        "state": "firing",
        "rule": "kv-leak",
        "verdict": "kv-leak",
        "severity": "critical",
        "source": "vllm.log",
        "engine": "vllm.log/0",
        "engine_index": 0,
        "run": 2,
        "at": "2026-11-29T14:10:00+00:00",
        "since": "2026-11-29T14:00:00+00:00",
        "value": -0.021,
        "summary": "kv-leak vllm.log/0: kv_usage 0.5",
        "evidence": {"kv_usage": 0.5},
    }


def test_a_resolved_alert_says_why() -> None:
    alert, _ = as_json(outcome(event(AlertState.RESOLVED, reason="restart")))
    assert set(alert) == ALERT_KEYS | {"reason"}
    assert (alert["state"], alert["reason"]) == ("resolved", "restart")


def test_the_summary_comes_last_with_the_keys_of_the_contract() -> None:
    gap = Gap("vllm.log", START_S, "line too long", 3)
    lines = as_json(
        outcome(
            event(),
            sources=(
                report(gaps=(gap,), abstained=(("kv-leak", "vllm.log/0", "too young"),)),
                report(
                    stats_lines=0, lines=5, engines=0, runs=0, span=(None, None), blind="statistics are off", source="b"
                ),
                report(span=(START_S - 60, START_S + 60), unparsed=2, duplicates=4),
            ),
        )
    )
    assert [line["type"] for line in lines] == ["alert", "summary"]
    summary = lines[-1]
    assert set(summary) == SUMMARY_KEYS | BESIDES
    assert (summary["stats_lines"], summary["lines"], summary["engines"], summary["runs"]) == (24_800, 41_027, 2, 4)
    assert (summary["unparsed_stats_lines"], summary["duplicates"]) == (2, 4)
    assert (summary["first"], summary["last"]) == ("2026-11-29T13:59:00+00:00", "2026-11-29T16:00:00+00:00")
    assert summary["gaps"] == [{"source": "vllm.log", "reason": "line too long", "count": 3}]
    assert summary["abstained"] == [{"rule": "kv-leak", "engine": "vllm.log/0", "why": "too young"}]
    assert summary["blind"] == [{"source": "b", "why": "statistics are off"}]


def test_without_any_record_the_span_is_null() -> None:
    [summary] = as_json(outcome(sources=(report(span=(None, None), stats_lines=0),)))
    assert (summary["first"], summary["last"]) == (None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_is_null_or_left_out(value: float | None) -> None:
    evidence = {"x": 1.0} | ({} if value is None else {"y": value})
    alert, _ = as_json(outcome(event(value=value, evidence=evidence)))
    assert alert["value"] is None
    assert alert["evidence"] == {"x": 1.0}


def test_an_alert_of_a_source_has_no_run() -> None:
    alert, _ = as_json(outcome(event(run=None, rule="data-source")))
    assert alert["run"] is None


# --- text


def test_a_block_says_what_since_when_and_what_to_do() -> None:
    lines = text(outcome(event(evidence={"running": 4.0}), event(AlertState.RESOLVED, at_s=5400, reason="restart")))
    assert lines[:4] == [
        "CRITICAL kv-leak vllm.log/0: running 4",
        "    since 2026-11-29 14:00:00 UTC; found 2026-11-29 14:10:00 UTC, run 2 of this engine",
        "    over  2026-11-29 15:30:00 UTC, after 1 h 30 min (restart)",
        "      requests running  4",
    ]
    [rule] = [rule for rule in RULES if rule.id == "kv-leak"]
    assert lines[4 : 5 + len(rule.do)] == ["    what to do", *[f"      - {step}" for step in rule.do]]


def test_what_to_do_is_said_once_a_rule() -> None:
    second = [event(AlertState.RESOLVED, at_s=700, reason="cleared"), event(at_s=900)]
    lines = text(outcome(event(), *second))
    assert sum(line.startswith("CRITICAL") for line in lines) == 2
    assert lines.count("    what to do") == 1


def test_a_change_of_severity_is_no_second_block() -> None:
    lines = text(outcome(event(), event(at_s=700, reason="severity changed")))
    assert sum(line.startswith("CRITICAL") for line in lines) == 1


def test_a_rule_that_is_gone_is_told_without_advice() -> None:
    lines = text(outcome(event(rule="my-old-rule")))
    assert lines[0].startswith("CRITICAL my-old-rule")
    assert "    what to do" not in lines


def test_the_query_cannot_run_what_a_file_name_says() -> None:
    fired = event()._replace(key=AlertKey("kv-leak", "x$(id)`id`.log/0", None))
    [line] = [line for line in text(outcome(fired), db=Path("a b.duckdb")) if "SELECT" in line]
    assert "--db 'a b.duckdb'" in line
    assert r"x\$(id)\`id\`.log/0" in line


def test_the_query_is_given_where_a_store_is_kept() -> None:
    assert not any("SELECT" in line for line in text(outcome(event())))
    [line] = [line for line in text(outcome(event()), db=Path("h.duckdb")) if "SELECT" in line]
    assert line.startswith('    kvlogd sql --db h.duckdb "SELECT ')


def test_colour_only_when_asked() -> None:
    found = outcome(event(), event(severity=Severity.INFO, rule="x"), sources=(report(blind="off"),))
    db = Path("h.duckdb")
    assert not any("\x1b" in line for line in text(found, db=db))
    coloured = text(found, db=db, colour=True)
    assert any("\x1b[1;31m" in line for line in coloured)
    assert all(line.count("\x1b") == 0 or line.rstrip().endswith("\x1b[0m") for line in coloured)


def test_what_was_read_is_said_in_numbers() -> None:
    [nothing, line] = text(outcome())
    assert nothing == "Nothing found."
    assert line == (
        "Read vllm.log: 12,400 stats records in 20,511 lines, 1 engine, 2 runs, "
        "2026-11-29 14:00:00 UTC to 2026-11-29 16:00:00 UTC (2 h)"
    )


def test_the_end_says_what_was_found_and_what_still_stands() -> None:
    over = [event(rule="engine-stall"), event(AlertState.RESOLVED, at_s=900.0, rule="engine-stall", reason="restart")]
    warned = event(rule="latency-creep", severity=Severity.WARNING)
    *_, found, first, second = text(outcome(warned, *over, event()))
    assert found == "Found: 2 critical, 1 warning"
    assert first.startswith("  still there where the log ends: kv-leak vllm.log/0: ")
    assert second.startswith("  still there where the log ends: latency-creep vllm.log/0: ")
    assert text(outcome(*over))[-2:] == ["Found: 1 critical", "  all of it was over before the log ends"]
    many = [event(rule="kv-leak", run=run) for run in range(20)]
    assert text(outcome(*many))[-1] == "  and 12 more"
    assert not [line for line in text(outcome()) if line.startswith("Found")]


def test_one_is_singular() -> None:
    [_, line] = text(outcome(sources=(report(stats_lines=1, lines=1, engines=1, runs=1, span=(None, None)),)))
    assert line == "Read vllm.log: 1 stats record in 1 line, 1 engine, 1 run"


def test_what_is_missing_is_said() -> None:
    source = report(
        stats_lines=0,
        unparsed=1_234,
        duplicates=7,
        gaps=(Gap("vllm.log", None, "line too long", 3),),
        abstained=(("kv-leak", "vllm.log/0", "too young"),),
        blind="statistics are off",
    )
    lines = text(outcome(sources=(source,)))
    assert lines[0] == "Nothing to judge."
    assert lines[2:] == [
        "  no stats record: statistics are off",
        "  1,234 stats-like lines of a shape that kvlogd does not know",
        "  7 records stood there twice: counted once",
        "  line too long: 3",
        "  could not judge kv-leak on vllm.log/0: too young",
    ]


def test_a_name_cannot_steer_the_terminal() -> None:
    lines = text(outcome(sources=(report(source="\x1b[2Jx.log", abstained=(("r", "\x07.log/0", "why"),)),)))
    assert not any(letter in line for line in lines for letter in "\x1b\x07")


# --- exit status


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (outcome(), 0),
        (outcome(event(severity=Severity.INFO)), 0),
        (outcome(event(severity=Severity.WARNING)), 1),
        (outcome(event()), 1),
        (outcome(event(), event(AlertState.RESOLVED, reason="cleared")), 1),
        (outcome(event(AlertState.RESOLVED, reason="cleared")), 0),
        (outcome(errors=(SourceError("gone"),)), 2),
        (outcome(event(), errors=(SourceError("gone"),)), 2),
        (outcome(sources=(report(), report(stats_lines=0, blind="off"))), 1),
    ],
)
def test_the_exit_status(found: Outcome, status: int) -> None:
    assert status_of(found) == status
