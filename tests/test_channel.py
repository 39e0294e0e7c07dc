"""A channel's URL comes from where the config says, is shown nowhere, and is refused where others can read it."""

import json
import os
import pickle
from pathlib import Path

import pytest

from kvlogd.channel import MAX_BYTES, Secret, url, urls
from kvlogd.config import ChannelConfig
from kvlogd.errors import ConfigError
from kvlogd.yamlfile import FaultsError

URL = "json://user:CANARY-7f3a@hooks.example.test/CANARY-7f3a"


def written(path: Path, text: str | bytes = URL, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def of_file(path: Path) -> ChannelConfig:
    return ChannelConfig(name="oncall", url_file=path)


def fault(channel: ChannelConfig, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        url(channel, environment or {})
    assert "CANARY" not in repr(caught.value) + str(caught.value)
    assert caught.value.mend
    return str(caught.value)


@pytest.mark.parametrize("text", [URL, URL + "\n", f"  {URL} \r\n# a comment\n", "\ufeff" + URL])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_first_line_of_a_file_is_the_url(tmp_path: Path, text: str, mode: int) -> None:
    assert url(of_file(written(tmp_path / "url", text, mode)), {}).reveal() == URL


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o640, 0o660, 0o602, 0o620, 0o777])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "url", mode=mode)
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    wanted = f"channel oncall: {path}: others can read this secret (mode {mode:04o}): chmod 600 {path}"
    assert fault(of_file(path)) == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of root")
def test_root_may_hand_a_file_to_the_group_of_a_service(tmp_path: Path) -> None:
    assert url(of_file(written(tmp_path / "url", mode=0o640)), {}).reveal() == URL
    for mode in (0o660, 0o650, 0o644):
        assert "others can read" in fault(of_file(written(tmp_path / "url", mode=mode)))


def test_what_systemd_put_there_is_taken_whatever_its_mode(tmp_path: Path) -> None:
    written(tmp_path / "oncall-url", mode=0o440)
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert url(ChannelConfig(name="oncall", credential="oncall-url"), given).reveal() == URL
    assert url(of_file(tmp_path / "oncall-url"), given).reveal() == URL
    (tmp_path / "oncall-url").chmod(0o444)
    assert url(of_file(tmp_path / "oncall-url"), given).reveal() == URL
    assert "others can read" in fault(of_file(tmp_path / "oncall-url"))


def test_a_variable_holds_the_url() -> None:
    channel = ChannelConfig(name="oncall", url_env="ONCALL")
    assert url(channel, {"ONCALL": URL}).reveal() == URL
    for environment in ({}, {"ONCALL": ""}):
        assert fault(channel, environment).startswith("channel oncall: url_env ONCALL: the variable is not set: ")
    assert "is empty" in fault(channel, {"ONCALL": "  "})


def test_a_credential_that_was_not_given_is_named(tmp_path: Path) -> None:
    channel = ChannelConfig(name="oncall", credential="oncall-url")
    for environment in ({}, {"CREDENTIALS_DIRECTORY": str(tmp_path)}):
        told = fault(channel, environment)
        assert told.startswith("channel oncall: credential oncall-url: the service was given no such credential")
        assert "LoadCredential=oncall-url:FILE" in told


def test_what_is_no_url_is_refused_without_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "url"
    cases: list[tuple[str | bytes, str]] = [
        ("", "is empty"),
        ("\nCANARY", "is empty"),
        (b"json://CANARY\x00\x1b", "holds no text of one line"),
        (b"json://CANARY\xff\xfe", "holds no text of one line"),
        ("CANARY" + "x" * MAX_BYTES, "is larger than 4 KiB"),
    ]
    for text, what in cases:
        assert what in fault(of_file(written(path, text)))


def test_what_is_no_file_is_refused_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name in ("fifo", "folder"):
        assert "is no regular file" in fault(of_file(tmp_path / name))
    assert "is no regular file" in fault(of_file(Path("/dev/null")))
    assert "cannot be read (No such file or directory)" in fault(of_file(tmp_path / "none"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    assert "cannot be read (Permission denied)" in fault(of_file(written(tmp_path / "url", mode=0o000)))


def test_a_link_is_followed_to_its_file(tmp_path: Path) -> None:
    """Kubernetes puts secrets there as links."""
    (tmp_path / "link").symlink_to(written(tmp_path / "url"))
    assert url(of_file(tmp_path / "link"), {}).reveal() == URL


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    good, bad = of_file(written(tmp_path / "url")), ChannelConfig(name="chat", url_env="CHAT")
    assert urls([good], {}) == {"oncall": Secret(URL)}
    with pytest.raises(FaultsError) as caught:
        urls([good, bad, ChannelConfig(name="mail", credential="mail-url")], {})
    assert [one.where.split(":")[0] for one in caught.value.all] == ["channel chat", "channel mail"]


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(URL)
    shown = f"{secret} {secret!r} {secret!s} {[secret]} {secret:}" + "%s" % secret  # noqa: UP031
    assert "CANARY" not in shown
    assert (secret.masked(), Secret("CANARY").masked()) == ("json://***", "***")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"url": secret})
    assert (secret == Secret(URL), secret == Secret("other"), secret == URL) == (True, False, False)
    assert len({secret, Secret(URL)}) == 1
