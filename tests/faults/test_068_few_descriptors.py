"""68b. 500 logs with 64 descriptors: all are read in turn, nothing is lost, and the process keeps some for itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tailing import following, lines, rotate

CHILD = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.tailing import following, lines
folder = Path(sys.argv[1])
logs = [folder / f"job-{number}.log" for number in range(500)]
for number, log in enumerate(logs):
    log.write_bytes(lines([number]))
most = 0
with following(folder / "*.log") as follower:
    for turn in range(1, 4):
        follower.settle(rounds=2)
        most = max(most, len(os.listdir("/proc/self/fd")))
        for number, log in enumerate(logs):
            if turn == 2 and number % 5 == 0:
                log.rename(f"{log}.1")
            with log.open("ab") as file:
                file.write(lines([500 * turn + number]))
    follower.settle()
    follower.kill()
    follower.settle()
    print(most, sorted(follower.numbers) == list(range(2000)), follower.gaps, {h.mend for h in follower.health})
"""


def test_all_logs_are_read(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True)
    most, rest = told.stdout.strip().split(maxsplit=1)
    assert rest == "True [] {''}"
    assert int(most) < 50


@pytest.mark.parametrize("most_open", [1, 3])
def test_files_that_were_closed_meanwhile_are_read_to_their_end(tmp_path: Path, most_open: int) -> None:
    logs = [tmp_path / f"job-{number}.log" for number in range(6)]
    for number, log in enumerate(logs):
        log.write_bytes(lines([number]))
    with following(tmp_path / "*.log", most_open=most_open) as follower:
        follower.settle()
        for number, log in enumerate(logs):
            with log.open("ab") as file:
                file.write(lines([10 + number]))
            rotate(log)
            log.write_bytes(lines([20 + number]))
        follower.settle()
        assert sorted(follower.numbers) == [*range(6), *range(10, 16), *range(20, 26)]
        assert follower.gaps == []


def test_a_log_that_is_deleted_while_it_is_closed_is_told(tmp_path: Path) -> None:
    logs = [tmp_path / f"job-{number}.log" for number in range(3)]
    for number, log in enumerate(logs):
        log.write_bytes(lines([number]))
    with following(tmp_path / "*.log", most_open=1) as follower:
        follower.settle()
        for log in logs:
            log.unlink()
        follower.settle()
        assert sorted(follower.numbers) == [0, 1, 2]
        assert {health.state for health in follower.health} == {"waiting"}
