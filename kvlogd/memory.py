"""Keeps what a pipeline remembers as bytes, so that a restart need not read weeks of samples again.

Pickle, because the state is a graph of plain objects and never leaves this host; read back only by the very code and
rules that wrote it, and only into classes of kvlogd. Whoever cannot read it builds the state from the samples.
Promises: rules are not part of it; nothing but our own classes is made of what is read.
"""

import hashlib
import io
import pickle
import sys
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvlogd.engines import Ids
from kvlogd.pipeline import Pipeline
from kvlogd.rules import Rule

_OTHERS = {("collections", "deque"), ("collections", "Counter"), ("builtins", "dict"), ("builtins", "set")}
_HOMES = {
    f"kvlogd.{name}"
    for name in (
        "agenda",
        "alerts",
        "arrivals",
        "block",
        "course",
        "curve",
        "engines",
        "evaluate",
        "eyes",
        "gates",
        "grain",
        "ladder",
        "leap",
        "lives",
        "model",
        "pace",
        "spells",
        "tally",
        "track",
        "work",
    )
} | {"kvlogd.pipeline", "kvlogd.window"}
"""Modules of plain state. None that opens, runs or writes anything may stand here."""
_BROKEN = (
    pickle.UnpicklingError, zlib.error, AttributeError, EOFError, ImportError, LookupError, OverflowError, TypeError,
    ValueError,
)  # fmt: skip
"""What damaged bytes may raise."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> object:
        if isinstance(obj, Rule):
            return obj.id
        return "" if isinstance(obj, Ids) else None

    def reducer_override(self, obj: Any) -> Any:
        # a read-only view cannot be pickled; the dict that it becomes is as good
        return (dict, (dict(obj),)) if isinstance(obj, MappingProxyType) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, rules: Mapping[str, Rule], ids: Ids) -> None:
        super().__init__(io.BytesIO(data))
        self._rules = rules
        self._ids = ids

    def persistent_load(self, pid: Any) -> object:
        return self._rules[pid] if pid else self._ids

    def find_class(self, module_name: str, global_name: str) -> Any:
        # looked at before anything is imported: to import is to run
        is_home = module_name in _HOMES or module_name.startswith("kvlogd.kinds.")
        if (module_name, global_name) not in _OTHERS and not (is_home and global_name.isidentifier()):
            raise pickle.UnpicklingError("no class of a memory")
        found = super().find_class(module_name, global_name)
        if not isinstance(found, type):
            raise pickle.UnpicklingError("no class of a memory")
        return found


def frozen(pipeline: Pipeline) -> bytes:
    """Return what a pipeline that was just harvested remembers."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(pipeline)
    return zlib.compress(buffer.getvalue(), 1)


def thawed(data: bytes, rules: Iterable[Rule], ids: Ids) -> Pipeline | None:
    """Return the pipeline that `frozen` was given; None where the bytes are damaged."""
    try:
        found = _Unpickler(zlib.decompress(data), {rule.id: rule for rule in rules}, ids).load()
    except _BROKEN:
        return None
    return found if isinstance(found, Pipeline) else None


def code(rules: Iterable[Rule]) -> str:
    """Return a name for this kvlogd with these rules: state that another one wrote may mean something else."""
    digest = hashlib.blake2b(_program(), digest_size=16)
    for rule in rules:
        digest.update(repr(rule._replace(path=Path(), notify=(), tags=())).encode())
    return digest.hexdigest()


@cache
def _program() -> bytes:
    digest = hashlib.blake2b(repr(sys.version_info).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
