"""Hold the module map: who may import whom, what stays pure, and what loads when kvlogd prints its help.

The tables are in module_map; the checks need no change for a new module.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.module_map import (
    CLOCK_READERS,
    EVERYTHING,
    IMPURE_CALLS,
    IMPURE_IMPORTS,
    MAY_IMPORT,
    MAY_NAME,
    MOST_LINES_A_FILE,
    MOST_LINES_A_FUNCTION,
    NAMELESS,
    OPEN_TO_ALL,
    PURE,
    READS_CLOCKS,
    SUPERVISES,
)

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kvlogd"


class Source(NamedTuple):
    """A module's name without `kvlogd.`, and its text."""

    name: str
    text: str
    is_package: bool = False

    @property
    def key(self) -> str:
        """Return the name under which the tables speak of this module."""
        return "kinds.*" if self.name.startswith("kinds.") else self.name


def package_sources() -> list[Source]:
    return [read_source(path) for path in sorted(PACKAGE.rglob("*.py"))]


def read_source(path: Path) -> Source:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    is_package = parts[-1] == "__init__" and len(parts) > 1
    return Source(".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package)


SOURCES = package_sources()
MODULES = {source.name for source in SOURCES}


def imported(source: Source) -> Iterator[str]:
    """Yield the full dotted name of all that a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{origin(source, node)}.{alias.name}" for alias in node.names)


def origin(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = ["kvlogd", *source.name.split(".")]
    kept = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def ours(source: Source, modules: set[str]) -> set[str]:
    """Return which of our modules a module imports."""
    names = (name.split(".") for name in imported(source))
    return {target(name[1:], modules) for name in names if name[0] == "kvlogd" and name[1:]} - {"", source.name}


def target(parts: list[str], modules: set[str]) -> str:
    """Return the module that an import reaches: `parse.parse_line` is `parse`; a name of `kvlogd` itself is empty."""
    known = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in known if name in modules), "")


def permitted(name: str, grant: str) -> bool:
    words = grant.split()
    if name in OPEN_TO_ALL:
        return True
    if EVERYTHING in words:
        return f"-{name}" not in words
    return name in words or name.split(".")[0] in words


def forbidden_imports(source: Source) -> list[str]:
    grant = MAY_IMPORT.get(source.key, "")
    return sorted(name for name in ours(source, MODULES | {source.name}) if not permitted(name, grant))


def forbidden_libraries(source: Source) -> list[str]:
    tops = {name.split(".")[0] for name in imported(source)} - {"kvlogd"}
    free = sys.stdlib_module_names - set(MAY_NAME)
    return sorted(top for top in tops - free if source.key not in MAY_NAME.get(top, "").split())


def impurities(source: Source) -> list[str]:
    if source.key not in PURE.split():
        return []
    tops = {name.split(".")[0] for name in imported(source)}
    return sorted(tops & IMPURE_IMPORTS) + sorted(called(source) & IMPURE_CALLS)


def called(source: Source) -> set[str]:
    statements = [node for node in ast.parse(source.text).body if not runs_as_script(node)]
    nodes = (node for statement in statements for node in ast.walk(statement))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def runs_as_script(node: ast.stmt) -> bool:
    """Tell `if __name__ == "__main__":`, whose body may print."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def clock_readings(source: Source) -> list[str]:
    """Return where a module asks for the present time; a mention is enough, as in `default_factory=datetime.now`."""
    if source.name in READS_CLOCKS:
        return []
    nodes = (node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Attribute))
    return sorted(f"{node.lineno}: .{node.attr}" for node in nodes if node.attr in CLOCK_READERS)


def blanket_excepts(source: Source) -> list[int]:
    if source.name in SUPERVISES:
        return []
    handlers = (node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.ExceptHandler))
    return sorted(handler.lineno for handler in handlers if catches_all(handler.type))


def catches_all(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(catches_all(item) for item in caught.elts)
    return caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})


def long_functions(source: Source) -> list[str]:
    nodes = (n for n in ast.walk(ast.parse(source.text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    sized = ((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in nodes)
    return sorted(f"{name}: {lines} lines" for name, lines in sized if lines > MOST_LINES_A_FUNCTION)


def too_long(source: Source) -> list[int]:
    lines = len(source.text.splitlines())
    return [lines] if lines > MOST_LINES_A_FILE else []


def nameless(source: Source) -> list[str]:
    return sorted(NAMELESS & set(source.name.split(".")))


def unmapped(source: Source) -> list[str]:
    return [] if source.key in MAY_IMPORT else [source.name]


CHECKS: list[Callable[[Source], list[str] | list[int]]] = [
    forbidden_imports,
    forbidden_libraries,
    impurities,
    clock_readings,
    blanket_excepts,
    long_functions,
    too_long,
    nameless,
    unmapped,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_modules_keep_the_map(check: Callable[[Source], list[str] | list[int]]) -> None:
    faults = {source.name: found for source in SOURCES if (found := check(source))}
    assert faults == {}


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (forbidden_imports, "parse", "from kvlogd.store import Store"),
        (forbidden_imports, "parse", "from . import store"),
        (forbidden_imports, "parse", "def late():\n    import kvlogd.store"),
        (forbidden_imports, "kinds.trend", "from ..store import Store"),
        (forbidden_libraries, "parse", "import duckdb"),
        (forbidden_libraries, "replay", "from yaml import safe_load"),
        (forbidden_libraries, "store", "import a_library_that_nobody_declared"),
        (forbidden_libraries, "store", "from time import monotonic"),
        (impurities, "kinds.trend", "import os.path"),
        (impurities, "window", "print(1)"),
        (clock_readings, "replay", "from datetime import date\nborn = date.today"),
        (blanket_excepts, "store", "try: pass\nexcept Exception: pass"),
        (blanket_excepts, "store", "try: pass\nexcept (ValueError, BaseException): pass"),
        (blanket_excepts, "store", "try: pass\nexcept: pass"),
        (long_functions, "store", "def long():\n" + "    pass\n" * MOST_LINES_A_FUNCTION),
        (too_long, "store", "pass\n" * (MOST_LINES_A_FILE + 1)),
        (nameless, "kinds.utils", ""),
        (unmapped, "surprise", ""),
    ],
)
def test_checks_see_a_fault(check: Callable[[Source], list[str] | list[int]], name: str, text: str) -> None:
    assert check(Source(name, text))


def test_a_pure_module_may_print_when_it_is_run_as_a_script() -> None:
    assert impurities(Source("schema", "if __name__ == '__main__':\n    print(1)")) == []


def test_permission_for_a_package_covers_its_modules() -> None:
    assert permitted("kinds.trend", "window kinds")
    assert permitted("store", "* -cli")
    assert not permitted("cli", "* -cli")
    assert not permitted("window", "kinds")


def test_imports_make_no_circle() -> None:
    graph = {source.name: ours(source, MODULES) for source in SOURCES}
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_map_names_no_module_that_is_gone() -> None:
    keys = {source.key for source in SOURCES}
    assert sorted(set(MAY_IMPORT) - keys) == []
    granted = {word.lstrip("-") for grant in MAY_IMPORT.values() for word in grant.split()} - {EVERYTHING}
    assert sorted(granted - MODULES) == []


@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_tests_and_benchmarks_keep_the_limits(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    sources = [Source(path.stem, path.read_text(encoding="utf-8")) for path in paths]
    checks = (long_functions, too_long, blanket_excepts, nameless)
    faults = {source.name: found for source in sources for check in checks if (found := check(source))}
    assert sources
    assert faults == {}
