import html
import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlogd import notice
from kvlogd.layout import MOST_CHARS
from kvlogd.letter import MOST_SUBJECT, Device, Item, compose, device_text, foremost
from kvlogd.model import AlertEvent, AlertKey, AlertState, Letter, NoticeKind, Occupancy, Panel, Run, Severity
from kvlogd.outbox import Silence, alert_id
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.silencing import MOST_CHARS as MOST_CHARS_OF_A_SILENCE
from tests.lines import START_S

HOUR = 3600.0
RULES = {rule.id: rule for rule in load_rules([shipped_folder()])}
LEAK = {
    "shift": 0.06, "shift_error": 0.004, "lost_per_h": 0.021, "running_low": 8.0, "running_high": 8.4,
    "usage_now": 0.82, "full_in_s": 7 * HOUR, "full_in_low_s": 5 * HOUR, "full_in_high_s": 9 * HOUR,
    "blocks_lost": 600.0, "tokens_lost": 9600.0, "turnovers": 12.0,
    "stretch_s": 1800.0, "apart_s": 3 * HOUR, "compared_s": 3 * HOUR, "last_s": START_S + 3 * HOUR,
}  # fmt: skip
PANEL = Panel(
    "vllm.log/1", (START_S, START_S + 3600, START_S + 7200), (0.9, None, 0.2), (8, None, 8), (0, None, 2),
    START_S, START_S + 5400, (START_S + 3600,),
)  # fmt: skip


def event(
    *,
    rule: str = "kv-leak",
    scope: str = "vllm.log/1",
    state: AlertState = AlertState.FIRING,
    severity: Severity = Severity.CRITICAL,
    reason: str = "",
    evidence: dict[str, float] | None = None,
    lasted_s: float = 3 * HOUR,
) -> AlertEvent:
    facts = LEAK if evidence is None else evidence
    key = AlertKey(rule, scope, 2)
    return AlertEvent(key, state, rule, severity, "vllm.log", 1, START_S + lasted_s, START_S, -0.02, facts, reason)


def item(
    told: AlertEvent,
    *,
    bouts: tuple[tuple[float, float | None], ...] = (),
    device: Device | None = None,
    run: Run | None = None,
) -> Item:
    return Item(told, alert_id(told.key, told.since_s), bouts, device, run)


def letter(*items: Item, kind: NoticeKind = NoticeKind.FIRING, rule: str | None = "kv-leak", **more: Any) -> Letter:
    options: dict[str, Any] = {"host": "gpu-07", "at_s": START_S + 3 * HOUR, **more}
    return compose(kind, items, rule=RULES[rule] if rule else None, **options)


def test_a_page_says_everything_in_order() -> None:
    run = Run(2, 1, 2, START_S - HOUR, True, vllm_version="0.19.1", model="qwen")
    found = letter(item(event(), device=Device(71.1, 71.2, 80.0), run=run), panel=PANEL)
    minus = notice.MINUS
    assert found.subject == (
        f"[critical gpu-07] kv-leak vllm.log/1: free blocks {minus}2.1 points/h at 8 running for 3 h; full in about 7 h"
    )
    assert found.severity is Severity.CRITICAL
    wanted = [
        f"kv-leak vllm.log/1: free blocks {minus}2.1 points/h at 8 running for 3 h; full in about 7 h",
        "since: 2026-11-29 14:00:00 UTC",
        "found: 17:00:00 UTC",
        "full: in about 7 h (5 h to 9 h), 00:00 UTC",
        f"speed: {minus}2.1 points/h of the pool, 210 blocks/h, 3,360 tokens/h",
        "load: compared at 8 requests running: the latest 30 min with those 3 h before",
        "lost so far: 6.0 ± 0.4 % of the pool, 600 blocks, 9,600 tokens",
        "device memory: flat at 71.2 of 80 GiB: nvidia-smi cannot see this",
        "engine: vLLM 0.19.1, qwen, up for 4 h",
        "pool in use now: 82.0 %",
        "Free blocks, 14:00 to 16:00 UTC: 90.0 % to 20.0 %; bars from 0 to 100 %:",
        "1. plan a restart of this engine before the pool is full; drain it first",
        "sudo kvlogd alerts",
        "sudo kvlogd silence kv-leak@vllm.log/1 2h",
        'sudo kvlogd sql "',
        f"alert {alert_id(AlertKey('kv-leak', 'vllm.log/1', 2), START_S)} from kvlogd on gpu-07",
    ]
    places = [found.text.find(line) for line in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places)


def test_html_says_the_same() -> None:
    found = letter(item(event(), device=Device(71.1, 71.2, 80.0)), panel=PANEL)
    words = html.unescape(re.sub(r"<[^>]+>", " ", found.html))
    lines = [line for part in found.text.split("\n\n") for line in part.splitlines()]
    for line in lines:
        for piece in re.sub(r"^(\d\.|  |[a-z -]+: )", "", line).strip().removesuffix(":").split(": "):
            assert piece.strip() in words, piece
    assert not re.search(r"<(img|script|link|style|iframe|a)\b|url\(|https?:", found.html)


