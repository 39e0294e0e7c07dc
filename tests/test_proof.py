"""The SQL behind each finding gives its numbers again, as nearly as `docs/proof.md` says."""

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd import sqlgate
from kvlogd.model import AlertEvent, AlertKey, AlertState, Severity
from kvlogd.notice import EVIDENCE
from kvlogd.proof import _OF_A_LIFE, _OF_MORE, sql_for, stamp
from kvlogd.reading import GpuSample, HostSample
from kvlogd.replay import Options, opened_store, replay
from kvlogd.rows import Batch
from kvlogd.rules import load_rule, load_rules, shipped_folder
from kvlogd.ruletest import Case, TestFile, played, readings_of, records_of
from kvlogd.sheet import Format
from kvlogd.sideline import Sideline
from kvlogd.store import Store
from kvlogd.yamlfile import load
from tests.lines import START_S

DATA = Path(__file__).parent / "data"
RULES = {rule.id: rule for rule in load_rules([shipped_folder()])}
MOST_CHARS = 700

Rows = Sequence[Mapping[str, Any]]
Facts = Mapping[str, float]


def near(found: float, told: float, *, within: float = 0.0, share: float = 0.0) -> bool:
    return abs(found - told) <= max(within, share * abs(told), 1e-6)


def leak(rows: Rows, told: Facts) -> bool:
    if "records" in rows[0]:  # between idle spells
        return near(rows[0]["idle_usage"] - rows[0]["lowest_idle_usage"], told["shift"], within=0.002)
    n = sum(row["n"] for row in rows)
    shift = sum(row["n"] * row["shift"] for row in rows) / n
    lost_per_h = sum(row["n"] * row["lost_per_h"] for row in rows) / n
    usage = [row["usage_now"] for row in rows]
    loads = {"low": rows[0]["running"], "high": rows[-1]["running"]}
    return (
        near(shift, told["shift"], within=0.01, share=0.15)
        and near(lost_per_h, told["lost_per_h"], share=0.15)
        and min(usage) - 0.03 <= told["usage_now"] <= max(usage) + 0.03
        and loads["low"] <= told["running_high"]
        and told["running_low"] <= loads["high"]
    )


def residue(rows: Rows, told: Facts) -> bool:
    # neighbouring spells count as one
    newest = min(row["idle_usage"] for row in rows[:2])
    lowest = rows[0]["lowest_idle_usage"]
    if "busy_usage" in told and not near(rows[0]["busy_usage"], told["busy_usage"]):
        return False
    is_there = near(rows[0]["idle_usage"], told["idle_usage"]) or near(newest, told["idle_usage"])
    return is_there and near(lowest, told["lowest_idle_usage"]) and len(rows) >= told["spells"]


def stall(rows: Rows, told: Facts) -> bool:
    return all(
        rows[0][name] == told[name] for name in ("running", "waiting", "usage_now", "generation_tps", "silent_s")
    )


def creep(rows: Rows, told: Facts) -> bool:
    before, now = rows
    return (
        (before["now"], now["now"]) == (False, True)
        and near(now["token_s"], told["token_s"], share=0.12)
        and near(before["token_s"], told["token_before_s"], share=0.25)
        and near(now["running"], told["running"], within=1.0, share=0.15)
    )


def recovery(rows: Rows, told: Facts) -> bool:
    life_s = sorted(row["life_s"] for row in rows)
    if "lost" in told:
        worse = max(row["usage_last"] - row["usage_first"] for row in rows)
        ill = near(worse, told["lost"], within=0.06)
    elif "slower" in told:
        worse = max(row["token_s_last"] / row["token_s_first"] for row in rows) - 1
        ill = near(worse, told["slower"], within=0.03)
    else:
        ill = sum(row["ended"] in ("crash", "killed", "hang") for row in rows) >= told["lives"]
    return ill and len(rows) >= told["lives"] and life_s[0] <= told["life_s"] <= life_s[-1]


