from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.errors import ConfigError
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.ruletest import run_file
from kvlogd.yamlfile import FaultsError

RULES = {rule.id: rule for rule in load_rules([shipped_folder()])}
FILES = sorted((shipped_folder() / "tests").glob("*.test.yaml"))


def test_every_shipped_rule_has_its_tests() -> None:
    assert {path.name.removesuffix(".test.yaml") for path in FILES} == set(RULES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_tests_of_a_shipped_rule_pass(path: Path) -> None:
    results = list(run_file(path, RULES))
    assert {result.case: result.faults for result in results if result.faults or result.skipped} == {}
    assert len(results) >= 3


def test_a_rule_in_place_of_its_test_is_one_error() -> None:
    with pytest.raises(ConfigError, match="is a rule, not the test of one") as caught:
        list(run_file(shipped_folder() / "kv-leak.yaml", RULES))
    assert not isinstance(caught.value, FaultsError)


QUEUE = """\
rule: kv-capacity
cases:
  - name: a queue that stands
    series:
      running: "30 x60"
      waiting: "{waiting} x60"
      prompt_tps: "100 x60"
      generation_tps: "300 x60"
      kv_usage: "0.985 x60"
    expect: [{{fires: true, severity: {severity}}}]
"""


def faults(folder: Path, text: str) -> Iterator[str]:
    path = folder / "one.test.yaml"
    path.write_text(text)
    return (fault for result in run_file(path, RULES) for fault in result.faults)


@pytest.mark.parametrize(
    ("waiting", "severity", "fault"),
    [
        (30, "warning", None),
        (30, "info", "must be info at most, and was warning after 2 min"),
        (0, "info", None),
        (0, "warning", "never fired"),
    ],
)
def test_a_case_may_say_how_loud(tmp_path: Path, waiting: int, severity: str, fault: str | None) -> None:
    found = list(faults(tmp_path, QUEUE.format(waiting=waiting, severity=severity)))
    assert [text[: len(fault or "")] for text in found] == ([fault] if fault else [])


SKEW = """\
rule: engine-skew
cases:
  - name: the sibling is slow
    series: {{running: "20 x240", generation_tps: "{own} x240", prompt_tps: "{own} x240", kv_usage: "0.3 x240"}}
    siblings:
      - {{running: "20 x240", generation_tps: "{other} x240", prompt_tps: "{other} x240", kv_usage: "0.3 x240"}}
    expect: [{{fires: {fires}}}]
"""


@pytest.mark.parametrize(("own", "other", "fires"), [(300, 600, "true"), (600, 300, "false")])
def test_what_is_expected_is_of_the_first_engine(tmp_path: Path, own: int, other: int, fires: str) -> None:
    assert list(faults(tmp_path, SKEW.format(own=own, other=other, fires=fires))) == []


LOG = """\
rule: kv-leak
cases:
  - name: a real one
    log: {log}
    year: 2026
    expect: [{{fires: true, {when}}}]
"""


@pytest.mark.parametrize(
    ("when", "fault"), [("before: 1m", "expected before 1 min"), ("after: 10h", "expected after 10 h")]
)
def test_a_case_with_a_log_is_held_to_its_times_and_drawn(tmp_path: Path, when: str, fault: str) -> None:
    log = Path(__file__).parent / "data" / "real" / "leak-to-hang-and-restart.log"
    path = tmp_path / "one.test.yaml"
    path.write_text(LOG.format(log=log, when=when))
    (result,) = run_file(path, RULES)
    assert [fault in one for one in result.faults] == [True]
    usage, running, fired = result.chart.splitlines()
    assert "█" in usage
    assert running.strip().startswith("running")
    assert "F" in fired
