"""What the daemon is told to do: the config, and the rules with what the config changes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvlogd.config import Config, load_config
from kvlogd.errors import ConfigError
from kvlogd.quantity import nearest
from kvlogd.rules import Rule, load_rules, shipped_folder


class Setup(NamedTuple):
    """A config that was checked, and its rules."""

    config: Config
    rules: tuple[Rule, ...]


def load_setup(config_path: Path | None, more_rules: Sequence[Path] = ()) -> Setup:
    """Return the config of a file (or of the usual places) and its rules. Raises ConfigError, FaultsError."""
    config = load_config(config_path)
    rules = load_rules([shipped_folder(), *config.rules.folders, *more_rules])
    ids = [rule.id for rule in rules]
    for name in (*config.rules.disable, *config.rules.override):
        if name not in ids:
            raise ConfigError("no rule of that name", where=f"rules: {name}", mend=nearest(name, ids))
    return Setup(config, tuple(_changed(rule, config) for rule in rules if rule.id not in config.rules.disable))


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
    return rule._replace(severity=severity, keep_firing_for_s=keep_s)
