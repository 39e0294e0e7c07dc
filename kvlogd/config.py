"""The config file: frozen, unknown keys refused, defaults that work with no file at all."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kvlogd.errors import ConfigError
from kvlogd.fields import Count, Duration, Span
from kvlogd.model import Severity
from kvlogd.yamlfile import Document, FaultsError, checked, load, load_block

PLACES = (Path("/etc/kvlogd/kvlogd.yaml"), Path("config/kvlogd.yaml"))
"""Where the config is looked for when no file is named."""


class Enabled(StrEnum):
    """Whether a source of samples is used; `auto`: where it is there."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def _switch(value: object) -> object:
    # YAML reads a bare yes and no as true and false
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


Switch = Annotated[Enabled, BeforeValidator(_switch)]


def _label(text: str) -> str:
    if not text or not all(c.isalnum() or c in "._-" for c in text) or len(text) > 64:
        raise ValueError("must be up to 64 letters, digits, dots, hyphens and underscores")
    return text


Name = Annotated[str, AfterValidator(_label)]


def _page(text: str) -> str:
    wanted = "must be the http or https address of vLLM's /metrics, with its host and port"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(wanted) from None
    if "@" in parts.netloc:
        raise ValueError("must not hold a name or password: leave /metrics open to this host")
    plain = text.isascii() and text.isprintable() and " " not in text
    if not plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(wanted)
    return text


PageUrl = Annotated[str, AfterValidator(_page)]


def _secret_name(text: str) -> str:
    # a URL that was put here by mistake must not come back in the message
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", text):
        raise ValueError("must be the name of the variable or credential that holds the URL, not the URL")
    return text


