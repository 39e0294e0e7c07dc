import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd import notice
from kvlogd.model import AlertEvent, AlertKey, AlertState, Severity
from tests.lines import START_S

MINUS = "\N{MINUS SIGN}"
LEAK = {"shift": 0.06, "shift_error": 0.004, "lost_per_h": 0.021, "running_low": 8.0, "running_high": 8.4}
HOUR = 3600.0


def event(
    evidence: dict[str, float],
    *,
    rule: str = "kv-leak",
    scope: str = "vllm.log/1",
    state: AlertState = AlertState.FIRING,
    lasted_s: float = 3 * HOUR,
    reason: str = "",
) -> AlertEvent:
    key = AlertKey(rule, scope, 2)
    at_s = START_S + lasted_s
    return AlertEvent(key, state, rule, Severity.CRITICAL, "vllm.log", 1, at_s, START_S, -0.021, evidence, reason)


def test_the_subject_of_a_leak_is_that_of_the_contract() -> None:
    """DESIGN section 3 gives this very line."""
    wanted = f"kv-leak vllm.log/1: free blocks {MINUS}2.1 points/h at 8 running for 3 h; full in about 7 h"
    assert notice.subject(event({**LEAK, "full_in_s": 7 * HOUR})) == wanted


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"running_high": 9.0}, "at 8 to 9 running for 3 h"),
        ({"running_high": 8.9}, "at 8 running for 3 h"),
        ({"lost_per_h": 1.5}, f"free blocks {MINUS}150 points/h at"),
        ({"lost_per_h": -0.02}, "free blocks +2.0 points/h at"),
        (
            {"full_in_s": 10 * HOUR, "full_in_low_s": 5 * HOUR, "full_in_high_s": 20 * HOUR},
            "; full in about 10 h (5 h to 20 h)",
        ),
        (
            {"full_in_s": 7200.0, "full_in_low_s": 7200.0, "full_in_high_s": 7200.0},
            "running for 3 h; full in about 2 h",
        ),
        ({"full_in_s": 7200.0, "full_in_low_s": 3600.0}, "running for 3 h; full in about 2 h"),
    ],
)
def test_the_words_of_a_leak(more: dict[str, float], wanted: str) -> None:
    assert wanted in notice.subject(event({**LEAK, **more}))


CREEP = {"token_s": 0.038, "token_before_s": 0.024, "slower": 0.58, "running": 8.2, "running_spread": 1.1}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "38 ms a token at 8±1 running, was 24 ms; +58 % for 3 h"),
        ({"running_spread": 0.3}, "38 ms a token at 8 running, was 24 ms; +58 % for 3 h"),
        ({"running": 0.41, "running_spread": 0.1}, "38 ms a token at 0.4 running, was 24 ms; +58 % for 3 h"),
        ({"token_s": 1.8, "token_before_s": 0.0094}, "1.8 s a token at 8±1 running, was 9.4 ms; +58 % for 3 h"),
    ],
)
def test_the_words_of_a_creep(more: dict[str, float], wanted: str) -> None:
    assert notice.subject(event({**CREEP, **more}, rule="latency-creep")) == f"latency-creep vllm.log/1: {wanted}"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"lost": 0.4, "next_in_s": 6 * HOUR}, "lost 40 % of the pool; next in about 6 h"),
        ({"slower": 0.35}, "got 35 % slower"),
        ({"failed": 1.0}, "died or stood still at the end"),
    ],
)
def test_the_words_of_a_recovery(more: dict[str, float], wanted: str) -> None:
    told = event({"lives": 3.0, "life_s": 9 * HOUR, **more}, rule="restart-recovery")
    assert notice.subject(told) == f"restart-recovery vllm.log/1: 3 lives of about 9 h each {wanted}"


