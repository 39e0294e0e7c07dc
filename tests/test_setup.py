from pathlib import Path

import pytest

from kvlogd.errors import ConfigError
from kvlogd.model import Severity
from kvlogd.setup import homed, load_setup, routes


def config(folder: Path, text: str) -> Path:
    path = folder / "kvlogd.yaml"
    path.write_text(text)
    return path


def test_rules_are_left_out_and_changed_as_the_config_says(tmp_path: Path) -> None:
    text = "rules: {disable: [frozen-stats], override: {engine-stall: {severity: info, keep_firing_for: 7m}}}\n"
    rules = {rule.id: rule for rule in load_setup(config(tmp_path, text)).rules}
    assert "frozen-stats" not in rules
    assert (rules["engine-stall"].severity, rules["engine-stall"].keep_firing_for_s) == (Severity.INFO, 420.0)
    assert rules["kv-leak"].severity is Severity.CRITICAL


@pytest.mark.parametrize("text", ["rules: {disable: [kv-laek]}\n", "rules: {override: {kv-laek: {severity: info}}}\n"])
def test_a_rule_that_is_not_there_is_named_with_the_nearest(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="kv-laek: no rule of that name: did you mean kv-leak"):
        load_setup(config(tmp_path, text))


def test_own_rules_stand_beside_the_shipped(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "mine.yaml").write_text(
        "id: mine\nverdict: mine\nseverity: info\nper: engine\nwhen: {threshold: {signal: waiting, above: 5}}\n"
        "why: it waits\ndo: [look]\n"
    )
    setup = load_setup(config(tmp_path, f"rules: {{folders: [{tmp_path}/rules]}}\n"))
    assert {"mine", "kv-leak"} <= {rule.id for rule in setup.rules}


def test_a_rule_goes_to_the_channels_that_it_names_else_to_those_that_take_one_of_its_tags(tmp_path: Path) -> None:
    path = secret(tmp_path, "json://127.0.0.1/")
    text = (
        f"channels: [{{name: all, url_file: {path}}}, {{name: hardware, url_file: {path}, tags: [gpu, host]}}, "
        f"{{name: team, url_file: {path}, tags: [mine]}}]\nrules: {{override: {{latency-creep: {{tags: [mine]}}}}}}\n"
    )
    setup = load_setup(config(tmp_path, text))
    found = routes(setup.config.channels, setup.rules)
    assert found["gpu-lost"] == found["host-memory-growth"] == ("all", "hardware")
    assert found["latency-creep"] == ("all", "team")
    assert found["kv-leak"] == ("all",)
    named = [rule._replace(notify=("team",)) for rule in setup.rules if rule.id == "gpu-lost"]
    assert routes(setup.config.channels, named) == {"gpu-lost": ("team",)}


def test_a_channel_may_name_the_tag_of_rules_that_are_left_out(tmp_path: Path) -> None:
    path = secret(tmp_path, "json://127.0.0.1/")
    gone = ", ".join(rule.id for rule in load_setup(None).rules if "gpu" in rule.tags)
    text = f"channels: [{{name: hardware, url_file: {path}, tags: [gpu]}}]\nrules: {{disable: [{gone}]}}\n"
    setup = load_setup(config(tmp_path, text))
    assert set(routes(setup.config.channels, setup.rules).values()) == {()}


def secret(folder: Path, text: str) -> Path:
    path = folder / "secret.url"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_the_url_of_the_heartbeat_is_an_address_of_the_web_and_stays_secret(tmp_path: Path) -> None:
    path = secret(tmp_path, "https://watch.example/abcdef")
    found = load_setup(config(tmp_path, f"heartbeat: {{url_file: {path}}}\n"))
    assert found.heartbeat is not None
    assert found.heartbeat.reveal() == "https://watch.example/abcdef"
    assert "abcdef" not in repr(found)
    path.write_text("file:///abcdef")
    with pytest.raises(ConfigError, match=r"^heartbeat: file://\*\*\*: is no address of the web: begin it with https"):
        load_setup(config(tmp_path, f"heartbeat: {{url_file: {path}}}\n"))


def test_quiet_hours_of_no_zone_are_refused(tmp_path: Path) -> None:
    path = secret(tmp_path, "json://127.0.0.1/")
    quiet = "{from: '22:00', to: '07:00', timezone: Europe/Berln}"
    with pytest.raises(ConfigError, match="no such time zone"):
        load_setup(config(tmp_path, f"channels: [{{name: a, url_file: {path}, quiet: {quiet}}}]\n"))


def test_a_store_that_nobody_placed_lies_in_the_units_state_folder(tmp_path: Path) -> None:
    config = tmp_path / "kvlogd.yaml"
    config.write_text("store: {keep_raw: 7d}\n")
    unplaced = load_setup(config)
    assert homed(unplaced, tmp_path).config.store.path == tmp_path / "kvlogd.duckdb"
    assert homed(unplaced, tmp_path).config.store.keep_raw == 7 * 86400
    assert homed(unplaced, None) == unplaced
    config.write_text(f"store: {{path: {tmp_path}/mine.duckdb}}\n")
    assert homed(load_setup(config), tmp_path / "else").config.store.path == tmp_path / "mine.duckdb"