def skew(rows: Rows, told: Facts) -> bool:
    own, others = rows[0], sorted(rows[1:], key=lambda row: float(row["pace"]))
    name = "pace" if "own_pace" in told else "held"
    siblings = [float(row[name]) for row in others]
    return (
        len(others) == told["siblings"]
        and near(own[name], told[f"own_{name}"], share=0.001)
        and min(siblings) <= told[f"siblings_{name}"] <= max(siblings)
        and near(own["running"], told["running"], share=0.001)
    )


def collapse(rows: Rows, told: Facts) -> bool:
    usual, now = rows
    return (
        near(now["hit_rate"], told["hit_rate"], within=0.001)
        and near(usual["median_hit_rate"], told["usual_hit_rate"], within=0.02)
        and near(now["running"], told["running"], share=0.1)
        and near(usual["prompts_each"], told["usual_prompts_each"], share=0.05)
    )


def slowed(rows: Rows, told: Facts) -> bool:
    [row] = rows
    return (
        row["evictions_seen"] == told["evictions_seen"]
        and near(row["generation_tps"], told["generation_tps"], share=0.1)
        and near(row["usual_tps"], told["usual_tps"], share=0.15)
    )


def same(**within: float) -> Callable[[Rows, Facts], bool]:
    """The first row has these numbers of the evidence, within a share of each."""
    return lambda rows, told: all(near(rows[0][name], told[name], share=share) for name, share in within.items())


CHECKS: Sequence[tuple[str, Callable[[Rows, Facts], bool]]] = (
    # the evidence that a query is for, and how near its answer must be
    ("shift", leak),
    ("idle_usage", residue),
    ("lives", recovery),
    ("crashed", lambda rows, _: "crash" in {row["kind"] for row in rows}),
    ("silent_s", stall),
    ("token_s", creep),
    ("beside", same(queued=0.02, beside=0.02, usage_now=0.0)),
    ("longest_tokens", same(queued=0.0, longest_tokens=0.0, pool_tokens=0.0)),
    ("full_for", same(full_for=0.001, usage_now=0.0)),
    # V0's first warning is of one preemption, each other of fifty
    ("evictions_per_min", lambda rows, told: near(rows[0]["evictions"], told["evictions"], within=49.0)),
    ("evictions_seen", slowed),
    ("usual_hit_rate", collapse),
    ("siblings", skew),
    ("frozen_for", lambda rows, told: (rows[0]["frozen_for"], rows[0]["different"]) == (told["frozen_for"], 1)),
    ("log_stopped_for", lambda rows, told: near(rows[0]["log_stopped_for"], told["log_stopped_for"], within=20.0)),
    (
        "metrics_frozen_for",
        lambda rows, told: near(rows[0]["metrics_frozen_for"], told["metrics_frozen_for"], within=20.0),
    ),
    ("blind_for", lambda rows, told: told["blind_for"] in {row["blind_for"] for row in rows}),
)


def check(store: Store, event: AlertEvent) -> str:
    """Return which evidence was recomputed; fails where the query is refused or its numbers are others."""
    sql, out = sql_for(event), io.StringIO()
    assert len(sql) <= MOST_CHARS
    sqlgate.answer(store, sql, Format.JSON, out)
    rows = json.loads(out.getvalue())
    name, agrees = next((name, agrees) for name, agrees in CHECKS if name in event.evidence)
    assert rows, sql
    assert agrees(rows, event.evidence), f"{dict(event.evidence)}\n{sql}\n{rows}"
    return name


LOGS = sorted([*DATA.glob("cases/*.log.gz"), *DATA.glob("real/*.log")])


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_the_numbers_of_a_log_come_out_again(log: Path, tmp_path: Path) -> None:
    expected = (log.parent / f"{log.name.split('.')[0]}.yaml").read_text(encoding="utf-8")
    with opened_store(tmp_path / "kv.duckdb") as store:
        outcome = replay([log], list(RULES.values()), store, Options(UTC, 2026))
        found = [check(store, event) for event in outcome.alerts if event.state is AlertState.FIRING]
    assert found or "fires: true" not in expected


