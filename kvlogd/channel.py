"""From a channel of the config to its URL, which is a secret: out of a file, a variable or a systemd credential.

Promises that a URL is shown nowhere: it is a `Secret`, and errors name its place and how it begins, no more. A file
that others can read is refused. Does not look at what the URL means: `postman.flaws` has Apprise do that.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvlogd.config import ChannelConfig
from kvlogd.errors import ConfigError
from kvlogd.parcel import Flaw
from kvlogd.systemd import credential
from kvlogd.yamlfile import FaultsError

MAX_BYTES = 4096
"""What a file that holds a URL may hold; a longer one is something else, named by mistake."""
_SCHEMA = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")


class Secret:
    """A text that comes out only where it is asked for; never in a message, a log, a trace or a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def masked(self) -> str:
        """Return how a URL begins, which is no secret."""
        schema = _SCHEMA.match(self._text)
        return f"{schema[1].lower()}://***" if schema else "***"

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written down")


def urls(channels: Sequence[ChannelConfig], environment: Mapping[str, str]) -> dict[str, Secret]:
    """Return each channel's URL by the channel's name. Raises FaultsError with all that cannot be got."""
    found: dict[str, Secret] = {}
    faults: list[ConfigError] = []
    for channel in channels:
        try:
            found[channel.name] = url(channel, environment)
        except ConfigError as fault:
            faults.append(fault)
    if faults:
        raise FaultsError(faults)
    return found


def url(channel: ChannelConfig, environment: Mapping[str, str]) -> Secret:
    """Return the URL of one channel. Raises ConfigError."""
    at = where(channel)
    if channel.url_env is not None:
        text = environment.get(channel.url_env, "")
        if not text:
            raise ConfigError("the variable is not set", where=at, mend="set it for the service: EnvironmentFile=")
        return _checked(text, at)
    path = channel.url_file
    if channel.credential is not None:
        path = credential(environment, channel.credential)
        if path is None:
            given = f"LoadCredential={channel.credential}:FILE"
            by_hand = f"systemd-run --same-dir --pipe --wait -p {given}"
            mend = f"add {given} to the unit; by hand, put before the command: {by_hand}"
            raise ConfigError("the service was given no such credential", where=at, mend=mend)
    if path is None:
        raise ConfigError("has no URL", where=at, mend="give one of url_file, url_env and credential")
    return _checked(_first_line(path, at, is_given=_is_given(path, environment)), at)


def where(channel: ChannelConfig) -> str:
    """Return how messages name a channel and the place of its URL."""
    if channel.url_file is not None:
        return f"channel {channel.name}: {channel.url_file}"
    if channel.url_env is not None:
        return f"channel {channel.name}: url_env {channel.url_env}"
    return f"channel {channel.name}: credential {channel.credential}"


def flaw_fault(channel: ChannelConfig, secret: Secret, flaw: Flaw) -> ConfigError:
    """Return what to say of a URL that is of no use."""
    if flaw is Flaw.SCHEMA:
        what, mend = "nothing is known that sends to it", "begin it with e.g. slack://, mailto:// or json://"
    else:
        what, mend = "it cannot be understood", "hold it against Apprise's description of this service"
    return ConfigError(f"{secret.masked()}: {what}", where=where(channel), mend=mend)


def _is_given(path: Path, environment: Mapping[str, str]) -> bool:
    """Tell a file that systemd put there for this service alone; its mode is systemd's business."""
    folder = environment.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and path.parent == Path(folder or "")


def _first_line(path: Path, at: str, *, is_given: bool) -> str:
    try:
        # a FIFO must not make us wait for its writer
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise ConfigError(f"cannot be read ({why})", where=at, mend="check path and rights") from error
    try:
        _refuse_unfit(os.fstat(fd), path, at, is_given=is_given)
        data = os.read(fd, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=at, mend="check the disk") from error
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise ConfigError("is larger than 4 KiB", where=at, mend="write the URL alone into the file")
    return data.decode("utf-8-sig", "replace").partition("\n")[0]


def _refuse_unfit(status: os.stat_result, path: Path, at: str, *, is_given: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("is no regular file", where=at, mend="put the URL into a file")
    if not is_given and _is_open_to_others(status):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"others can read this secret (mode {mode:04o})", where=at, mend=f"chmod 600 {path}")


def _is_open_to_others(status: os.stat_result) -> bool:
    """Tell a file that others than its owner can read, or write.

    root's files may be readable by one group: there is no other way to hand one to a service that is not root.
    """
    handed_on = stat.S_IRGRP if status.st_uid == 0 else 0
    return bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~handed_on)


def _checked(text: str, at: str) -> Secret:
    text = text.strip()
    if not text:
        raise ConfigError("is empty", where=at, mend="write the channel's URL into its first line")
    if not text.isprintable() or "\ufffd" in text:
        raise ConfigError("holds no text of one line", where=at, mend="write the channel's URL into its first line")
    return Secret(text)
