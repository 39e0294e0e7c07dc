from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.errors import ConfigError
from kvlogd.kinds import KINDS
from kvlogd.model import NoData, Per, Severity
from kvlogd.rules import AllOf, AnyOf, Leaf, load_rule, load_rules, shipped_folder
from kvlogd.yamlfile import MAX_BYTES, FaultsError

GOOD = """\
id: my-rule
verdict: kv-capacity
severity: warning
per: engine
when:
  threshold:
    signal: kv_usage
    above: 90%
    over: 5m
for: 10m
why: it is full
do:
  - give it room
"""


def put(folder: Path, text: str | bytes, name: str = "rule.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults_of(*folders: Path) -> list[str]:
    with pytest.raises(FaultsError) as caught:
        load_rules(folders)
    return str(caught.value).splitlines()


def fault_of(folder: Path, text: str | bytes) -> str:
    """Return the one fault of a rule file, without the folder's name."""
    put(folder, text)
    [fault] = faults_of(folder)
    return fault.replace(f"{folder}/", "")


# --- what is right


def test_a_rule_comes_out_as_it_was_written(tmp_path: Path) -> None:
    rule = load_rule(put(tmp_path, GOOD))
    assert (rule.id, rule.verdict, rule.severity, rule.per) == ("my-rule", "kv-capacity", Severity.WARNING, Per.ENGINE)
    assert (rule.for_s, rule.keep_firing_for_s, rule.no_data) == (600.0, 0.0, NoData.HOLD)
    assert isinstance(rule.when, Leaf)
    assert rule.when.params.model_dump() == {
        "signal": "kv_usage", "above": "90%", "below": None, "over": 300.0, "of": "mean"
    }  # fmt: skip
    assert (rule.why, rule.do, rule.notify) == ("it is full", ("give it room",), ())
    assert rule.kinds() == ["threshold"]


def test_conditions_combine(tmp_path: Path) -> None:
    text = GOOD.replace(
        "  threshold:\n    signal: kv_usage\n    above: 90%\n    over: 5m\n",
        "  all:\n    - any:\n        - stall:\n        - rate: {of: preemptions, above: 5/min}\n"
        "    - threshold: {signal: waiting, above: 3}\n",
    ).replace("for: 10m", "unless:\n  - threshold: {signal: running, below: 1}\nfor: 10m")
    rule = load_rule(put(tmp_path, text))
    assert isinstance(rule.when, AllOf)
    assert isinstance(rule.when.parts[0], AnyOf)
    assert rule.kinds() == ["rate", "stall", "threshold"]
    assert len(rule.unless) == 1


def test_all_shipped_rules_load_and_say_what_to_do() -> None:
    rules = load_rules([shipped_folder()])
    assert {"kv-leak", "kv-idle-residue", "engine-stall", "data-source"} <= {rule.id for rule in rules}
    assert len({rule.id for rule in rules}) == len(rules) == len(list(shipped_folder().glob("*.yaml")))
    for rule in rules:
        assert len(rule.why) > 40, rule.id
        assert rule.do, rule.id
        assert all(step.strip() for step in rule.do)


def test_test_files_of_rules_are_no_rules(tmp_path: Path) -> None:
    put(tmp_path, GOOD)
    put(tmp_path, "rule: my-rule\n", "my-rule.test.yaml")
    assert len(load_rules([tmp_path])) == 1


def test_a_folder_without_rules_is_fine(tmp_path: Path) -> None:
    assert load_rules([tmp_path]) == ()


# --- what is wrong: where it stands, and the mend

KINDS_KNOWN = ", ".join(sorted([*KINDS, "all", "any"]))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "severity:",
            "severety:",
            "rule.yaml:1: severity is missing: add `severity:`\n"
            "rule.yaml:3: unknown key severety: did you mean severity?",
        ),
        ("for: 10m", "fro: 10m", "rule.yaml:10: unknown key fro: did you mean for?"),
        (
            "for: 10m",
            "for: 10 minutes",
            "rule.yaml:10: for: '10 minutes' is no duration: write it like 90s, 5m, 2h or 1h30m",
        ),
        ("for: 10m", "for: 10", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("for: 10m", "for: 600.0", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("for: 10m", "for: .inf", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("for: 10m", "for: .nan", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("for: 10m", "for: -5m", "rule.yaml:10: for: '-5m' is no duration: write it like 90s, 5m, 2h or 1h30m"),
        ("for: 10m", "for:", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("for: 10m", "for: [5m]", "rule.yaml:10: for: needs a unit: write a duration like 5m"),
        ("over: 5m", "over: 300", "rule.yaml:9: over: needs a unit: write a duration like 5m"),
        ("over: 5m", "ovre: 5m", "rule.yaml:9: unknown key ovre: did you mean over?"),
        ("over: 5m", "of: median", "rule.yaml:9: of cannot be median: did you mean mean?"),
        ("above: 90%", "above: 90", "rule.yaml:6: '90' is no share: write it like 10% or 3 points"),
        ("above: 90%", "above: 5m", "rule.yaml:6: '5m' is no share: write it like 10% or 3 points"),
        ("    above: 90%\n", "", "rule.yaml:6: give one of above and below"),
        ("above: 90%", "above: 90%\n    below: 10%", "rule.yaml:6: give one of above and below"),
        ("signal: kv_usage", "signal: kv_usge", "rule.yaml:7: signal: no signal of that name: did you mean kv_usage?"),
        ("signal: kv_usage", "signal: 7", "rule.yaml:7: signal: no signal of that name: known: "),
        ("    signal: kv_usage\n", "", "rule.yaml:6: signal is missing: add `signal:`"),
        ("threshold:", "treshold:", "rule.yaml:6: no kind of condition is called treshold: did you mean threshold?"),
        ("threshold:", "zzz:", f"rule.yaml:6: no kind of condition is called zzz: known: {KINDS_KNOWN}"),
        ("for: 10m", "no_data: maybe", "rule.yaml:10: no_data cannot be maybe: known: alert, hold, ok"),
        ("severity: warning", "severity: bad", "rule.yaml:3: severity cannot be bad: known: critical, info, warning"),
        ("per: engine", "per: pod", "rule.yaml:4: per cannot be pod: known: engine, gpu, host, source"),
        (
            "threshold:\n    signal: kv_usage\n    above: 90%\n    over: 5m",
            "device_skew: {}",
            "rule.yaml:6: device_skew cannot judge per engine: use per: gpu",
        ),
        ("id: my-rule", "id: My Rule", "rule.yaml:1: id: must be lower-case letters, digits and hyphens, like kv-leak"),
        ("why: it is full\n", "", "rule.yaml:1: why is missing: add `why:`"),
        ("  - give it room\n", "  - give it room\n  - give: it\n", "rule.yaml:14: 1: must be text: put it in quotes"),
        ("for: 10m", "for: 10m\nfor: 5m", "rule.yaml:11: for stands here a second time: keep one of them"),
        ("per: engine", "per: [engine", "rule.yaml:5: is no YAML here: check indentation and quotes"),
        ("per: engine", "\tper: engine", "rule.yaml:4: is no YAML here: check indentation and quotes"),
        (
            "per: engine",
            "per: !!python/object:os.system x",
            "rule.yaml:4: a tag (!name) cannot be used here: leave it out",
        ),
        (
            "for: 10m",
            "for: 2026-13-45",
            "rule.yaml:10: for: '2026-13-45' is no duration: write it like 90s, 5m, 2h or 1h30m",
        ),
        ("for: 10m", "for: 0b_", "rule.yaml:10: is not what its tag says: leave the tag out"),
        ("for: 10m", "for: " + "9" * 5000, "rule.yaml:10: is not what its tag says: leave the tag out"),
        ("for: 10m", "for: &a [*a]", "rule.yaml:10: an alias (*name) cannot be used here: write the value out"),
        (
            "for: 10m",
            "notify: &a [x]\nunless: *a",
            "rule.yaml:10: an alias (*name) cannot be used here: write the value out",
        ),
        ("for: 10m", "unless: 7", "rule.yaml:10: unless: must be a list"),
        ("for: 10m", "unless:\n  - stal: {}", "rule.yaml:11: no kind of condition is called stal: did you mean stall?"),
        ("for: 10m", "unless:\n  - {}", f"rule.yaml:11: needs exactly one kind of condition: known: {KINDS_KNOWN}"),
        (
            "for: 10m",
            "unless:\n  - {stall: , rate: {of: crashes, above: 1/h}}",
            f"rule.yaml:11: needs exactly one kind of condition: known: {KINDS_KNOWN}",
        ),
        ("for: 10m", "unless:\n  - all: []", "rule.yaml:11: all needs a list of conditions: begin each with a hyphen"),
        (
            "for: 10m",
            "unless:\n  - any: {stall: }",
            "rule.yaml:11: any needs a list of conditions: begin each with a hyphen",
        ),
        (
            "for: 10m",
            "unless:\n  - rate: {of: cats, above: 1/h}",
            "rule.yaml:11: of cannot be cats: did you mean crashes?",
        ),
        (
            "for: 10m",
            "unless:\n  - rate: {of: crashes, above: 5m}",
            "rule.yaml:11: above: '5m' is no rate of events: write it like 5/min or 2/h",
        ),
        ("for: 10m", "unless:\n  - rate: 7", "rule.yaml:11: must be keys with values"),
    ],
)  # fmt: skip
def test_each_fault_says_where_and_how_to_mend_it(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert GOOD.count(old) == 1
    put(tmp_path, GOOD.replace(old, new))
    got = sorted(line.replace(f"{tmp_path}/", "") for line in faults_of(tmp_path))
    wanted = fault.splitlines()
    assert len(got) == len(wanted)
    for line, start in zip(got, wanted, strict=True):
        assert line.startswith(start)


def test_no_history_means_no_span(tmp_path: Path) -> None:
    fault = fault_of(tmp_path, GOOD.replace("kv_usage", "frozen_for").replace("90%", "3m"))
    assert fault == "rule.yaml:6: frozen_for has no history to look over: leave out `over`"


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n", "7\n", "null\n"])
def test_a_file_that_holds_no_map_is_no_rule(tmp_path: Path, text: str) -> None:
    fault = fault_of(tmp_path, text)
    assert fault == "rule.yaml:1: is no rule: a rule has the keys id, verdict, severity, per, when, …"


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"id: \xe9\n", b"\x00", b"id: x\n---\nid: y\n", b"{" * 5000, b"[" * 100_000]
)
def test_what_is_no_yaml_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    fault = fault_of(tmp_path, data)
    assert fault.startswith("rule.yaml:")
    assert fault.endswith(": is no YAML here: check indentation and quotes")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    assert fault_of(tmp_path, "#" * (MAX_BYTES + 1)) == "rule.yaml: is larger than 256 KiB: split it"


def test_a_file_of_just_that_size_is_read(tmp_path: Path) -> None:
    put(tmp_path, GOOD + "#" * (MAX_BYTES - len(GOOD)))
    assert len(load_rules([tmp_path])) == 1


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    faults = [fault.replace(f"{tmp_path}/", "") for fault in faults_of(tmp_path)]
    assert faults == [
        "folder.yaml: is not a regular file: give a YAML file",
        "gone.yaml: cannot be read (No such file or directory): check path and rights",
    ]


def test_what_is_no_folder(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD)
    for wrong in (path, tmp_path / "nowhere"):
        assert faults_of(wrong) == [f"{wrong}: is no folder of rules: name a folder of *.yaml files"]


def test_an_id_twice_is_said_with_both_files(tmp_path: Path) -> None:
    first = put(tmp_path, GOOD, "a.yaml")
    second = put(tmp_path, "# a copy\n" + GOOD, "b.yaml")
    assert faults_of(tmp_path) == [f"{second}:2: id my-rule is also that of {first}: give it another id"]


def test_all_faults_of_all_files_come_at_once(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    put(tmp_path, GOOD.replace("severity: warning", "severity: bad").replace("for: 10m", "for: 10"), "a.yaml")
    put(tmp_path, GOOD.replace("threshold:", "treshold:") + "unless:\n  - stal:\n", "b.yaml")
    put(tmp_path, "", "c.yaml")
    put(tmp_path, GOOD, "d.yaml")
    put(other, GOOD, "e.yaml")
    faults = faults_of(tmp_path, other, tmp_path / "nowhere")
    places = [fault.split(": ")[0].removeprefix(f"{tmp_path}/") for fault in faults]
    assert places == ["nowhere", "a.yaml:3", "a.yaml:10", "b.yaml:6", "b.yaml:15", "c.yaml:1", "other/e.yaml:1"]


# --- nothing in a file can crash the loader

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.dates(), st.binary(max_size=4),
    st.sampled_from(["5m", "90%", "kv_usage", "engine", "source", "gpu", "info", "hold", "1/h", "running", "8"]),
)  # fmt: skip
KEYS = yaml.safe_load(
    "[id, verdict, severity, per, when, unless, for, why, do, notify, all, any, signal, above, over, of]"
)
names = st.sampled_from([*KEYS, *KINDS])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | scalars, inner, max_size=5),
    max_leaves=20,
)


def refusal_of(folder: Path) -> str | None:
    """Return what is wrong with the rules of a folder, None where nothing is; any other exception comes out."""
    try:
        load_rules([folder])
    except ConfigError as error:
        return str(error)
    return None


@given(values)
def test_no_value_is_a_rule_and_none_crashes_the_loader(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    put(folder, yaml.safe_dump(value))
    assert str(refusal_of(folder)).startswith(f"{folder}/rule.yaml:")


@given(values, st.sampled_from(sorted(yaml.safe_load(GOOD))))
def test_no_value_of_a_key_crashes_the_loader(
    tmp_path_factory: pytest.TempPathFactory, value: object, key: str
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    put(folder, yaml.safe_dump(yaml.safe_load(GOOD) | {key: value}))
    refusal = refusal_of(folder)
    assert refusal is None or refusal.startswith(f"{folder}/rule.yaml:")


@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_no_bytes_crash_the_loader(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("rules")
    put(folder, GOOD[:at].encode() + data + GOOD[at:].encode())
    refusal = refusal_of(folder)
    assert refusal is None or refusal.startswith(f"{folder}/rule.yaml:")
