"""YAML files with line numbers, held against a model: every fault with file:line, and the nearest valid name.

Only safe loading, of plain values: a key that stands twice, a tag and an alias are refused, for a few aliases can
stand for more than any memory holds. The one module that knows yaml.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from kvlogd.errors import ConfigError
from kvlogd.quantity import nearest

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
Model = TypeVar("Model", bound=BaseModel)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser is seven times faster, and not everywhere there."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("bool", "float", "int", "null"))
_KIND_TEXT = {
    "dict_type": "must be keys with values",
    "mapping_type": "must be keys with values",
    "model_type": "must be keys with values",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text: put it in quotes",
    "path_type": "must be a path",
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]*")
"""A channel's URL is a secret, and may stand in any wrong place."""
Path_ = tuple[str | int, ...]


class Document(NamedTuple):
    """A loaded file: its values, and the line of each by its path of keys."""

    path: Path
    value: object
    lines: Mapping[Path_, int]

    def where(self, place: Path_) -> str:
        """Return `file:line` of a value, or of the nearest thing around it."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                return f"{self.path}:{self.lines[place[:length]]}"
        return f"{self.path}:1"


class FaultsError(ConfigError):
    """Several faults at once; `all` holds each."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        first = faults[0]
        super().__init__(first.what, where=first.where, mend=first.mend)
        self.all = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.all)


def load(path: Path) -> Document:
    """Load a YAML file. Raises ConfigError: unreadable, too large, no YAML, a key twice."""
    return _document(path, _content(path))


def load_block(path: Path, key: str) -> Document:
    """Load what stands under one top-level key alone, whatever is wrong elsewhere; None where it does not stand there.

    Raises ConfigError. The lines are those of the block.
    """
    block = re.search(rb"^%s:.*(?:\n(?![^\s#]).*)*" % key.encode(), _content(path), re.MULTILINE)
    return _document(path, block[0] if block else b"")


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # opening a FIFO would wait for its writer
        raise ConfigError("is not a regular file", where=str(path), mend="give a YAML file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", where=str(path), mend="check path and rights"
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError("is larger than 256 KiB", where=str(path), mend="split it")
    return data


def _document(path: Path, data: bytes) -> Document:
    try:
        root = yaml.compose(data, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}:1"
        raise ConfigError("is no YAML here", where=where, mend="check indentation and quotes") from error
    reading = _Reading(path)
    return Document(path, None if root is None else reading.value(root, ()), reading.lines)


class _Reading:
    """Turns the nodes of one file into values, noting their lines."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[Path_, int] = {}
        self._path = path
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, place: Path_) -> Any:
        self.lines[place] = node.start_mark.line + 1
        # a node is met again only through an alias
        if id(node) in self._seen:
            raise self._fault(node, "an alias (*name) cannot be used here", "write the value out")
        self._seen.add(id(node))
        if len(place) > MAX_DEPTH:
            raise self._fault(node, "nests too deep", f"use {MAX_DEPTH} levels at most")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, place: Path_) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._fault(key_node, "a key must be a word", "write `key: value`")
            key = str(key_node.value)
            if key in mapping:
                raise self._fault(key_node, f"{key} stands here a second time", "keep one of them")
            mapping[key] = self.value(value_node, (*place, key))
            self.lines[(*place, key)] = key_node.start_mark.line + 1
        return mapping

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag not in _PLAIN:
            # a date stays the text that it is; any other tag was written by hand
            if node.tag in (_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "merge"):
                return node.value
            raise self._fault(node, "a tag (!name) cannot be used here", "leave it out")
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError) as error:
            raise self._fault(node, "is not what its tag says", "leave the tag out") from error

    def _fault(self, node: yaml.Node, what: str, mend: str) -> ConfigError:
        return ConfigError(what, where=f"{self._path}:{node.start_mark.line + 1}", mend=mend)


def checked(document: Document, value: object, place: Path_, model: type[Model]) -> Model:
    """Return `value`, which stands at `place` of the document, as a model. Raises FaultsError with all faults.

    The document is the context of the validation: `fields` then wants units.
    """
    try:
        return model.model_validate(value, context=document)
    except ValidationError as error:
        raise FaultsError([_fault(document, place, one, model) for one in error.errors()]) from error


def _fault(document: Document, place: Path_, error: Any, model: type[BaseModel]) -> ConfigError:
    at = (*place, *error["loc"])
    name = str(error["loc"][-1]) if error["loc"] else ""
    where = document.where(at)
    if error["type"] == "extra_forbidden":
        return ConfigError(f"unknown key {name}", where=where, mend=nearest(name, _keys(model, error["loc"][:-1])))
    if error["type"] == "missing":
        return ConfigError(f"{name} is missing", where=where, mend=f"add `{name}:`")
    if error["type"] == "enum":
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        given = str(error["input"])
        return ConfigError(f"{name} cannot be {_URL.sub('a URL', given)}", where=where, mend=nearest(given, known))
    what = _KIND_TEXT.get(error["type"]) or _URL.sub("a URL", str(error["msg"]).removeprefix("Value error, "))
    return ConfigError(f"{name}: {what}" if name else what, where=where)


def _keys(model: type[BaseModel], place: Path_) -> list[str]:
    """Return the keys that are valid at a place inside a model: those of the innermost model around it."""
    for part in place:
        fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        model = _model_in(fields.get(str(part))) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation speaks of, as `tuple[Model, ...]` does."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)
