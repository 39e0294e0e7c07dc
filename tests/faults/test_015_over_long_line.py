"""15. 64 MiB without a newline: counted once, left out, in flat memory; the next line is read."""

import subprocess
import sys
from pathlib import Path

from kvlogd.cutter import MAX_LINE
from kvlogd.recall import Loss
from tests.tailing import both_ways, following, lines

CHILD = """
import resource, sys
from pathlib import Path
from tests.tailing import following
log = Path(sys.argv[1])
log.write_bytes(b"line 0 of the log, as long as a line may be\\n")
with following(log) as follower:
    follower.settle()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with log.open("ab") as file:
        for _ in range(64):
            file.write(b"tensor(" * 149_797)
        file.write(b"\\nline 1 of the log, as long as a line may be\\n")
    written = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    follower.settle()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(after - written, follower.numbers, [(str(gap.reason), gap.lines) for gap in follower.gaps])
"""


def test_memory_stays_flat(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    told = subprocess.run([sys.executable, "-c", CHILD, str(log)], capture_output=True, text=True, check=True)
    assert log.stat().st_size > 60 << 20
    grown_kib, what = told.stdout.strip().split(maxsplit=1)
    assert what == f"[0, 1] [('{Loss.TOO_LONG}', 1)]"
    assert int(grown_kib) * 1024 < 2 * MAX_LINE + (2 << 20)


@both_ways
def test_a_restart_within_the_line_counts_it_once(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines([0]) + b"x" * (3 * MAX_LINE))
    with following(log, is_watched=is_watched) as follower:
        follower.settle()
        follower.kill()
        with log.open("ab") as file:
            file.write(b"x" * MAX_LINE + b"\n" + lines([1]))
        follower.settle()
        assert follower.numbers == [0, 1]
        assert [(gap.reason, gap.lines) for gap in follower.gaps] == [(Loss.TOO_LONG, 1)]
