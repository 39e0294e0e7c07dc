"""YAML files with line numbers, held against a model: every fault with file:line, and the nearest valid name.

Only safe loading; a key that stands twice is refused. The one module that knows yaml.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kvlogd.errors import ConfigError
from kvlogd.quantity import nearest

MAX_BYTES = 256 * 1024
Model = TypeVar("Model", bound=BaseModel)
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
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", where=str(path), mend="check path and rights"
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError("is larger than 256 KiB", where=str(path), mend="split it")
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}:1"
        raise ConfigError("is no YAML here", where=where, mend="check indentation and quotes") from error
    lines: dict[Path_, int] = {}
    if root is None:
        return Document(path, None, lines)
    return Document(path, _value(root, (), lines, path), lines)


def _value(node: yaml.Node, place: Path_, lines: dict[Path_, int], path: Path) -> Any:
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in mapping:
                where = f"{path}:{key_node.start_mark.line + 1}"
                raise ConfigError(f"{key} stands here a second time", where=where, mend="keep one of them")
            mapping[key] = _value(value_node, (*place, key), lines, path)
            lines[(*place, key)] = key_node.start_mark.line + 1
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*place, i), lines, path) for i, item in enumerate(node.value)]
    return yaml.constructor.SafeConstructor().construct_object(node)


def checked(document: Document, value: object, place: Path_, model: type[Model]) -> Model:
    """Return `value`, which stands at `place` of the document, as a model. Raises FaultsError with all faults."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise FaultsError([_fault(document, place, one, model) for one in error.errors()]) from error


def _fault(document: Document, place: Path_, error: Any, model: type[BaseModel]) -> ConfigError:
    at = (*place, *error["loc"])
    name = str(error["loc"][-1]) if error["loc"] else ""
    where = document.where(at)
    if error["type"] == "extra_forbidden":
        return ConfigError(f"unknown key {name}", where=where, mend=nearest(name, _keys(model)))
    if error["type"] == "missing":
        return ConfigError(f"{name} is missing", where=where, mend=f"add `{name}:`")
    what = str(error["msg"]).removeprefix("Value error, ")
    return ConfigError(f"{name}: {what}" if name else what, where=where)


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
