"""Hold the module map: who may import whom, what stays pure, and what loads when kvlogd prints its help.

Change the tables here when a module appears or settles; the checks below need no change for it.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kvlogd"

OPEN_TO_ALL = {"errors", "model"}
EVERYTHING = "*"

MAY_IMPORT = {
    # module: which of our modules it may import. `kinds.*` is each module of that package, `kinds` the package itself
    # and, as a permission, all that is in it. EVERYTHING may be followed by `-name`.
    "__init__": "",
    "__main__": "cli",
    "errors": "",
    "model": "",
    "quantity": "",
    "envelope": "",
    "stamp": "",
    "grammar": "",
    "statsline": "grammar",
    "eventline": "grammar",
    "parse": "grammar stamp statsline eventline",
    "scan": "parse grammar envelope",
    "cutter": "",
    "source": "cutter",
    "engines": "",
    "course": "",
    "exposition": "",
    "interval": "exposition",
    "eyes": "",
    "window": "course eyes quantity",
    "curve": "",
    "ladder": "curve",
    "pace": "course curve",
    "gauge": "quantity reading",
    "fields": "gauge quantity window",
    "kinds": "gauge kinds window",
    "kinds.*": "eyes window fields course curve ladder pace gauge reading",
    "yamlfile": "quantity",
    "rules": "yamlfile fields quantity kinds",
    "config": "yamlfile fields quantity",
    "alerts": "",
    "evaluate": "window gauge kinds rules alerts engines",
    "sideline": "alerts evaluate gauge reading rules",
    "notice": "quantity reading",
    "agenda": "rules",
    "harvest": "alerts",
    "track": "engines evaluate window",
    "pipeline": "harvest track agenda alerts engines window evaluate rules course",
    "inquiry": "pipeline rows rules sqlgate",
    "outcome": "",
    "tell": "notice outcome quantity rules",
    "minutes": "",
    "table": "",
    "telemetry": "table",
    "alerting": "table",
    "bookkeeping": "table",
    "views": "alerting minutes table telemetry",
    "schema": "alerting bookkeeping table telemetry views",
    "statements": "table",
    "arrow": "table",
    "reading": "",
    "rows": "alerts reading",
    "lock": "",
    "transaction": "alerting arrow bookkeeping rows statements table telemetry",
    "lease": "",
    "disk": "",
    "history": "alerting alerts bookkeeping reading rows statements telemetry",
    "migration": "disk schema transaction",
    "snapshot": "disk lock",
    "days": "",
    "rollup": "days minutes",
    "export": "bookkeeping days rollup schema telemetry",
    "retention": "days export rollup telemetry",
    "recovery": "disk lock",
    "asking": "",
    "salvage": "bookkeeping days export lock schema store table telemetry transaction",
    "storecli": "salvage",
    "store": "asking disk export history lease lock migration recovery rows schema snapshot table transaction",
    "piece": "rows",
    "clock": "",
    "stream": "envelope grammar harvest parse piece pipeline rows scan stamp",
    "setup": "config quantity rules",
    "voice": "",
    "scrape": "clock exposition interval piece",
    "feed": "piece scrape stream",
    "revival": "alerts engines memory pipeline rules store stream track",
    "intake": (
        "alerts clock config container feed harvest inquiry journal memory piece pipeline reading revival rows scrape "
        "setup source stamp store stream tail"
    ),
    "errands": "",
    "nvml": "reading",
    "gpus": "reading",
    "procfs": "",
    "kin": "procfs reading",
    "lookout": ("alerts config gpus kin pipeline procfs quantity reading rows rules setup sideline status voice"),
    "gpucli": "ask live quantity",
    "container": "docker followed piece recall rows tail",
    "overview": "alerts intake lookout piece pipeline rules status stream voice",
    "herald": "notice piece rows voice",
    "daemon": (
        "clock endpoint errands herald intake lock lookout overview retention setup status store systemd voice watch "
        "wire"
    ),
    "service": "clock daemon systemd voice",
    "memory": "engines pipeline rules",
    "followed": "cutter rows",
    "recall": "followed piece rows",
    "trail": "cutter followed piece recall rows source",
    "tail": "followed piece rows source trail",
    "sqlgate": "rows functions sheet",
    "functions": "",
    "sheet": "rows",
    "journal": "piece rows envelope",
    "docker": "",
    "watch": "",
    "sidecar": "reading",
    "chart": "",
    "report": "chart notice outcome quantity rules rows store",
    "progress": "",
    "replay": (
        "engines envelope inquiry outcome parse pipeline reading rows rules scan sidecar sideline source stamp store "
        "cutter"
    ),
    "systemd": "",
    "wire": "systemd",
    "caller": "wire",
    "endpoint": "caller rows sheet sqlgate wire",
    "ask": "progress rows sheet status wire",
    "live": "ask config lock progress rows sheet sqlgate status store wire",
    "status": "quantity",
    "checkup": "",
    "servers": "",
    "rotation": "",
    "logcheck": "checkup notice outcome quantity replay rights rotation rules source",
    "doctor": (
        "ask checkup config container disk docker logcheck notice quantity rights rules servers setup source stamp "
        "systemd tail wire"
    ),
    "rights": "",
    "proposal": "config servers",
    "install": "config container docker proposal rights servers systemd",
    "manual": "",
    "rulebook": "fields kinds quantity rules window",
    "hostcli": "checkup clock doctor install manual",
    "ruletest": "engines fields harvest inquiry pipeline quantity replay rows rules yamlfile alerts reading sideline",
    "cli": EVERYTHING,
}

MAY_NAME = {
    # a library that is heavy, or not ours, or both: the modules that may import it. Any other library is refused.
    "duckdb": "store",
    "nanoarrow": "arrow",
    "yaml": "yamlfile",
    "pydantic": "config fields kinds kinds.* rules ruletest yamlfile",
    "zstandard": "source",
    "gzip": "source",
    "compression": "source",
    "tqdm": "progress",
    "watchdog": "watch",
    "time": "clock",
    "shtab": "manual",
    "subprocess": "doctor gpus install journal snapshot",
    "pynvml": "nvml",
}

PURE = (
    "cutter errors model quantity envelope stamp grammar statsline eventline parse scan engines window curve "
    "ladder kinds kinds.* alerts notice evaluate pipeline outcome tell schema rows chart status functions sheet "
    "checkup manual pace proposal minutes statements days rollup course table telemetry alerting bookkeeping "
    "views reading gauge sideline agenda exposition eyes harvest interval track"
)
IMPURE_IMPORTS = {"os", "time", "logging", "threading", "subprocess", "multiprocessing", "asyncio", "socket", "random"}
IMPURE_CALLS = {"open", "print", "input"}
CLOCK_READERS = {"now", "today", "utcnow"}
READS_CLOCKS = {"clock"}

SUPERVISES = {"endpoint", "scrape"}
"""Modules whose threads must outlive any error: only there may one handler catch everything, and it counts."""

NAMELESS = {"utils", "util", "helpers", "helper", "manager", "base", "common"}
MOST_LINES_A_FILE = 450
MOST_LINES_A_FUNCTION = 60

NOT_FOR_HELP = ("duckdb", "nanoarrow", "pydantic", "shtab", "tqdm", "watchdog", "yaml", "zstandard")


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


PROBE = """
import contextlib, sys
from kvlogd.cli import main
sys.argv = ["kvlogd", *sys.argv[1:]]
with contextlib.suppress(SystemExit):
    main()
print("LOADED", *sys.modules)
"""


@pytest.mark.parametrize("words", [["--help"], ["replay", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.stderr == ""
    shown, _, loaded = run.stdout.rpartition("LOADED ")
    assert "usage" in shown.lower()
    assert "kvlogd.cli" in loaded.split()
    assert sorted(set(NOT_FOR_HELP) & set(loaded.split())) == []
