"""What `kvlogd status` shows: the record keeps its content through JSON, and the text fits a terminal."""

import json

import pytest

from kvlogd.errors import KvlogdError
from kvlogd.model import Severity
from kvlogd.status import (
    WIDTH,
    EngineStatus,
    GpuStatus,
    Mode,
    RuleState,
    RuleStatus,
    SourceState,
    SourceStatus,
    Status,
    Trouble,
    from_json,
    status_text,
    to_json,
)

NOW_S = 1_764_400_000.0
THIN = "needs 20 more records at one load"
BUSY = Status(
    "0.3.0", 4711, NOW_S, NOW_S - 273_600, Mode.EVENTS, "/var/lib/kvlogd/kvlogd.duckdb", 38 * 2**20, 84 * 2**20, 12,
    (
        SourceStatus("chat", SourceState.FOLLOWING, 12_345, 1, NOW_S - 4, 0),
        SourceStatus("batch", SourceState.WAITING, 0),
    ),
    (
        EngineStatus(
            "chat/0", 2, NOW_S - 4, 8, 0, 0.431, "acme/chat-8b", "0.20.0",
            (None, None, 0.0, 0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2), NOW_S + 7 * 3600,
        ),
        EngineStatus("chat/1", 1),
    ),
    (
        RuleStatus("engine-stall", "chat/0", RuleState.FINE, Severity.CRITICAL),
        RuleStatus("kv-leak", "chat/1", RuleState.ABSTAINS, Severity.CRITICAL, why=THIN),
        RuleStatus("kv-leak", "chat/0", RuleState.FIRING, Severity.CRITICAL, NOW_S - 7380),
    ),
    (Trouble(NOW_S - 720, "store", "cannot commit: no space left on device", 3),),
    config_sources=2,
)  # fmt: skip


def test_json_keeps_everything() -> None:
    assert from_json(json.loads(json.dumps(to_json(BUSY)))) == BUSY


def test_a_newer_daemon_may_say_more() -> None:
    told = to_json(BUSY) | {"mood": "good"}
    told["sources"][0]["mood"] = "good"
    assert from_json(told) == BUSY


@pytest.mark.parametrize(
    "told",
    [
        {},
        to_json(BUSY) | {"mode": "guessing"},
        to_json(BUSY) | {"rules": [{"rule": "kv-leak"}]},
        to_json(BUSY) | {"sources": [3]},
        to_json(BUSY) | {"sources": None},
    ],
)
def test_what_is_no_status_is_one_line(told: dict[str, object]) -> None:
    with pytest.raises(KvlogdError, match=r"^the daemon's status is not understood: restart the daemon"):
        from_json(told)


def test_the_text_is_aligned() -> None:
    assert status_text(BUSY).splitlines() == [
        "kvlogd 0.3.0: 2 sources, 2 logs, 2 engines, 1 alert firing",
        "process 4711, up 3 d 4 h, 84 MiB of memory, mode events",
        "/var/lib/kvlogd/kvlogd.duckdb, 38 MiB in the store, 12 records not yet committed",
        "",
        "severity  rule     about   state         for",
        "critical  kv-leak  chat/0  firing  2 h 3 min",
        "`kvlogd alerts` tells what was found, and who was told",
        "",
        "   trouble  times  where  what",
        "12 min ago     3x  store  cannot commit: no space left on device",
        "",
        "engine  life     last  run  wait      KV  full in  model",
        "chat/0     2  4 s ago    8     0  43.1 %      7 h  acme/chat-8b",
        "chat/1     1    never",
        "",
        "read from  state      records     last  behind  lost  unparsed",
        "chat       following    12345  4 s ago     0 B   0 B         0",
        "batch      waiting          0    never           0 B         0",
        "",
        "cannot judge yet  about   why",
        "kv-leak           chat/1  needs 20 more records at one load",
        "rules: 1 looked and found nothing",
    ]


