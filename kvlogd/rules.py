"""Rule files: YAML in, frozen `Rule` records out; everything wrong with any file is said at once, with file:line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kvlogd.errors import ConfigError
from kvlogd.fields import Duration
from kvlogd.kinds import KINDS
from kvlogd.model import NoData, Per, Severity
from kvlogd.quantity import nearest
from kvlogd.yamlfile import Document, FaultsError, checked, load

_SLUG = re.compile(r"[a-z][a-z0-9-]{0,40}")


def _slug(text: str) -> str:
    if not _SLUG.fullmatch(text):
        raise ValueError("must be lower-case letters, digits and hyphens, like kv-leak")
    return text


Slug = Annotated[str, AfterValidator(_slug)]


class Leaf(NamedTuple):
    """One condition: a kind and its checked parameters."""

    kind: str
    params: BaseModel


class AllOf(NamedTuple):
    """All of these must hold."""

    parts: tuple["Condition", ...]


class AnyOf(NamedTuple):
    """One of these must hold; the first that does gives the evidence."""

    parts: tuple["Condition", ...]


Condition = Leaf | AllOf | AnyOf


class Rule(NamedTuple):
    """One rule, ready to be evaluated. Frozen: what changes lives in the alert's state."""

    id: str
    verdict: str
    severity: Severity
    per: Per
    when: Condition
    unless: tuple[Condition, ...]
    for_s: float
    keep_firing_for_s: float
    no_data: NoData
    why: str
    do: tuple[str, ...]
    notify: tuple[str, ...]
    path: Path

    def kinds(self) -> list[str]:
        """Return the kinds of condition that it uses, each once."""
        return sorted({kind for condition in (self.when, *self.unless) for kind in _kinds_in(condition)})


def _kinds_in(condition: Condition) -> set[str]:
    if isinstance(condition, Leaf):
        return {condition.kind}
    return {kind for part in condition.parts for kind in _kinds_in(part)}


class _File(BaseModel):
    """The keys of a rule file; the conditions are checked one by one afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Slug
    verdict: Slug
    severity: Severity
    per: Per
    when: dict[str, Any]
    unless: list[dict[str, Any]] = Field(default_factory=list)
    for_s: Duration = Field(default=0.0, alias="for")
    keep_firing_for: Duration = 0.0
    no_data: NoData = NoData.HOLD
    why: str
    do: list[str]
    notify: list[str] = Field(default_factory=list)


def shipped_folder() -> Path:
    """Return where the shipped rules lie: in the installed package, else in the checkout."""
    inside = Path(__file__).parent / "shipped" / "rules"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "rules"


def load_rules(folders: Sequence[Path]) -> tuple[Rule, ...]:
    """Return the rules of all `*.yaml` files of some folders. Raises FaultsError with everything that is wrong."""
    rules: dict[str, Rule] = {}
    faults: list[ConfigError] = []
    for path in _files(folders, faults):
        try:
            rule = load_rule(path)
        except FaultsError as error:
            faults += error.all
        except ConfigError as error:
            faults.append(error)
        else:
            if rule.id in rules:
                what = f"id {rule.id} is also that of {rules[rule.id].path}"
                faults.append(ConfigError(what, where=f"{path}:1", mend="give it another id"))
            rules[rule.id] = rule
    if faults:
        raise FaultsError(faults)
    return tuple(rules.values())


def _files(folders: Sequence[Path], faults: list[ConfigError]) -> list[Path]:
    files: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            faults.append(ConfigError("is no folder of rules", where=str(folder), mend="name a folder of *.yaml files"))
        files += sorted(path for path in folder.glob("*.yaml") if not path.name.endswith(".test.yaml"))
    return files


def load_rule(path: Path) -> Rule:
    """Return the rule of one file. Raises ConfigError or FaultsError."""
    document = load(path)
    if not isinstance(document.value, dict):
        raise ConfigError(
            "is no rule", where=f"{path}:1", mend="a rule has the keys id, verdict, severity, per, when, …"
        )
    file = checked(document, document.value, (), _File)
    faults: list[ConfigError] = []
    when = _condition(document, file.when, ("when",), file.per, faults)
    unless = [_condition(document, one, ("unless", i), file.per, faults) for i, one in enumerate(file.unless)]
    if faults or when is None:
        raise FaultsError(faults)
    return Rule(
        file.id,
        file.verdict,
        file.severity,
        file.per,
        when,
        tuple(one for one in unless if one is not None),
        file.for_s,
        file.keep_firing_for,
        file.no_data,
        " ".join(file.why.split()),
        tuple(file.do),
        tuple(file.notify),
        path,
    )


def _condition(
    document: Document, value: dict[str, Any], place: tuple[str | int, ...], per: Per, faults: list[ConfigError]
) -> Condition | None:
    """Return a condition tree, adding what is wrong with it to `faults`."""
    where = document.where(place)
    if len(value) != 1:
        faults.append(ConfigError("needs exactly one kind of condition", where=where, mend=_known_kinds("")))
        return None
    [(kind, params)] = value.items()
    if kind in ("all", "any"):
        return _combination(document, kind, params, (*place, kind), per, faults)
    module = KINDS.get(kind)
    if module is None:
        at = document.where((*place, kind))
        faults.append(ConfigError(f"no kind of condition is called {kind}", where=at, mend=_known_kinds(kind)))
        return None
    if per not in module.SCOPES:
        scopes = " or ".join(sorted(scope.value for scope in module.SCOPES))
        faults.append(ConfigError(f"{kind} cannot judge per {per.value}", where=where, mend=f"use per: {scopes}"))
    try:
        return Leaf(kind, checked(document, params if params is not None else {}, (*place, kind), module.Params))
    except FaultsError as error:
        faults += error.all
        return None


def _combination(
    document: Document, kind: str, parts: object, place: tuple[str | int, ...], per: Per, faults: list[ConfigError]
) -> Condition | None:
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        faults.append(ConfigError(f"{kind} needs a list of conditions", where=document.where(place)))
        return None
    inner = [_condition(document, part, (*place, i), per, faults) for i, part in enumerate(parts)]
    whole = tuple(one for one in inner if one is not None)
    return AllOf(whole) if kind == "all" else AnyOf(whole)


def _known_kinds(name: str) -> str:
    return nearest(name, [*KINDS, "all", "any"])