def _secret_file(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be the absolute path of a file that holds the URL, not the URL")
    return path


SecretName = Annotated[str, AfterValidator(_secret_name)]
SecretFile = Annotated[Path, AfterValidator(_secret_file)]


def _clock_time(value: object) -> object:
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", value) if isinstance(value, str) else None
    if match is None:
        # a bare 22:00 is 1320 to YAML, which could as well be a number that somebody wrote
        raise ValueError("is no time of day: write it in quotes, like '22:00'")
    return 60 * int(match[1]) + int(match[2])


ClockTime = Annotated[int, BeforeValidator(_clock_time)]
"""Minutes since midnight."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Frozen):
    """One thing to watch: files, a journal unit or a container, and perhaps its /metrics."""

    name: Name
    files: tuple[str, ...] = ()
    """Glob patterns."""
    journal: str | None = None
    docker: str | None = None
    metrics: PageUrl | None = None
    """Where its vLLM serves /metrics; asked every 10 s."""
    timezone: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> "SourceConfig":
        if sum([bool(self.files), self.journal is not None, self.docker is not None]) != 1:
            raise ValueError("give one of files, journal and docker")
        return self


class SamplerConfig(_Frozen):
    """How often a device or the host is looked at."""

    enabled: Switch = Enabled.AUTO
    every: Span = 30.0


class StoreConfig(_Frozen):
    """Where the history lies and how long it is kept."""

    path: Path = Path("/var/lib/kvlogd/kvlogd.duckdb")
    socket: Path | None = None
    """Where the daemon answers `kvlogd sql` and `kvlogd status`; None: see `wire.place`."""
    keep_raw: Span = 30 * 86400.0
    keep_minutes: Span = 400 * 86400.0


class OverrideConfig(_Frozen):
    """What of a shipped rule is changed."""

    severity: Severity | None = None
    keep_firing_for: Duration | None = None
    tags: tuple[Name, ...] | None = None


class RulesConfig(_Frozen):
    """Which rules are used."""

    folders: tuple[Path, ...] = ()
    disable: tuple[str, ...] = ()
    override: dict[str, OverrideConfig] = Field(default_factory=dict)


class _SecretUrl(_Frozen):
    """A URL that is a secret: it stands in a file, an environment variable or a credential."""

    url_file: SecretFile | None = None
    url_env: SecretName | None = None
    credential: SecretName | None = None

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if sum(secret is not None for secret in (self.url_file, self.url_env, self.credential)) != 1:
            raise ValueError("give one of url_file, url_env and credential")
        return self


class QuietConfig(_Frozen):
    """The hours in which a channel takes only what is severe."""

    from_min: ClockTime = Field(alias="from")
    to_min: ClockTime = Field(alias="to")
    timezone: str | None = None
    """None: the host's."""
    below: Severity = Severity.CRITICAL
    """What is less severe waits for the end."""


class ChannelConfig(_SecretUrl):
    """Where alerts go."""

    name: Name
    severities: tuple[Severity, ...] = (Severity.CRITICAL, Severity.WARNING)
    tags: tuple[Name, ...] | None = None
    """Only what rules find that carry one of them; None: what any rule finds."""
    repeat_every: Span = 4 * 3600.0
    quiet: QuietConfig | None = None
    burst: Count = 10
    """Messages a minute; what is more is summed up."""


class HeartbeatConfig(_SecretUrl):
    """A URL that is fetched as long as all goes well; who watches it tells when that ends."""

    every: Span = 60.0


class Config(_Frozen):
    """The whole file."""

    sources: tuple[SourceConfig, ...] = (SourceConfig(name="vllm", files=("/var/log/vllm/*.log",)),)
    watch: bool = True
    """Whether inotify tells of new and rotated files at once; without it they are found within seconds."""
    gpu: SamplerConfig = SamplerConfig()
    host: SamplerConfig = SamplerConfig()
    store: StoreConfig = StoreConfig()
    rules: RulesConfig = RulesConfig()
    channels: tuple[ChannelConfig, ...] = ()
    heartbeat: HeartbeatConfig | None = None

    @model_validator(mode="after")
    def _names_once(self) -> "Config":
        for what, names in (("source", [s.name for s in self.sources]), ("channel", [c.name for c in self.channels])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what} {min(twice)} stands there twice")
        return self


def example_file() -> Path:
    """Return where the commented example lies: in the installed package, else in the checkout."""
    inside = Path(__file__).parent / "shipped" / "config" / "kvlogd.yaml"
    return inside if inside.is_file() else Path(__file__).parent.parent / "config" / "kvlogd.yaml"


def load_config(path: Path | None = None) -> Config:
    """Return the config of a file, or of the first that is there, or the defaults. Raises ConfigError, FaultsError."""
    path = _found(path)
    if path is None:
        return Config()
    document = load(path)
    if document.value is None:
        return Config()
    try:
        return checked(document, document.value, (), Config)
    except FaultsError as error:
        raise FaultsError([_secret_mend(document, fault) for fault in error.all]) from error


def load_store(path: Path | None = None) -> StoreConfig:
    """Return where store and socket are by a config that may be wrong elsewhere. Raises ConfigError."""
    path = _found(path)
    document = None if path is None else load_block(path, "store")
    said = document.value.get("store") if document is not None and isinstance(document.value, dict) else None
    if document is None or not isinstance(said, dict):
        return StoreConfig()
    return checked(document, {key: said[key] for key in ("path", "socket") if key in said}, ("store",), StoreConfig)


def _found(path: Path | None) -> Path | None:
    return next((place for place in PLACES if place.is_file()), None) if path is None else path


def _secret_mend(document: Document, fault: ConfigError) -> ConfigError:
    """Say where a channel's URL belongs to somebody who wrote it into the config."""
    urls = {document.where(place) for place in document.lines if place[:1] == ("channels",) and place[2:] == ("url",)}
    if fault.what != "unknown key url" or fault.where not in urls:
        return fault
    mend = "a URL is a secret: write url_file, url_env or credential"
    return ConfigError("url does not belong here", where=fault.where, mend=mend)