def test_colour_adds_nothing_but_colour() -> None:
    shown = status_text(BUSY, colour=True)
    assert "\x1b[1;31mcritical  kv-leak  chat/0" in shown
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[1;31m"):
        shown = shown.replace(code, "")
    assert shown == status_text(BUSY)


def test_a_trouble_that_does_not_fit_is_told_whole_below() -> None:
    fault = "/etc/kvlogd/rules/slow-first-token.yaml:12: no signal of that name: did you mean waiting?"
    troubles = (
        Trouble(NOW_S - 5, "reload", f"refused:\n{fault}\x1b[2J"),
        Trouble(NOW_S - 720, "store", "cannot commit", 3),
    )
    assert status_text(BUSY._replace(troubles=troubles)).splitlines()[8:13] == [
        "   trouble  times  where   what",
        "   5 s ago     1x  reload",
        "  refused:",
        f"  {fault}?[2J",
        "12 min ago     3x  store   cannot commit",
    ]


@pytest.mark.parametrize("sparks", [False, True])
def test_long_and_hostile_names_keep_the_width(sparks: bool) -> None:
    name = "n" * 64
    status = BUSY._replace(
        sources=(SourceStatus(name, SourceState.UNREADABLE, 10**9, 1, NOW_S, 10**12, 10**9, 10**6),),
        engines=(
            EngineStatus(f"{name}/127", 1000, NOW_S - 1e8, 256, 10_000, 1.0, "\x1b[2J" + "m" * 200, course=(0.5,) * 12),
        ),
        rules=(RuleStatus("kv-leak", f"{name}/127", RuleState.ABSTAINS, Severity.CRITICAL, NOW_S, "w" * 200),),
        troubles=(Trouble(NOW_S, "where" * 20, "what\n" * 50, 10**6),),
        gpus_note="the driver says much, and each word of it is one more word " * 3,
    )
    lines = status_text(status, sparks=sparks).splitlines()[3:]
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in "".join(lines)
    assert any("…" in line for line in lines)


def test_names_that_differ_stay_different() -> None:
    labels = ("vllm/prod-chat-east.log/0", "vllm/prod-code-east.log/0")
    engines = [
        EngineStatus(label, 1, NOW_S - 1e5, 3, 0, 0.5, "acme/" + "m" * 60, course=(0.5,) * 12) for label in labels
    ]
    shown = status_text(BUSY._replace(engines=tuple(engines)), sparks=True)
    chat, code = [line.split("  ")[0] for line in shown.splitlines() if "acme" in line]
    assert chat != code
    assert "…" in chat


def test_of_many_rules_that_cannot_judge_yet_only_the_number_is_told() -> None:
    rules = tuple(
        RuleStatus(rule, f"chat/{n}", RuleState.ABSTAINS, Severity.CRITICAL, why=THIN)
        for rule, count in (("kv-leak", 2), ("kv-idle-residue", 7))
        for n in range(count)
    )
    assert status_text(BUSY._replace(rules=rules)).splitlines()[-4:] == [
        "cannot judge yet  times",
        "kv-idle-residue       7",
        "kv-leak               2",
        "`kvlogd status --json` has the reason of each",
    ]


def test_a_broken_rule_says_why_and_the_number_of_an_engine_is_never_cut_off() -> None:
    scope = "a-very-long-name-of-a-source/and-of-one-of-its-many-logs.log/13"
    broken = RuleStatus("slow-first-token", scope, RuleState.BROKEN, Severity.WARNING, NOW_S, "no such column")
    head, row = status_text(BUSY._replace(rules=(broken,))).splitlines()[4:6]
    assert head.split() == ["severity", "rule", "about", "state", "for", "why"]
    assert "log/13  broken" in row
    assert row.endswith("no such column")
    assert len(row) <= WIDTH


def test_how_long_it_takes_to_catch_up_is_told() -> None:
    assert status_text(BUSY._replace(catch_up_s=130.0)).splitlines()[1].endswith("mode events, catches up in 2 min")


def test_a_daemon_with_nothing_to_show_is_short() -> None:
    status = Status("0.3.0", 1, NOW_S, NOW_S + 5, Mode.POLLING, "s.duckdb")
    assert status_text(status).splitlines() == [
        "kvlogd 0.3.0: 0 logs, 0 engines, 0 alerts firing",
        "process 1, up 0 s, mode polling",
        "s.duckdb",
    ]
    fine = status._replace(rules=(RuleStatus("kv-leak", "a/0", RuleState.FINE, Severity.CRITICAL),))
    assert status_text(fine).splitlines()[-1] == "rules: 1 looked and found nothing"


def test_gpus_are_shown_with_what_is_known_of_them() -> None:
    one = GpuStatus(
        "GPU-a", "ok", 0, "x", 990.0, 0.93, 70_000.0, 143_771.0, 61.0, 400.0, "chat 66.0, python3[4711] 2.0"
    )
    lost = GpuStatus("GPU-b", "reset required", 1, "x", 500.0, memory_total_mib=143_771.0)
    rule = RuleStatus("gpu-skew", "gpu", RuleState.NO_SOURCE, Severity.WARNING)
    note = "let go of for another 9 min"
    status = Status("1", 1, 1000.0, 0.0, Mode.EVENTS, "/x", gpus=(one, lost), gpus_note=note, rules=(rule,))
    lines = status_text(status).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[4:] == [
        "gpu  state                   last    busy             memory  heat  GiB held by",
        "  0  ok                  10 s ago  93.0 %  68.4 of 140.4 GiB  61 C  chat 66.0, …",
        "  1  reset requi…  8 min 20 s ago",
        "GPUs: let go of for another 9 min",
        "",
        "rules: 1 have nothing of their kind to look at",
    ]
    assert from_json(json.loads(json.dumps(to_json(status)))) == status


def test_a_terminal_sees_the_last_hour_of_each_engine() -> None:
    lines = status_text(BUSY, sparks=True).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("engine"))
    assert lines[at : at + 3] == [
        "engine  life     last  run  wait      KV  full in     last hour  model",
        "chat/0     2  4 s ago    8     0  43.1 %      7 h    ▁▁▂▂▃▅▆▇██  acme/chat-8b",
        "chat/1     1    never",
    ]
    assert max(map(len, lines)) <= WIDTH