@pytest.mark.parametrize(
    ("evidence", "wanted"),
    [
        ({"idle_usage": 0.068, "spells": 3.0}, "6.8 % of the pool held with nothing running, over 3 idle spells"),
        ({"idle_usage": 0.068, "spells": 1.0}, "6.8 % of the pool held with nothing running, over 1 idle spell"),
        ({"crashed": 1.0}, "the engine core is dead"),
        (
            {"running": 1.0, "waiting": 0.0, "silent_s": 210.0, "generation_tps": 0.0},
            "nothing moves with 1 running and 0 waiting, last record 3 min 30 s ago",
        ),
        (
            {"running": 1.0, "waiting": 0.0, "silent_s": 150.0, "generation_tps": 0.0, "gpu_work": 0.01},
            "nothing moves with 1 running and 0 waiting, last record 2 min 30 s ago; its GPU computes nothing",
        ),
        (
            {"running": 1.0, "waiting": 0.0, "silent_s": 210.0, "generation_tps": 0.0, "gpu_work": 0.29},
            "nothing moves with 1 running and 0 waiting, last record 3 min 30 s ago; "
            "its GPU computed 29.0 % of the time",
        ),
        (
            {"running": 1.0, "waiting": 0.0, "silent_s": 210.0, "generation_tps": 0.0, "gpu_work": 0.97},
            "nothing moves with 1 running and 0 waiting, last record 3 min 30 s ago; "
            "its GPU is busy: perhaps a very long prefill",
        ),
        (
            {"running": 1.0, "waiting": 12.0, "silent_s": 5.0, "generation_tps": 8.0},
            "hardly anything moves with 1 running and 12 waiting, last record 5 s ago",
        ),
        ({"frozen_for": 181.0, "bound": 180.0}, "records repeat bit by bit since 3 min 1 s"),
        ({"blind_for": 181.0, "bound": 180.0}, "no stats record for 3 min 1 s"),
        (
            {"log_stopped_for": 360.0, "bound": 300.0},
            "/metrics counts tokens, the log has no record of them for 6 min",
        ),
        (
            {"metrics_frozen_for": 360.0, "bound": 300.0},
            "the log tells of tokens, /metrics counts none for 6 min",
        ),
        ({"unread_share": 0.25, "bound": 0.1}, "stats-like lines that could not be read 25.0 %"),
        (
            {"queued": 31.3, "beside": 33.9, "queue_per_h": 1511.0, "lasted_s": 130.0, "usage_now": 0.981},
            "31 waiting beside 34 running for 2 min 10 s, pool 98.1 % full; 25.2 more a minute",
        ),
        (
            {"queued": 9.0, "beside": 8.0, "queue_per_h": -3.0, "lasted_s": 600.0, "usage_now": 1.0, "wait_s": 300.0},
            "9 waiting beside 8 running for 10 min, pool 100.0 % full, a wait of about 5 min; it does not drain",
        ),
        (
            {"queued": 12.0, "longest_tokens": 131072.0, "pool_tokens": 41000.0, "lasted_s": 60.0, "usage_now": 0.0},
            "12 waiting and none running: a request may have 131,072 tokens, the pool holds 41,000",
        ),
        ({"full_for": 77.0, "usage_now": 0.99}, "pool full for 1 min 17 s of late, and what comes is served"),
        (
            {"evictions": 151.0, "evictions_per_min": 45.3, "running": 86.6, "lost_work": 0.163},
            "45 requests a minute evicted with 87 running; 16.3 % of the work is done again",
        ),
        (
            {"evictions": 151.0, "evictions_per_min": 45.3, "running": 86.6},
            "45 requests a minute evicted with 87 running",
        ),
        (
            {"evictions_seen": 2.0, "generation_tps": 41.7, "usual_tps": 207.7, "usage_now": 0.933, "running": 7.5},
            "42 tokens/s where 208 are usual at this load, requests go back to the queue, pool 93.3 % full",
        ),
        (
            {"hit_rate": 0.372, "usual_hit_rate": 0.682, "prompts_each": 14.51, "usual_prompts_each": 4.74},
            "hit rate 37.2 % where 68.2 % was usual; 14.5 prompt tokens computed for each generated one, 4.7 before",
        ),
        (
            {"own_pace": 12.3, "siblings_pace": 31.0, "siblings": 7.0, "siblings_running": 46.0, "running": 45.0},
            "12.3 tokens/s for each request, 31.0 on 7 siblings, at 45 running beside 46",
        ),
        (
            {"own_held": 0.02, "siblings_held": 0.008, "siblings": 1.0, "siblings_running": 46.0, "running": 51.0},
            "2.0 % of the pool for each request, 0.8 % on 1 sibling, at 51 running beside 46",
        ),
        ({"kv_usage": 0.9512, "bound": 0.9}, "kv_usage 0.9512"),
        ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, "a 1, b 2, c 3"),
        ({}, "found"),
        ({"bound": 1.0}, "found"),
        ({"shift": 0.06}, "shift 0.06"),
        ({"idle_usage": 0.06}, "idle_usage 0.06"),
        ({"silent_s": 5.0}, "silent_s 5"),
        ({**LEAK, "lost_per_h": math.nan}, "shift 0.06, shift_error 0.004, running_low 8"),
        ({"crashed": math.inf}, "found"),
    ],
)
def test_the_headline_says_what_the_evidence_can_say(evidence: dict[str, float], wanted: str) -> None:
    assert notice.subject(event(evidence)) == f"kv-leak vllm.log/1: {wanted}"


