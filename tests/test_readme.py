"""The README cannot lie: its console sessions are run and their output compared, its rule loads, its links exist."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvlogd import cli
from kvlogd.config import load_config
from kvlogd.inquiry import answered
from kvlogd.model import Engine, Latency, Scrape, Spread
from kvlogd.rows import Batch
from kvlogd.rules import load_rule, load_rules, shipped_folder
from kvlogd.store import Store
from tests.lines import START_S

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
SESSIONS = [text for language, text in BLOCKS if language == "console"]


def commands(session: str) -> list[tuple[str, str]]:
    """Split a console session into (command, expected output)."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def as_pattern(expected: str) -> re.Pattern[str]:
    """`…` in a line stands for anything in it; a line of its own, for any lines."""
    lines = []
    for line in expected.rstrip("\n").split("\n"):
        any_lines = line == "…"
        lines.append(r"(?:.*\n)*?" if any_lines else ".*".join(map(re.escape, line.split("…"))) + r" *\n")
    return re.compile("".join(lines))


@pytest.fixture
def in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "real", tmp_path / "tests" / "data" / "real")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_checkout")
@pytest.mark.parametrize("session", SESSIONS, ids=lambda text: text.split("\n", 1)[0][2:50])
def test_console_sessions_print_what_they_say(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, expected in commands(session):
        program, *arguments = shlex.split(command)
        assert program == "kvlogd"
        assert cli.main(arguments) in (cli.FINE, cli.FOUND)
        printed = capsys.readouterr().out
        assert as_pattern(expected).fullmatch(printed), printed


def test_shell_lines_use_options_that_exist() -> None:
    parser = cli.build_parser()
    for text in [text for language, text in BLOCKS if language == "sh"]:
        for line in text.splitlines():
            command = line.removeprefix("sudo ").split(" #")[0]
            if command.startswith("kvlogd "):
                parser.parse_args(shlex.split(command)[1:])


def yaml_with(word: str) -> list[str]:
    return [text for language, text in BLOCKS if language == "yaml" and word in text]


def test_the_rules_load_and_check_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in yaml_with("when:"):
        name = text.split("\n", 1)[0].removeprefix("# my-rules/")
        (tmp_path / name).write_text(text, encoding="utf-8")
    rules = {rule.id: rule for rule in map(load_rule, sorted(tmp_path.glob("*.yaml")))}
    assert sorted(rules) == ["long-queue", "slow-first-token"]
    assert (rules["long-queue"].for_s, rules["long-queue"].keep_firing_for_s) == (300.0, 900.0)
    assert rules["slow-first-token"].query is not None
    config = tmp_path / "kvlogd.conf"
    config.write_text("", encoding="utf-8")
    assert cli.main(["check", "--config", str(config), "--rules", str(tmp_path)]) == cli.FINE
    assert capsys.readouterr().out == f"fine: {len(load_rules([shipped_folder()])) + 2} rules\n"


def test_the_slow_first_token_is_found(tmp_path: Path) -> None:
    [text] = yaml_with("slow-first-token")
    path = tmp_path / "rule.yaml"
    path.write_text(text, encoding="utf-8")
    slow = (Spread(Latency.TTFT, 5.0, 15.0, 2.9, 3.4, 3.9),)
    scrapes = [(1, 1, Scrape(START_S + 10.0 * n, 0, None, latencies=slow)) for n in range(30)]
    with Store.open(tmp_path / "kvlogd.duckdb") as store:
        store.commit(Batch(engines=[Engine(1, "chat", 0, "chat/0")], scrapes=scrapes))
        found = answered(load_rule(path), START_S + 300.0, store)
    assert isinstance(found, dict)
    assert (found["chat/0"].value, found["chat/0"].since_s) == (3.4, START_S)
    assert found["chat/0"].evidence["requests"] == 150.0


def test_the_configs_load(tmp_path: Path) -> None:
    path = tmp_path / "kvlogd.yaml"
    path.write_text("\n".join([*yaml_with("sources:"), *yaml_with("channels:")]), encoding="utf-8")
    config = load_config(path)
    assert [source.name for source in config.sources] == ["chat", "batch", "embed"]
    assert [channel.name for channel in config.channels] == ["oncall"]
    assert config.heartbeat is not None


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_each_page_of_the_docs_is_named() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in README, page.name


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^|`)(?:sudo )?make ([\w-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
