"""9. A writer that keeps its offset after a truncation leaves a hole: it makes no line, costs no memory."""

import os
import subprocess
import sys
from pathlib import Path

from tests.tailing import both_ways, following, lines, numbers, writing

CHILD = """
import resource, sys
from pathlib import Path
from tests.tailing import following
with following(Path(sys.argv[1])) as follower:
    follower.settle()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open(sys.argv[1], "r+b") as file:
        file.truncate(2 << 30)
        file.seek(0, 2)
        file.write(b"line 1 of the log, as long as a line may be\\n")
    follower.settle()
    print(follower.numbers, len(follower.data), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@both_ways
def test_the_line_behind_the_hole_is_read(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log, appends=False) as writer:
        writer.lines(5_000)
        follower.settle()
        os.truncate(log, 0)
        follower.settle()
        writer.lines(10)
        follower.settle()
        assert log.read_bytes().startswith(b"\0" * 1000)
        assert numbers(follower.data.replace(b"\0", b"")) == list(range(5_010))
        assert [b"\0" in line for line in follower.data.split(b"\n")].count(True) == 1


def test_two_gigabytes_of_nothing_cost_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines([0]))
    told = subprocess.run([sys.executable, "-c", CHILD, str(log)], capture_output=True, text=True, check=True)
    assert log.stat().st_size > 2 << 30
    stored, length, grown_kib = told.stdout.rsplit(maxsplit=2)
    assert stored == "[0]"  # the line behind the hole has a NUL before it
    assert int(length) == len(lines([0, 1])) + 1
    assert int(grown_kib) < 16 * 1024
