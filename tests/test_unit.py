"""The unit file as it is shipped: each line has its reason, and systemd's own tools have nothing against it.

What it does under a real systemd stands in `tests/faults/test_066_systemd.py`.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "systemd" / "kvlogd.service"
LINES = UNIT.read_text(encoding="utf-8").splitlines()
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")


def test_each_setting_has_its_reason() -> None:
    """A comment stands above it, or above the settings that it belongs to."""
    for number, line in enumerate(LINES):
        if "=" in line and not line.startswith("#"):
            above = next((text for text in reversed(LINES[:number]) if "=" not in text or text.startswith("#")), "")
            assert above.startswith(("#", "[")), line


@needs_systemd
def test_systemd_understands_it(tmp_path: Path) -> None:
    """With a program that is there; a word on standard error is a fault, for verify exits with 0 all the same."""
    copy = tmp_path / "kvlogd.service"
    text = re.sub(r"(?m)^ExecStart=.*", "ExecStart=/bin/true", UNIT.read_text(encoding="utf-8"))
    copy.write_text(re.sub(r"(?m)^Documentation=.*\n", "", text), encoding="utf-8")
    run = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@needs_systemd
def test_it_is_closed_as_far_as_gpus_and_logs_let_it() -> None:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", str(UNIT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
