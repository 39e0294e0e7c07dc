"""The man page and the completions know every command and option, and the programs that read them agree."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from kvlogd.cli import build_parser
from kvlogd.manual import SHELLS, completion, page
from tests.command import kvlogd

PAGE = page(build_parser(), "1.2")


def options(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found |= {option for option in action.option_strings if option not in ("-h", "--help")}
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for one in action.choices.values() for option in options(one)}
    return found


def commands(parser: argparse.ArgumentParser) -> set[str]:
    """Return the commands that do something, with the words before them."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name for action in below for one in action.choices.values() for name in commands(one)} or {parser.prog}


def test_the_page_knows_all() -> None:
    plain = PAGE.replace("\\-", "-")
    assert {option for option in options(build_parser()) if option not in plain} == set()
    assert {name for name in commands(build_parser()) if f".SS {name}\n" not in plain} == set()


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not there")
def test_man_has_nothing_against_the_page(tmp_path: Path) -> None:
    path = tmp_path / "kvlogd.1"
    path.write_text(PAGE, encoding="utf-8")
    run = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "COMMANDS" in run.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_the_commands_and_its_shell_can_read_it(shell: str) -> None:
    script = completion(build_parser(), shell)
    assert {name.split()[-1] for name in commands(build_parser()) if name.split()[-1] not in script} == set()
    if shutil.which(shell) is not None:
        run = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, "")


def test_bash_completes(tmp_path: Path) -> None:
    """As the shell itself does: `kvlogd sta<TAB>`."""
    script = tmp_path / "script"
    script.write_text(completion(build_parser(), "bash"), encoding="utf-8")
    ask = (
        f"source {script}; COMP_WORDS=(kvlogd sta); COMP_CWORD=1; COMP_LINE='kvlogd sta'; COMP_POINT=10; "
        "$(complete -p kvlogd | sed 's/.*-F \\([^ ]*\\).*/\\1/') kvlogd sta kvlogd; echo ${COMPREPLY[@]}"
    )
    run = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["status"]


def test_the_commands_print_them() -> None:
    assert kvlogd("man").out.startswith(".TH KVLOGD 1")
    assert kvlogd("completion", "bash").out.strip() == completion(build_parser(), "bash").strip()
    assert kvlogd("completion", "csh").status == 2