def test_the_end_says_how_long_it_was_and_why() -> None:
    over = event(LEAK, state=AlertState.RESOLVED, lasted_s=5400, reason="restart")
    assert notice.subject(over) == "kv-leak vllm.log/1: over after 1 h 30 min (restart)"


def test_evidence_is_aligned_and_in_a_fixed_order() -> None:
    lines = notice.evidence_lines({"running": 4.0, "shift": 0.06, "waiting": 1234.0, "silent_s": 90.0, "unknown": 1.0})
    assert [line.split("  ")[0] for line in lines] == [
        "usage above its own past at the same load",
        "requests running",
        "requests waiting",
        "time since the last stats record",
    ]
    values = [line[len("usage above its own past at the same load") :] for line in lines]
    assert [value[:2] for value in values] == ["  "] * 4
    assert [value.strip() for value in values][1:] == ["4", "1,234", "1 min 30 s"]
    assert notice.evidence_lines({"unknown": 1.0, "running": math.nan}) == []


NUMBERS = st.one_of(st.floats(-1e12, 1e12), st.sampled_from([math.nan, math.inf, -math.inf]))


@given(
    st.dictionaries(
        st.sampled_from([*notice.EVIDENCE, "crashed", "full_in_s", "full_in_low_s", "bound", "x"]), NUMBERS
    ),
    st.sampled_from([AlertState.FIRING, AlertState.RESOLVED]),
)
@settings(deadline=None)
def test_any_evidence_can_be_told(evidence: dict[str, float], state: AlertState) -> None:
    told = event(evidence, state=state, reason="cleared")
    text = "\n".join([notice.subject(told), *notice.evidence_lines(evidence)])
    words = text.replace("finished", "").split()
    assert not {"nan", "inf", "-inf"} & set(words)
    assert "\n" not in notice.subject(told)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("vllm.log/0", "vllm.log/0"),
        ("\x1b[31mred\x1b[0m.log/0", "?[31mred?[0m.log/0"),
        ("two\nlines/0", "two?lines/0"),
        ("\udcff\u202e.log/0", "??.log/0"),
        ("ü 世.log/0", "ü 世.log/0"),
    ],
)
def test_a_label_cannot_steer_a_terminal(label: str, shown: str) -> None:
    assert notice.subject(event({}, scope=label)) == f"kv-leak {shown}: found"


def test_a_long_label_is_cut() -> None:
    assert len(notice.subject(event({}, scope="x" * 5000))) < 200


def test_times_have_their_offset() -> None:
    assert notice.when_text(START_S + 0.4) == "2026-11-29T14:00:00+00:00"
    assert notice.clock_text(START_S) == "2026-11-29 14:00:00 UTC"


def test_what_a_request_costs_has_two_digits() -> None:
    lines = notice.evidence_lines(
        {"blocks_per_request": 0.0194, "tokens_per_given_up": 1234.5, "given_up_error": 0.067}
    )
    assert [line.split("  ")[-1].strip() for line in lines] == ["0.019", "1,234", "6.7 %"]
