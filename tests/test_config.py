from pathlib import Path

import pytest
from pydantic import ValidationError

from kvlogd import config
from kvlogd.config import (
    ChannelConfig,
    Config,
    Enabled,
    HeartbeatConfig,
    QuietConfig,
    RulesConfig,
    example_file,
    load_config,
)
from kvlogd.errors import ConfigError
from kvlogd.model import Severity
from kvlogd.yamlfile import FaultsError

DESIGN = """\
sources:
  - name: chat
    files: [/var/log/vllm/chat*.log]
    metrics: http://127.0.0.1:8000/metrics
    timezone: Europe/Berlin
  - name: batch
    journal: vllm-batch.service
  - name: lab
    docker: lab
gpu: {enabled: no, every: 10s}
host: {enabled: yes, every: 1m}
store: {path: /srv/kvlogd.duckdb, keep_raw: 7d, keep_minutes: 100d}
rules:
  folders: [/etc/kvlogd/rules]
  disable: [frozen-stats]
  override: {engine-stall: {severity: warning, keep_firing_for: 1h}}
channels:
  - name: oncall
    url_file: /etc/kvlogd/oncall.url
    severities: [critical]
    repeat_every: 4h
  - {name: chat, url_env: KVLOGD_CHAT_URL}
  - {name: mail, credential: mail-url}
"""
SECRET = "https://hooks.example.com/T00/B00/s3cr3t"


def put(folder: Path, text: str) -> Path:
    path = folder / "kvlogd.yaml"
    path.write_text(text)
    return path


def faults_of(folder: Path, text: str) -> list[str]:
    path = put(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


# --- what is right


def test_a_config_comes_out_as_it_was_written(tmp_path: Path) -> None:
    got = load_config(put(tmp_path, DESIGN))
    chat, batch, lab = got.sources
    assert (chat.files, chat.timezone, batch.journal, lab.docker) == (
        ("/var/log/vllm/chat*.log",), "Europe/Berlin", "vllm-batch.service", "lab"
    )  # fmt: skip
    assert (got.gpu.enabled, got.gpu.every, got.host.enabled, got.host.every) == (Enabled.NO, 10.0, Enabled.YES, 60.0)
    assert (got.store.path, got.store.keep_raw) == (Path("/srv/kvlogd.duckdb"), 7 * 86400.0)
    override = got.rules.override["engine-stall"]
    assert (override.severity, override.keep_firing_for) == (Severity.WARNING, 3600.0)
    assert [channel.name for channel in got.channels] == ["oncall", "chat", "mail"]
    assert (got.channels[0].severities, got.channels[0].repeat_every) == ((Severity.CRITICAL,), 14_400.0)


def test_no_file_at_all_watches_vllms_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "PLACES", (tmp_path / "nowhere.yaml",))
    got = load_config()
    assert [source.files for source in got.sources] == [("/var/log/vllm/*.log",)]
    assert (got.gpu.enabled, got.channels) == (Enabled.AUTO, ())


def test_the_first_file_that_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "gpu: {every: 5s}\n")
    monkeypatch.setattr(config, "PLACES", (tmp_path / "nowhere.yaml", path))
    assert load_config().gpu.every == 5.0


@pytest.mark.parametrize("text", ["", "# only words\n"])
def test_an_empty_file_is_all_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(put(tmp_path, text)) == Config()


def test_the_example_shows_the_defaults() -> None:
    assert load_config(example_file()) == Config()


def test_what_the_example_shows_behind_a_hash_is_valid_too(tmp_path: Path) -> None:
    before, mark, channel = example_file().read_text().partition("channels: []\n")
    assert mark
    text = before + "channels:\n" + channel.replace("#  ", "  ").replace("# heartbeat", "heartbeat")
    config = load_config(put(tmp_path, text))
    quiet = QuietConfig.model_validate({"from": "22:00", "to": "07:00"})
    assert config.channels == (ChannelConfig(name="oncall", credential="oncall", quiet=quiet, tags=("leak", "outage")),)
    assert config.heartbeat == HeartbeatConfig(credential="beat")


@pytest.mark.parametrize(("text", "minutes"), [("'22:00'", 1320), ("07:30", 450), ('"0:00"', 0), ("'23:59'", 1439)])
def test_a_time_of_day_is_minutes(tmp_path: Path, text: str, minutes: int) -> None:
    channel = f"channels: [{{name: a, url_env: A, quiet: {{from: {text}, to: '12:00'}}}}]\n"
    [found] = load_config(put(tmp_path, channel)).channels
    assert found.quiet is not None
    assert (found.quiet.from_min, found.quiet.to_min) == (minutes, 720)


@pytest.mark.parametrize("text", ["'24:00'", "7", "7h", "'12:60'", "true", "22:00", "700"])
def test_what_is_no_time_of_day_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FaultsError, match="is no time of day: write it in quotes, like '22:00'"):
        load_config(put(tmp_path, f"channels: [{{name: a, url_env: A, quiet: {{from: {text}, to: '12:00'}}}}]\n"))


def test_the_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().rules = RulesConfig()