@pytest.mark.parametrize("scope", ["chat/0", "a\nb\x1b[2J/0", "it's/0", "x" * 400 + "/0", "a*b \u202e/1"])
def test_the_command_that_is_printed_silences_the_alert(scope: str) -> None:
    told = event(scope=scope)
    [line] = [line for line in letter(item(told)).text.splitlines() if line.startswith("  sudo kvlogd silence")]
    [_, _, _, target, for_] = shlex.split(line)
    rule, _, place = target.partition("@")
    assert for_ == "2h"
    assert place.isprintable()
    assert len(place) <= MOST_CHARS_OF_A_SILENCE
    assert Silence(1, rule, place, 0.0, 1e12).covers(told.key, START_S)
    assert not Silence(1, rule, place, 0.0, 1e12).covers(told.key._replace(scope="other/0"), START_S)


def test_the_memory_of_a_gpu_is_drawn_with_the_pool_beside_it() -> None:
    memory = Occupancy((68.0, None, 71.0), 80.0, is_device=True)
    found = letter(item(event(scope="gpu/a")), panel=PANEL._replace(memory=memory)).text
    assert "68.0 to 71.0 of 80 GiB; bars from 67.7 to 71.3 GiB:" in found
    assert "free KV-cache blocks beside it: 90.0 % to 20.0 %" in found
    alone = PANEL._replace(memory=memory._replace(limit_gib=None, is_device=False), free_share=(None, None, None))
    found = letter(item(event(scope="gpu/a")), panel=alone).text
    assert "Memory of the server" in found
    assert "68.0 to 71.0 GiB;" in found
    assert "beside it" not in found


def test_the_end_says_how_long_it_was_why_and_what_it_was() -> None:
    over = event(state=AlertState.RESOLVED, reason="restart")
    found = letter(item(over), kind=NoticeKind.RESOLVED)
    assert found.subject == "[resolved gpu-07] kv-leak vllm.log/1: over after 3 h (restart)"
    assert found.severity is None
    assert "why: the engine restarted" in found.text
    assert f"it was: kv-leak vllm.log/1: free blocks {notice.MINUS}2.1 points/h at 8 running for 3 h\n" in found.text
    assert "Check next" not in found.text
    assert "silence" not in found.text


def test_several_engines_are_a_list_and_the_details_of_the_worst() -> None:
    soon = item(event(scope="vllm.log/3", evidence={**LEAK, "full_in_s": HOUR}))
    items = [item(event(scope=f"vllm.log/{i}")) for i in range(3)]
    found = letter(*items, soon, more=488)
    assert found.subject.startswith("[critical gpu-07] kv-leak on 492 engines, first vllm.log/3: free blocks")
    listed = found.text.split("\n\n")[1].splitlines()
    assert [line.partition(":")[0] for line in listed[:4]] == [f"vllm.log/{i}" for i in (3, 0, 1, 2)]
    assert all(line.endswith(f"({one.alert_id})") for line, one in zip(listed, [soon, *items], strict=False))
    assert listed[4:] == ["and 488 more"]
    assert "First of them: kv-leak vllm.log/3" in found.text
    assert foremost([*items, soon]) == soon


@pytest.mark.parametrize(
    ("rule", "noun"), [("gpu-lost", "2 GPUs"), ("data-source", "2 logs"), ("host-memory-growth", "2 servers")]
)
def test_what_is_no_engine_is_not_called_one(rule: str, noun: str) -> None:
    both = [item(event(rule=rule, scope=scope, evidence={"lost_for": 60.0})) for scope in ("a", "b")]
    assert f"{rule} on {noun}, first a" in letter(*both, rule=rule).subject


def test_a_few_engines_are_silenced_one_by_one_and_many_at_once() -> None:
    items = [item(event(scope=f"vllm.log/{i}")) for i in range(4)]
    assert letter(*items[:3]).text.count("kvlogd silence kv-leak@") == 3
    assert "kvlogd silence kv-leak 2h\n" in letter(*items).text
    assert letter(*items).text.count("kvlogd silence") == 1


def test_a_list_of_several_severities_marks_each() -> None:
    items = [item(event(scope="a/0")), item(event(scope="a/1", severity=Severity.WARNING))]
    assert letter(*items).text.split("\n\n")[1].startswith("[critical] a/0: ")
    assert "\n[warning] a/1: " in letter(*items).text