@contextmanager
def stored(case: Case, rule: str) -> Iterator[tuple[Store, Sequence[AlertEvent]]]:
    harvest = played(RULES[rule], case, list(records_of(case, case.series or {}, 0))).harvest()
    batch = Batch(
        engines=harvest.engines,
        runs=harvest.runs,
        samples=harvest.samples,
        sample_runs=harvest.sample_runs,
        events=harvest.events,
        scrapes=harvest.scrapes,
    )
    with opened_store(None) as store:
        store.commit(batch)
        firing = [event for event in harvest.alert_events if event.state is AlertState.FIRING]
        yield store, [event for event in firing if not event.engine_index]


def read_beside(case: Case, rule: str) -> int:
    """Return how many findings about a GPU or a host show their numbers again; fails where they are others."""
    sideline, samples = Sideline([RULES[rule]]), readings_of(case)
    sideline.take(samples)
    sideline.advance(samples[-1].ts_s)
    events = [event for event in sideline.harvest().alert_events if event.state is AlertState.FIRING]
    with opened_store(None) as store:
        gpus = [sample for sample in samples if isinstance(sample, GpuSample)]
        hosts = [sample for sample in samples if isinstance(sample, HostSample)]
        store.commit(Batch(gpu_samples=gpus, host_samples=hosts))
        for event in events:
            out = io.StringIO()
            sqlgate.answer(store, sql_for(event), Format.JSON, out)
            rows = json.loads(out.getvalue())
            assert rows
            if "grown_mib" in event.evidence:
                assert near(
                    rows[0]["grown_mib"], event.evidence["grown_mib"], within=0.25 * event.evidence["grown_mib"]
                )
    return len(events)


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("tests/*.yaml")), ids=lambda path: path.stem)
def test_the_numbers_of_each_rule_come_out_again(path: Path) -> None:
    file = TestFile.model_validate(load(path).value)
    cases = [case for case in file.cases if case.log is None and any(expect.fires for expect in case.expect)]
    found = 0
    for case in cases:
        if case.series is None and (case.gpus or case.host is not None):
            found += read_beside(case, file.rule)
            continue
        with stored(case, file.rule) as (store, events):
            # one that fired before and is louder now has newer evidence than its beginning
            known = [event for event in events if event.reason != "severity changed"]
            found += len([check(store, event) for event in known])
    assert found >= len(cases) > 0


def event(evidence: Mapping[str, float], run: int | None = 7, scope: str = "a/0") -> AlertEvent:
    key = AlertKey("r", scope, run)
    times = (START_S + 3600.25, START_S + 0.5)
    return AlertEvent(key, AlertState.FIRING, "r", Severity.INFO, "it's \"$(a)`", 0, *times, None, evidence)


def test_evidence_without_a_query_of_its_own_shows_the_records() -> None:
    assert sql_for(event({"kv_usage": 0.95, "bound": 0.9})) == (
        "SELECT ts, running, waiting, generation_tps, kv_usage FROM kv WHERE run_id = 7 AND ts BETWEEN "
        "'2026-11-29 13:30:00.500Z' AND '2026-11-29 15:30:00.250Z' ORDER BY ts"
    )
    assert "WHERE engine = 'it''s?/0' AND" in sql_for(event({}, None, "it's\n/0"))


OWN = """\
id: own
verdict: own
severity: warning
per: engine
when:
  sql:
    query: |
      -- busy engines
      SELECT engine, max(running) AS value FROM kv
      WHERE ts BETWEEN $now - INTERVAL 1 HOUR AND $now{}
      GROUP BY engine;
why: so
do: [look]
"""


def test_a_rule_with_a_query_of_its_own_is_shown_that(tmp_path: Path, empty: Store) -> None:
    (tmp_path / "own.yaml").write_text(OWN.format(""))
    sql = sql_for(event({"value": 9.0}, None), load_rule(tmp_path / "own.yaml"))
    now = "TIMESTAMPTZ '2026-11-29T15:00:00.250000+00:00'"
    assert sql == (
        "SELECT engine, max(running) AS value FROM kv "
        f"WHERE ts BETWEEN {now} - INTERVAL 1 HOUR AND {now} GROUP BY engine"
    )
    sqlgate.answer(empty, sql, Format.JSON, io.StringIO())
    (tmp_path / "own.yaml").write_text(OWN.format(" -- of late"))
    assert "FROM kv WHERE engine = 'a/0'" in sql_for(event({}, None), load_rule(tmp_path / "own.yaml"))


