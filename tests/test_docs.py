"""The pages of docs/ cannot lie either: each query runs and finds something, commands exist, links lead on."""

import re
import shlex
from pathlib import Path

import pytest

from kvlogd import cli, rulebook
from kvlogd.config import load_config
from kvlogd.model import Gap
from kvlogd.rows import Batch
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.store import Store
from tests.command import kvlogd, replay

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
REAL = ROOT / "tests" / "data" / "real"
SQL = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"\*\*(\d+)\. [^*]+\*\*.*?```sql\n(.*?)```", SQL, flags=re.DOTALL)
GPU = (
    "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"
    "2026/11/29 14:00:00.000, 0, 96 %, 74312 MiB, 81559 MiB\n"
)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code of a language in all pages, with the page's name."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in DOCS]
    return [(name, code) for name, text in texts for code in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of real logs, with readings of a GPU."""
    folder = tmp_path_factory.mktemp("history")
    gpu = folder / "gpu.csv"
    gpu.write_text(GPU)
    logs = [
        REAL / f"{name}.log" for name in ("leak-to-hang-and-restart", "slow-leak-with-idle-spells", "latency-creep")
    ]
    told = replay(*logs, "--db", folder / "history.duckdb", "--gpu-csv", gpu)
    assert told.status == 1, told.err
    with Store.open(folder / "history.duckdb") as store:
        store.commit(Batch(gaps=[Gap("chat", 1.8e9, "line too long", 1)]))
    return folder / "history.duckdb"


def test_there_are_twenty_questions() -> None:
    assert [int(number) for number, _ in QUERIES] == list(range(1, 21))


@pytest.mark.parametrize("query", [query for _, query in QUERIES], ids=[number for number, _ in QUERIES])
def test_each_question_has_an_answer(history: Path, query: str) -> None:
    told = kvlogd("sql", "--db", history, "--format", "csv", query)
    assert told.status == 0, told.err
    rows = told.out.splitlines()
    # alerts that stand are a daemon's; a replay has none
    assert len(rows) > 1 or "FROM alerts " in query.replace("\n", " "), query


def test_the_architecture_names_each_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\| (`[^|]*) \|", page))))
    modules = {path.stem for path in (ROOT / "kvlogd").glob("*.py")} - {"__init__", "__main__"}
    assert named == modules, named ^ modules


OTHERS_SAY = ("status=", "Watchdog timeout", "Start request repeated too quickly")


def test_troubles_are_called_what_kvlogd_calls_them() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvlogd").rglob("*.py"))
    said = [text for text in re.findall(r"(?m)^\| `([^`]+)`", page) if not text.startswith(OTHERS_SAY)]
    assert len(said) > 8
    assert [text for text in said if text.replace("N", "{holder}") not in code and text not in code] == []


def test_the_rules_page_is_what_the_rules_say() -> None:
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == rulebook.markdown(load_rules([shipped_folder()]))


@pytest.mark.parametrize(("page", "code"), blocks("sh"), ids=lambda text: text.split("\n")[0][:40])
def test_commands_exist(page: str, code: str) -> None:
    parser = cli.build_parser()
    for line in code.splitlines():
        command = line.removeprefix("sudo ").split(" #")[0].split(" | ")[0]
        if command.startswith("kvlogd "):
            parser.parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize(
    ("page", "code"), [(p, c) for p, c in blocks("yaml") if re.match(r"(?:#.*\n)*(sources|store|channels):", c)]
)
def test_configs_load(page: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "kvlogd.yaml"
    path.write_text(code, encoding="utf-8")
    load_config(path)


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    titles = {_anchor(title) for title in re.findall(r"(?m)^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL))}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert target.startswith("https://") or not path or (page.parent / path).exists(), target
        assert path or anchor in titles, target


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
