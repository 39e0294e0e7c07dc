"""The sdist and the wheel that is built from it: all that kvlogd needs is in there, and nothing else.

The Debian package, which has all libraries with it, is tried by `tests/faults/test_066_systemd.py`.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def test_the_wheel_runs_without_the_checkout(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
        names = wheel.namelist()
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    for words in (["rules", "list"], ["install", "--dry-run", "--root", str(tmp_path / "root")], ["man"], ["check"]):
        command = [sys.executable, "-m", "kvlogd", *words]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        assert run.returncode == 0, run.stderr
        if words == ["rules", "list"]:
            assert str(tmp_path / "site" / "kvlogd" / "shipped" / "rules" / "kv-leak.yaml") in run.stdout


def test_the_sdist_has_what_its_own_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"systemd/kvlogd.service", "systemd/deb/build", "tests/rig/rig", "tests/test_package.py", "Makefile"}
    assert needed <= names
    assert {"rules/kv-leak.yaml", "config/kvlogd.yaml", "docs/schema.md", "README.md", "LICENSE"} <= names
