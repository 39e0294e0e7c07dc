"""The config file: frozen, unknown keys refused, defaults that work with no file at all."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kvlogd.errors import ConfigError
from kvlogd.fields import Duration
from kvlogd.model import Severity
from kvlogd.yamlfile import FaultsError, checked, load

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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Frozen):
    """One thing to watch: files, a journal unit or a container, and perhaps its /metrics."""

    name: Name
    files: tuple[str, ...] = ()
    """Glob patterns."""
    journal: str | None = None
    docker: str | None = None
    metrics: str | None = None
    timezone: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> "SourceConfig":
        if sum([bool(self.files), self.journal is not None, self.docker is not None]) != 1:
            raise ValueError("give one of files, journal and docker")
        return self


class SamplerConfig(_Frozen):
    """How often a device or the host is looked at."""

    enabled: Switch = Enabled.AUTO
    every: Duration = 30.0


class StoreConfig(_Frozen):
    """Where the history lies and how long it is kept."""

    path: Path = Path("/var/lib/kvlogd/kvlogd.duckdb")
    keep_raw: Duration = 30 * 86400.0
    keep_minutes: Duration = 400 * 86400.0


class OverrideConfig(_Frozen):
    """What of a shipped rule is changed."""

    severity: Severity | None = None
    keep_firing_for: Duration | None = None


class RulesConfig(_Frozen):
    """Which rules are used."""

    folders: tuple[Path, ...] = ()
    disable: tuple[str, ...] = ()
    override: dict[str, OverrideConfig] = Field(default_factory=dict)


class ChannelConfig(_Frozen):
    """Where alerts go. The URL is a secret: it stands in a file, an environment variable or a credential."""

    name: Name
    url_file: Path | None = None
    url_env: str | None = None
    credential: str | None = None
    severities: tuple[Severity, ...] = (Severity.CRITICAL, Severity.WARNING)
    repeat_every: Duration = 4 * 3600.0

    @model_validator(mode="after")
    def _one_secret(self) -> "ChannelConfig":
        if sum(secret is not None for secret in (self.url_file, self.url_env, self.credential)) != 1:
            raise ValueError("give one of url_file, url_env and credential")
        return self


class Config(_Frozen):
    """The whole file."""

    sources: tuple[SourceConfig, ...] = (SourceConfig(name="vllm", files=("/var/log/vllm/*.log",)),)
    gpu: SamplerConfig = SamplerConfig()
    host: SamplerConfig = SamplerConfig()
    store: StoreConfig = StoreConfig()
    rules: RulesConfig = RulesConfig()
    channels: tuple[ChannelConfig, ...] = ()

    @model_validator(mode="after")
    def _names_once(self) -> "Config":
        for what, names in (("source", [s.name for s in self.sources]), ("channel", [c.name for c in self.channels])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what} {min(twice)} stands there twice")
        return self


def load_config(path: Path | None = None) -> Config:
    """Return the config of a file, or of the first that is there, or the defaults. Raises ConfigError, FaultsError."""
    if path is None:
        path = next((place for place in PLACES if place.is_file()), None)
    if path is None:
        return Config()
    document = load(path)
    if document.value is None:
        return Config()
    try:
        return checked(document, document.value, (), Config)
    except FaultsError as error:
        raise FaultsError([_secret_mend(fault) for fault in error.all]) from error


def _secret_mend(fault: ConfigError) -> ConfigError:
    """Say where a channel's URL belongs to somebody who wrote it into the config."""
    if fault.what != "unknown key url":
        return fault
    mend = "a URL is a secret: write url_file, url_env or credential"
    return ConfigError("url does not belong here", where=fault.where, mend=mend)
