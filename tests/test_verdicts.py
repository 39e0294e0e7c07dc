"""Each labelled log gets its verdict, in its time, and no other."""

import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command import Told, replay
from tests.logs import CASES, made

REAL = Path(__file__).parent / "data" / "real"
PAGES = {"warning", "critical"}

LABELS = sorted([*REAL.glob("*.yaml"), *CASES.glob("*.yaml")])


def log_of(label: Path) -> Path:
    return next(path for path in (label.with_suffix(".log"), label.with_suffix(".log.gz")) if path.exists())


def fits(alert: dict[str, Any], want: dict[str, Any]) -> bool:
    """Tell whether an alert is the expected one, in its time."""
    at = datetime.fromisoformat(alert["at"])
    return (
        alert["verdict"] == want["verdict"]
        and alert["engine_index"] == want["engine_index"]
        and datetime.fromisoformat(want["fire_from"]) <= at <= datetime.fromisoformat(want["fire_by"])
    )


def faults(label: dict[str, Any], told: Told) -> list[str]:
    """Return all that is wrong with what a replay said, held against the log's label."""
    fired = [alert for alert in told.alerts if alert["state"] == "firing" and alert["severity"] in PAGES]
    said = [f"{alert['verdict']} at {alert['at']}" for alert in fired]
    expected = label["expected"]
    found = [f"{want['verdict']} missing in {said}" for want in expected if not any(fits(a, want) for a in fired)]
    for alert in fired:
        if alert["verdict"] in label["must_not_fire"] or not expected:
            found.append(f"false {alert['verdict']} at {alert['at']}")
    if told.summary["stats_lines"] != label["stats_lines"]:
        found.append(f"{told.summary['stats_lines']} stats records, not {label['stats_lines']}")
    if told.summary["unparsed_stats_lines"]:
        found.append(f"{told.summary['unparsed_stats_lines']} records not understood")
    blind = not label["stats_lines"]
    if told.status != (1 if fired or blind else 0):
        found.append(f"exit status {told.status}")
    return found


@pytest.mark.parametrize("path", LABELS, ids=lambda path: path.stem)
def test_verdict(path: Path) -> None:
    label = yaml.safe_load(path.read_text())
    told = replay(log_of(path))
    assert told.err == ""
    assert faults(label, told) == []


@pytest.mark.parametrize(("name", "make"), made().items(), ids=made())
def test_cases_are_what_their_maker_writes(name: str, make: Any) -> None:
    assert gzip.decompress((CASES / f"{name}.log.gz").read_bytes()) == make(), "run `python -m tests.logs`"


def test_every_case_has_a_label() -> None:
    assert {path.stem for path in CASES.glob("*.yaml")} == set(made())


def test_two_servers_are_two_engines_with_their_own_numbers() -> None:
    told = replay(CASES / "two-servers.log.gz")
    assert told.summary["engines"] == 2
    assert told.summary["runs"] == 2


def test_one_episode_is_one_alert_and_the_restart_ends_it() -> None:
    told = replay(CASES / "hang-with-silence.log.gz")
    assert [(a["state"], a["verdict"], a.get("reason")) for a in told.alerts] == [
        ("firing", "engine-stall", None),
        ("resolved", "engine-stall", "restart"),
    ]
    assert told.alerts[0]["run"] == 1


def test_a_leak_says_how_fast_and_until_when() -> None:
    (alert,) = replay(CASES / "leak-at-constant-load.log.gz").alerts
    # 0.1 points every 10 s are 36 points an hour; the pool is full 700 records after it began at 30 %
    assert -45 < alert["value"] * 100 < -25
    at = datetime.fromisoformat(alert["at"])
    full = datetime.fromisoformat("2026-03-02T11:17:20+00:00")
    left_s = (full - at).total_seconds()
    assert alert["evidence"]["full_in_low_s"] * 0.8 < left_s < alert["evidence"]["full_in_high_s"] * 1.2
    assert alert["evidence"]["usage_now"] < 0.45
