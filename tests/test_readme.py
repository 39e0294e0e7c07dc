"""The README cannot lie: its console sessions are run and their output compared, its rule loads, its links exist."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvlogd import cli
from kvlogd.config import load_config
from kvlogd.rules import load_rule

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


def test_the_rule_loads(tmp_path: Path) -> None:
    [text] = [text for language, text in BLOCKS if language == "yaml" and "when:" in text]
    path = tmp_path / "long-queue.yaml"
    path.write_text(text, encoding="utf-8")
    rule = load_rule(path)
    assert (rule.id, rule.for_s, rule.keep_firing_for_s) == ("long-queue", 300.0, 900.0)


def test_the_config_loads(tmp_path: Path) -> None:
    [text] = [text for language, text in BLOCKS if language == "yaml" and "sources:" in text]
    path = tmp_path / "kvlogd.yaml"
    path.write_text(text, encoding="utf-8")
    assert [source.name for source in load_config(path).sources] == ["chat", "batch", "embed"]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^|`)(?:sudo )?make ([\w-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
