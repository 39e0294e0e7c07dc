"""Rule files: YAML in, frozen `Rule` records out; everything wrong with any file is said at once, with file:line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kvlogd.errors import ConfigError
from kvlogd.fields import Duration
from kvlogd.kinds import KINDS, sql
from kvlogd.model import NoData, Per, Severity
from kvlogd.quantity import nearest
from kvlogd.yamlfile import Document, FaultsError, Path_, checked, load

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
    line: int = 1
    """Where in the rule's file it stands."""


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
    tags: tuple[str, ...] = ()
    """What channels may choose by."""

    def kinds(self) -> list[str]:
        """Return the kinds of condition that it uses, each once."""
        return sorted({leaf.kind for leaf in self.leaves()})

    def leaves(self) -> Iterator[Leaf]:
        """Yield its single conditions, the excuses last."""
        for condition in (self.when, *self.unless):
            yield from _leaves_of(condition)

    @property
    def query(self) -> sql.Params | None:
        """The query of its own that it asks; None where it looks at records."""
        return self.when.params if isinstance(self.when, Leaf) and isinstance(self.when.params, sql.Params) else None


def _leaves_of(condition: Condition) -> Iterator[Leaf]:
    if isinstance(condition, Leaf):
        yield condition
    else:
        for part in condition.parts:
            yield from _leaves_of(part)


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
    tags: list[Slug] = Field(default_factory=list)


def shipped_folder() -> Path:
    """Return where the shipped rules lie: in the installed package, else in the checkout."""
    inside = Path(__file__).parent / "shipped" / "rules"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "rules"


def load_rules(folders: Sequence[Path], kinds: Mapping[str, Any] = KINDS) -> tuple[Rule, ...]:
    """Return the rules of all `*.yaml` files of some folders. Raises FaultsError with everything that is wrong."""
    rules: dict[str, Rule] = {}
    faults: list[ConfigError] = []
    for path in _files(folders, faults):
        try:
            rule = load_rule(path, kinds)
        except FaultsError as error:
            faults += error.all
        except ConfigError as error:
            faults.append(error)
        else:
            if rule.id in rules:
                what = f"id {rule.id} is also that of {rules[rule.id].path}"
                faults.append(ConfigError(what, where=load(path).where(("id",)), mend="give it another id"))
            rules.setdefault(rule.id, rule)
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


def load_rule(path: Path, kinds: Mapping[str, Any] = KINDS) -> Rule:
    """Return the rule of one file. Raises ConfigError or FaultsError."""
    document = load(path)
    value = document.value
    if not isinstance(value, dict):
        raise ConfigError(
            "is no rule", where=f"{path}:1", mend="a rule has the keys id, verdict, severity, per, when, …"
        )
    faults: list[ConfigError] = []
    file: _File | None = None
    try:
        file = checked(document, value, (), _File)
    except FaultsError as error:
        faults += error.all
    # the conditions are looked at even where another key is wrong, so that one run of `check` tells all
    reading = _Reading(document, kinds, file.per if file is not None else _per(value.get("per")), faults)
    when = reading.condition(value.get("when"), ("when",))
    unless = reading.each(value.get("unless"), ("unless",))
    if faults or file is None or when is None:
        raise FaultsError(sorted(faults, key=_line))
    return _rule(file, when, unless, path)


def _per(text: object) -> Per | None:
    return Per(text) if isinstance(text, str) and text in set(Per) else None


def _line(fault: ConfigError) -> int:
    return int(fault.where.rpartition(":")[2])


def _rule(file: _File, when: Condition, unless: tuple[Condition, ...], path: Path) -> Rule:
    return Rule(
        file.id,
        file.verdict,
        file.severity,
        file.per,
        when,
        unless,
        file.for_s,
        file.keep_firing_for,
        file.no_data,
        " ".join(file.why.split()),
        tuple(file.do),
        tuple(file.notify),
        path,
        tuple(file.tags),
    )


class _Reading:
    """Reads the conditions of one rule file, adding what is wrong with them to `faults`."""

    def __init__(
        self, document: Document, kinds: Mapping[str, Any], per: Per | None, faults: list[ConfigError]
    ) -> None:
        self._document = document
        self._kinds = kinds
        self._per = per
        self._faults = faults

    def each(self, values: object, place: Path_) -> tuple[Condition, ...]:
        """Return the conditions of a list, but for those that are wrong."""
        if not isinstance(values, list):
            return ()  # no list at all: the rule's own model has said so
        found = (self.condition(value, (*place, i)) for i, value in enumerate(values))
        return tuple(one for one in found if one is not None)

    def condition(self, value: object, place: Path_) -> Condition | None:
        """Return a condition tree, None where it is wrong."""
        if not isinstance(value, dict):
            return None  # as above
        if len(value) != 1:
            self._wrong("needs exactly one kind of condition", place, self._nearest_kind(""))
            return None
        [(kind, params)] = value.items()
        inside = (*place, kind)
        if kind in ("all", "any"):
            return self._combination(kind, params, inside)
        if kind not in self._kinds:
            self._wrong(f"no kind of condition is called {kind}", inside, self._nearest_kind(kind))
            return None
        return self._leaf(kind, {} if params is None else params, inside)

    def _leaf(self, kind: str, params: object, place: Path_) -> Leaf | None:
        module = self._kinds[kind]
        if self._per is not None and self._per not in module.SCOPES:
            scopes = " or ".join(sorted(scope.value for scope in module.SCOPES))
            self._wrong(f"{kind} cannot judge per {self._per.value}", place, f"use per: {scopes}")
        if getattr(module, "ALONE", False) and place != ("when", kind):
            self._wrong(f"{kind} cannot be combined with other conditions", place, "let it stand alone under when")
        try:
            return Leaf(kind, checked(self._document, params, place, module.Params), self._document.lines[place])
        except FaultsError as error:
            self._faults += error.all
            return None

    def _combination(self, kind: str, parts: object, place: Path_) -> Condition | None:
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            self._wrong(f"{kind} needs a list of conditions", place, "begin each with a hyphen")
            return None
        whole = self.each(parts, place)
        return AllOf(whole) if kind == "all" else AnyOf(whole)

    def _wrong(self, what: str, place: Path_, mend: str) -> None:
        self._faults.append(ConfigError(what, where=self._document.where(place), mend=mend))

    def _nearest_kind(self, name: str) -> str:
        return nearest(name, [*self._kinds, "all", "any"])
