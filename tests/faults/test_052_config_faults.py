"""Scenario 52: a channel that can reach nobody is refused by `kvlogd check` and at the start; a running one stays.

Bad URL, unknown schema, a name, tag or severity that matches nothing, an empty file, a credential that is not there, a
secret that others can read: each is named with its channel and the mend, and no URL is shown.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.service import CONFIG
from tests.command import kvlogd
from tests.daemon import Running

CANARY = "CANARY-4b1d"


def channel(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "oncall.url"
    path.write_text(text)
    path.chmod(mode)
    return f"channels: [{{name: oncall, url_file: {path}}}]\n"


FAULTS = {
    "unknown schema": (f"bogus://{CANARY}", 0o600, "bogus://***: nothing is known that sends to it"),
    "no schema": (CANARY, 0o600, "***: nothing is known that sends to it"),
    "bad url": (f"slack://{CANARY}", 0o600, "slack://***: it cannot be understood"),
    "empty": ("\n", 0o600, "is empty"),
    "others can read it": (f"json://127.0.0.1/{CANARY}", 0o644, "others can read this secret (mode 0644)"),
}
NOBODY = {
    "credential": ("credential: oncall-url", "the service was given no such credential"),
    "variable": ("url_env: KVLOGD_TEST_NO_SUCH_URL", "the variable is not set"),
    "no file": ("url_file: /nonexistent/oncall.url", "cannot be read (No such file or directory)"),
    "no severity": ("url_env: PATH, severities: []", "severities: is empty"),
    "tag that matches nothing": ("url_env: PATH, tags: [gpus]", "tags: no rule carries gpus: did you mean gpu?"),
    "no tag": ("url_env: PATH, tags: []", "tags: is empty"),
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    daemon = Running(tmp_path)
    daemon.log.touch()
    yield daemon
    daemon.close()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "none"))
    return tmp_path / "kvlogd.yaml"


@pytest.mark.parametrize("name", FAULTS)
def test_a_url_that_is_of_no_use_is_refused(config: Path, name: str) -> None:
    text, mode, what = FAULTS[name]
    config.write_text(channel(config.parent, text, mode))
    told = kvlogd("check", "--config", config)
    assert (told.status, told.out) == (2, "")
    assert f"channel oncall: {config.parent}/oncall.url: " in told.complaint
    assert what in told.complaint
    assert CANARY not in told.err


@pytest.mark.parametrize("name", NOBODY)
def test_a_channel_without_a_url_or_without_anything_to_send_is_refused(config: Path, name: str) -> None:
    keys, what = NOBODY[name]
    config.write_text(f"channels: [{{name: oncall, {keys}}}]\n")
    told = kvlogd("check", "--config", config)
    assert (told.status, told.out) == (2, "")
    assert told.complaint.startswith("kvlogd: channel oncall")
    assert what in told.complaint


@pytest.mark.parametrize("name", ["bad url", "others can read it"])
def test_the_daemon_refuses_it_in_the_same_words(running: Running, name: str) -> None:
    text, mode, what = FAULTS[name]
    running.config.write_text(running.config.read_text() + channel(running.folder, text, mode))
    running.start()
    assert running.process is not None
    assert running.process.wait(60) == CONFIG
    assert what in running.said.read_text()
    assert CANARY not in running.said.read_text()


def test_a_rule_that_notifies_a_channel_which_is_not_there_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.yaml").write_text(
        "id: mine\nverdict: mine\nseverity: info\nper: engine\nwhen: {threshold: {signal: waiting, above: 5}}\n"
        "why: it waits\ndo: [look]\nnotify: [oncal]\n"
    )
    config = tmp_path / "kvlogd.yaml"
    config.write_text(channel(tmp_path, "json://127.0.0.1/x") + f"rules: {{folders: [{rules}]}}\n")
    told = kvlogd("check", "--config", config)
    assert told.status == 2
    assert told.complaint.endswith("mine.yaml: notify: no channel oncal: did you mean oncall?")


def test_a_tag_that_an_override_took_from_its_only_rule_is_refused(config: Path) -> None:
    text = "channels: [{name: oncall, url_env: PATH, tags: [host]}]\n"
    config.write_text(f"{text}rules: {{override: {{host-memory-growth: {{tags: [mine]}}}}}}\n")
    told = kvlogd("check", "--config", config)
    assert told.complaint.startswith("kvlogd: channel oncall: tags: no rule carries host")


def test_rules_that_reach_no_channel_are_named(tmp_path: Path) -> None:
    config = tmp_path / "kvlogd.yaml"
    config.write_text(channel(tmp_path, "json://127.0.0.1/x").replace("}", ", tags: [leak, outage]}"))
    told = kvlogd("check", "--config", config)
    assert told.status == 0
    last = told.out.splitlines()[-1]
    assert last.startswith("told to no channel, by their tags: data-source, ")
    assert "kv-leak" not in last


def test_a_good_channel_is_fine_and_credentials_are_left_to_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kvlogd.yaml"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    config.write_text(
        channel(tmp_path, f"json://127.0.0.1/{CANARY}").removesuffix("]\n") + ", {name: mail, credential: mail-url}]\n"
    )
    told = kvlogd("check", "--config", config)
    assert (told.status, told.err) == (0, "")
    assert "2 channels (1 of them by credentials" in told.out
    assert CANARY not in told.out


def test_a_reload_with_a_bad_url_changes_nothing(running: Running) -> None:
    good = running.config.read_text()
    running.config.write_text(good + channel(running.folder, f"json://127.0.0.1/{CANARY}"))
    running.up()
    channel(running.folder, f"slack://{CANARY}")
    running.send(signal.SIGHUP)
    running.wait_for("reload failed: the old config is in force")
    assert "slack://***: it cannot be understood" in running.said.read_text()
    channel(running.folder, f"json://127.0.0.1/other-{CANARY}")
    running.send(signal.SIGHUP)
    running.wait_for("RELOADING=1")
    running.wait_for("READY=1")
    assert "reload: in order again" in running.said.read_text()
    assert CANARY not in running.said.read_text()
    assert running.stop() == 0