# --- what is wrong: where it stands, and the mend


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("store:", "stor:", "12: unknown key stor: did you mean store?"),
        ("journal:", "journald:", "7: unknown key journald: did you mean journal?"),
        ("keep_raw: 7d", "keep_row: 7d", "12: unknown key keep_row: did you mean keep_raw?"),
        ("severity: warning", "severty: warning", "16: unknown key severty: did you mean severity?"),
        ("severity: warning", "severity: warnin", "16: severity cannot be warnin: did you mean warning?"),
        ("enabled: no", "enabled: atuo", "10: enabled cannot be atuo: did you mean auto?"),
        ("every: 10s", "every: 10", "10: every: needs a unit: write a duration like 5m"),
        ("every: 10s", "every: 10.0", "10: every: needs a unit: write a duration like 5m"),
        ("every: 10s", "every: 0s", "10: every: must be longer than nothing: write a duration like 5m"),
        (
            "keep_raw: 7d",
            "keep_raw: 7 days",
            "12: keep_raw: '7 days' is no duration: write it like 90s, 5m, 2h or 1h30m",
        ),
        (
            "repeat_every: 4h",
            "repeat_every: 0s",
            "21: repeat_every: must be longer than nothing: write a duration like 5m",
        ),
        ("    docker: lab\n", "", "8: 2: give one of files, journal and docker"),
        ("docker: lab", "docker: lab\n    journal: x", "8: 2: give one of files, journal and docker"),
        ("name: batch", "name: chat", "1: source chat stands there twice"),
        ("{name: chat, ", "{name: oncall, ", "1: channel oncall stands there twice"),
        ("name: batch", "name: a/b", "6: name: must be up to 64 letters, digits, dots, hyphens and underscores"),
        ("    url_file: /etc/kvlogd/oncall.url\n", "", "18: 0: give one of url_file, url_env and credential"),
        ("docker: lab", "docker: lab\n    url: x", "10: unknown key url: did you mean journal?"),
        ("files: [/var/log/vllm/chat*.log]", "files: /var/log/vllm/chat.log", "3: files: must be a list"),
        ("credential: mail-url", "credential: 7", "23: credential: must be text: put it in quotes"),
        (
            "url_file: /etc",
            "url_file: etc",
            "19: url_file: must be the absolute path of a file that holds the URL, not the URL",
        ),
    ],
)
def test_each_fault_says_where_and_how_to_mend_it(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert DESIGN.count(old) == 1
    assert faults_of(tmp_path, DESIGN.replace(old, new)) == [f"kvlogd.yaml:{fault}"]


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    text = DESIGN.replace("every: 10s", "every: 10").replace("keep_raw: 7d", "keep_row: 7d")
    assert [fault.split(": ")[0] for fault in faults_of(tmp_path, text)] == ["kvlogd.yaml:10", "kvlogd.yaml:12"]


def test_a_file_that_holds_no_map(tmp_path: Path) -> None:
    assert faults_of(tmp_path, "- a\n") == ["kvlogd.yaml:1: must be keys with values"]


def test_a_file_may_nest_so_deep_and_no_deeper(tmp_path: Path) -> None:
    deep = "gpu: " + "[" * 40 + "]" * 40 + "\n"
    assert faults_of(tmp_path, deep) == ["kvlogd.yaml:1: nests too deep: use 32 levels at most"]


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "nowhere.yaml")


# --- a channel's URL is a secret


def test_a_url_in_the_file_is_refused_with_the_mend(tmp_path: Path) -> None:
    text = DESIGN.replace("url_file: /etc/kvlogd/oncall.url", f"url: {SECRET}")
    assert faults_of(tmp_path, text) == [
        "kvlogd.yaml:19: url does not belong here: a URL is a secret: write url_file, url_env or credential"
    ]


@pytest.mark.parametrize("key", ["url", "url_file", "url_env", "credential", "severities", "repeat_every", "name"])
def test_a_url_in_the_wrong_place_is_not_repeated(tmp_path: Path, key: str) -> None:
    channel = {"name": "oncall", key: SECRET}
    if not key.startswith(("url", "cred")):
        channel["url_env"] = "URL"
    lines = [f"    {name}: {value}" for name, value in channel.items()]
    faults = faults_of(tmp_path, "channels:\n  -\n" + "\n".join(lines) + "\n")
    assert len(faults) == 1
    assert "s3cr3t" not in faults[0]


# --- the address of /metrics


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/metrics", "https://gpu7.example/metrics?x=1", "http://[::1]:80"]
)
def test_the_address_of_metrics(tmp_path: Path, url: str) -> None:
    got = load_config(put(tmp_path, f"sources: [{{name: chat, files: [/var/log/a.log], metrics: '{url}'}}]\n"))
    assert got.sources[0].metrics == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8000/metrics", "with its host and port"),
        ("file:///etc/passwd", "with its host and port"),
        ("http:///metrics", "with its host and port"),
        ("http://host:99999/metrics", "with its host and port"),
        ("http://host:0/metrics", "with its host and port"),
        ("http://host/a b", "with its host and port"),
        ("http://host/\\r\\nX: y", "with its host and port"),
        ("http://someone:s3cr3t@host/metrics", "must not hold a name or password"),
    ],
)
def test_what_is_no_address_of_metrics_is_refused(tmp_path: Path, url: str, words: str) -> None:
    (fault,) = faults_of(tmp_path, f'sources: [{{name: chat, files: [/var/log/a.log], metrics: "{url}"}}]\n')
    assert words in fault
    assert "s3cr3t" not in fault
