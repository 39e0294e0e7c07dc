"""Hold what loads when kvlogd prints its help: nothing heavy."""

import subprocess
import sys

import pytest

from tests.test_imports import ROOT

NOT_FOR_HELP = ("apprise", "duckdb", "nanoarrow", "pydantic", "shtab", "tqdm", "watchdog", "yaml", "zstandard")

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
