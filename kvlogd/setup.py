"""What the daemon is told to do: the config, the rules with what the config changes of them, and where alerts go."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kvlogd.channel import Secret, flaw_fault, url, urls
from kvlogd.config import ChannelConfig, Config, HeartbeatConfig, load_config
from kvlogd.errors import ConfigError
from kvlogd.postman import flaws
from kvlogd.quantity import count_text, nearest, sources_text
from kvlogd.rules import Rule, load_rules, shipped_folder
from kvlogd.stamp import zone
from kvlogd.yamlfile import FaultsError


class Setup(NamedTuple):
    """A config that was checked, its rules, and the URLs of its channels."""

    config: Config
    rules: tuple[Rule, ...]
    urls: Mapping[str, Secret] = MappingProxyType({})
    is_asked: bool = True
    """False where Apprise could not be asked in time whether it understands the URLs."""
    heartbeat: Secret | None = None
    """The URL of the heartbeat."""


def read_setup(config_path: Path | None, more_rules: Sequence[Path] = ()) -> Setup:
    """Return the config of a file (or of the usual places) and its rules, without any URL.

    Raises ConfigError, FaultsError.
    """
    config = load_config(config_path)
    rules = load_rules([shipped_folder(), *config.rules.folders, *more_rules])
    ids = [rule.id for rule in rules]
    for name in (*config.rules.disable, *config.rules.override):
        if name not in ids:
            raise ConfigError("no rule of that name", where=f"rules: {name}", mend=nearest(name, ids))
    changed = [_changed(rule, config) for rule in rules]
    used = tuple(rule for rule in changed if rule.id not in config.rules.disable)
    # a channel may wait for a rule that is left out for now
    _refuse_what_reaches_nobody(config, used, sorted({tag for rule in changed for tag in rule.tags}))
    return Setup(config, used)


def load_setup(
    config_path: Path | None, more_rules: Sequence[Path] = (), known: Iterable[Secret] = (), *, by_hand: bool = False
) -> Setup:
    """Return what `read_setup` does, with the URLs. Raises ConfigError, FaultsError.

    Apprise is asked about URLs that are not known, which takes a second. `by_hand` passes over the credentials that
    only the service is given.
    """
    setup = read_setup(config_path, more_rules)
    config = setup.config
    skipped = by_hand and "CREDENTIALS_DIRECTORY" not in os.environ
    found = urls([c for c in config.channels if not (skipped and c.credential is not None)], os.environ)
    heartbeat = None if config.heartbeat is None else _heartbeat(config.heartbeat, skipped=skipped)
    is_asked = _refuse_flaws(config, found, known)
    return setup._replace(urls=MappingProxyType(found), is_asked=is_asked, heartbeat=heartbeat)


def _heartbeat(config: HeartbeatConfig, *, skipped: bool) -> Secret | None:
    if skipped and config.credential is not None:
        return None
    place = config.model_dump(include={"url_file", "url_env", "credential"})
    found = url(ChannelConfig(name="heartbeat", **place), os.environ)
    if found.masked() not in ("http://***", "https://***"):
        raise ConfigError(
            f"{found.masked()}: is no address of the web", where="heartbeat", mend="begin it with https://"
        )
    return found


def counts_text(setup: Setup) -> str:
    """Return how much there is to watch and to judge by, counted as `kvlogd status` does."""
    sources = setup.config.sources
    pages = sum(source.metrics is not None for source in sources)
    return f"{sources_text(len(sources), pages)}, {count_text(len(setup.rules), 'rule')}"


def homed(setup: Setup, folder: Path | None) -> Setup:
    """Return the setup with its store in the unit's state folder, where the config does not say where it lies."""
    store = setup.config.store
    if folder is None or "path" in store.model_fields_set or folder.resolve() == store.path.parent.resolve():
        return setup
    placed = store.model_copy(update={"path": folder / store.path.name})
    return setup._replace(config=setup.config.model_copy(update={"store": placed}))


def _changed(rule: Rule, config: Config) -> Rule:
    override = config.rules.override.get(rule.id)
    if override is None:
        return rule
    severity = rule.severity if override.severity is None else override.severity
    keep_s = rule.keep_firing_for_s if override.keep_firing_for is None else override.keep_firing_for
    tags = rule.tags if override.tags is None else override.tags
    return rule._replace(severity=severity, keep_firing_for_s=keep_s, tags=tags)


def routes(channels: Iterable[ChannelConfig], rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """Return which channels are told what a rule finds: those that it names, else those that take one of its tags."""
    asked = [(channel.name, channel.tags) for channel in channels]
    return {
        rule.id: rule.notify or tuple(name for name, tags in asked if tags is None or {*tags} & {*rule.tags})
        for rule in rules
    }


def _refuse_what_reaches_nobody(config: Config, rules: Sequence[Rule], carried: list[str]) -> None:
    names = [channel.name for channel in config.channels]
    for channel in config.channels:
        if channel.quiet is not None and channel.quiet.timezone is not None:
            zone(channel.quiet.timezone)
    faults = [
        ConfigError(f"notify: no channel {name}", where=str(rule.path), mend=nearest(name, names))
        for rule in rules
        for name in rule.notify
        if name not in names
    ]
    faults += [
        ConfigError("severities: is empty: nothing would be sent", where=f"channel {channel.name}", mend="name one")
        for channel in config.channels
        if not channel.severities
    ]
    for channel in config.channels:
        where = f"channel {channel.name}"
        if channel.tags == ():
            faults.append(ConfigError("tags: is empty: nothing would be sent", where=where, mend="name one"))
        faults += [
            ConfigError(f"tags: no rule carries {tag}", where=where, mend=nearest(tag, carried))
            for tag in channel.tags or ()
            if tag not in carried
        ]
    if faults:
        raise FaultsError(faults)


def _refuse_flaws(config: Config, found: Mapping[str, Secret], known: Iterable[Secret]) -> bool:
    """Have Apprise look at the URLs; return whether it did."""
    trusted = set(known)
    told = flaws({name: secret.reveal() for name, secret in found.items() if secret not in trusted})
    if told:
        channels = [channel for channel in config.channels if channel.name in told]
        raise FaultsError([flaw_fault(one, found[one.name], told[one.name]) for one in channels])
    return told is not None