def test_what_fires_comes_before_what_is_over() -> None:
    over = item(event(state=AlertState.RESOLVED, reason="cleared", scope="a/0"))
    busy = item(event(severity=Severity.INFO, rule="kv-capacity", scope="b/0"))
    found = letter(over, busy, kind=NoticeKind.SUMMARY, rule=None)
    assert found.subject.startswith("[info gpu-07] 2 alerts: 1 firing, 1 over; first kv-capacity b/0")
    assert found.severity is Severity.INFO
    assert "\nkv-leak a/0: over after 3 h (cleared) (" in found.text


def test_a_summary_says_what_happened_meanwhile() -> None:
    bouts = ((START_S, START_S + 600), (START_S + 1800, START_S + 2400), (START_S + 7200, None))
    found = letter(item(event(), bouts=bouts), kind=NoticeKind.SUMMARY)
    assert "it fired: 14:00 to 14:10 UTC (10 min), 14:30 to 14:40 UTC (10 min), 16:00 UTC until now" in found.text
    many = tuple((START_S + 600 * i, START_S + 600 * i + 60) for i in range(20))
    assert "it fired: 14 times before, " in letter(item(event(), bouts=many), kind=NoticeKind.SUMMARY).text


@pytest.mark.parametrize(
    ("kind", "options", "prefix"),
    [
        (NoticeKind.FIRING, {}, "[critical gpu-07] "),
        (NoticeKind.REPEAT, {}, "[still critical gpu-07] "),
        (NoticeKind.RAISED, {}, "[now critical gpu-07] "),
        (NoticeKind.FIRING, {"host": ""}, "[critical] "),
        (NoticeKind.FIRING, {"is_replay": True}, "[replay: critical gpu-07] "),
        (NoticeKind.FIRING, {"host": "a\r\nBcc: b"}, "[critical a??Bcc: b] "),
    ],
)
def test_the_subject_begins_with_state_and_host(kind: NoticeKind, options: dict[str, Any], prefix: str) -> None:
    assert letter(item(event()), kind=kind, **options).subject.startswith(prefix)


def test_a_replay_says_so_and_offers_no_silence() -> None:
    found = letter(item(event()), is_replay=True)
    assert "This is a replay" in found.text.splitlines()[2]
    assert "silence" not in found.text
    assert "kvlogd sql --db STORE " in found.text


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        (Device(71.1, 71.2, 80.0), "flat at 71.2 of 80 GiB: nvidia-smi cannot see this"),
        (Device(60.0, 71.2, 80.0), "60.0 to 71.2 of 80 GiB meanwhile"),
    ],
)
def test_device_memory(device: Device, wanted: str) -> None:
    assert device_text(device, is_pool=True) == wanted
    assert "nvidia-smi" not in device_text(device, is_pool=False)


HOSTILE = "<!channel> <b>x</b>\r\nBcc: y@example.com\n\x1b[31m`$(id)` 'q' \u202e"


def test_a_hostile_label_stays_text() -> None:
    found = letter(
        item(event(scope=HOSTILE), run=Run(1, 1, 1, START_S, True, model="<script>x</script>")), host=HOSTILE
    )
    assert "\n" not in found.subject
    assert "\r" not in found.text + found.html
    assert "\x1b" not in found.text + found.html
    assert "\u202e" not in found.text + found.html
    assert "\nBcc:" not in found.text
    assert not re.search(r"<(b|script|!channel)>", found.html)
    of_no_life = event(evidence={})._replace(key=AlertKey("kv-leak", HOSTILE, None))
    [command] = [line for line in letter(item(of_no_life)).text.splitlines() if "kvlogd sql" in line]
    assert "\\$(id)" in command  # in double quotes of the shell
    assert "''q''" in command


EVIDENCE = st.dictionaries(
    st.sampled_from([*notice.EVIDENCE, "crashed", "full_in_s", "full_in_low_s", "full_in_high_s", "bound"]),
    st.one_of(st.floats(), st.floats(0, 1e6)),
)


@given(
    st.sampled_from([NoticeKind.FIRING, NoticeKind.REPEAT, NoticeKind.RAISED, NoticeKind.RESOLVED, NoticeKind.SUMMARY]),
    st.lists(
        st.tuples(EVIDENCE, st.sampled_from([AlertState.FIRING, AlertState.RESOLVED]), st.text()),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 10_000),
    st.sampled_from(sorted(RULES)),
    st.text(max_size=300),
)
@settings(deadline=None, max_examples=60)
def test_anything_can_be_told(
    kind: NoticeKind, alerts: list[tuple[dict[str, float], AlertState, str]], more: int, rule: str, host: str
) -> None:
    items = [item(event(rule=rule, scope=scope, state=state, evidence=facts)) for facts, state, scope in alerts]
    found = letter(*items, kind=kind, rule=rule, more=more, host=host, panel=PANEL)
    assert found.subject.isprintable()
    assert len(found.subject) <= MOST_SUBJECT
    assert len(found.text) <= MOST_CHARS
    assert all(line.isprintable() for line in found.text.split("\n"))
    assert foremost(items).alert_id in found.text