def of_a_gpu(source: str, scope: str, **evidence: float) -> AlertEvent:
    return event(evidence, None, scope)._replace(source=source, since_s=START_S, at_s=START_S + 3600)


def test_what_is_read_beside_the_log_has_queries_too(tmp_path: Path) -> None:
    out = io.StringIO()
    with Store.open(tmp_path / "kv.duckdb") as store:
        gpus = "INSERT INTO gpu_samples (ts, gpu, memory_used_mib, sm_clock_mhz) VALUES (to_timestamp(?), ?, ?, ?)"
        hosts = "INSERT INTO host_samples (ts, source, rss_mib) VALUES (to_timestamp(?), ?, ?)"
        for i in range(61):
            at_s = START_S + 60 * i
            rows = [(gpus, (at_s, "GPU-a", 1000.0 + 2 * i, 900.0)), (gpus, (at_s, "GPU-b", 1000.0, 1700.0))]
            store.transact([*rows, (hosts, (at_s, "it's", 5000.0 + i))])
        for told in (
            of_a_gpu("@gpu", "gpu/GPU-a", grown_mib=120.0, used_mib=1120.0),
            of_a_gpu("@host", "it's", grown_mib=60.0, used_mib=5060.0),
            of_a_gpu("@gpu", "gpu/GPU-a", own_clock_mhz=900.0),
            of_a_gpu("@gpu", "gpu/GPU-b", lost_for=70.0),
        ):
            sqlgate.answer(store, sql_for(told), Format.CSV, out)
    answers = [line.split(",") for line in out.getvalue().splitlines()]
    assert [float(cell) for cell in answers[1]] == pytest.approx([1120, 120, 120, 61])
    assert [float(cell) for cell in answers[3]] == pytest.approx([5060, 60, 60, 61])
    assert [row[:2] for row in answers[5:7]] == [["GPU-a", "900.0"], ["GPU-b", "1700.0"]]
    assert {row[1] for row in answers[8:]} == {"GPU-b"}


@pytest.mark.parametrize(
    ("at_s", "up", "text"),
    [
        (START_S, False, "'2026-11-29 14:00:00Z'"),
        (START_S + 0.1234, False, "'2026-11-29 14:00:00.123Z'"),
        (START_S + 0.1234, True, "'2026-11-29 14:00:00.124Z'"),
        (START_S + 0.123, True, "'2026-11-29 14:00:00.123Z'"),
        (START_S + 0.9999, True, "'2026-11-29 14:00:01Z'"),
    ],
)
def test_a_time_is_rounded_outwards(at_s: float, up: bool, text: str) -> None:
    assert stamp(at_s, up=up) == text


@pytest.fixture(scope="module")
def empty() -> Iterator[Store]:
    with opened_store(None) as store:
        yield store


NUMBERS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, math.nan, math.inf]), st.floats(allow_nan=False))


@given(
    st.sampled_from([needed for needed, _ in (*_OF_A_LIFE, *_OF_MORE)]),
    st.dictionaries(
        st.sampled_from([*EVIDENCE, "last_s", "stretch_s", "apart_s", "grown_mib", "own_clock_mhz"]), NUMBERS
    ),
    st.sampled_from([7, None]),
    st.text(),
    st.sampled_from(["@gpu", "@host", "it's", "a"]),
)
@settings(deadline=None, max_examples=150)
def test_any_evidence_makes_a_query_that_the_gate_takes(
    empty: Store, needed: set[str], more: dict[str, float], run: int | None, scope: str, source: str
) -> None:
    evidence = dict.fromkeys(needed, 100.0) | more
    sql = sql_for(event(evidence, run, scope)._replace(source=source))
    assert sql.isprintable()
    sqlgate.answer(empty, sql, Format.JSON, io.StringIO())
