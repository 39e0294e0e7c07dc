"""4. Several rotations between two looks, or while stopped: all files are finished; one that is gone is told."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kvlogd.recall import Loss
from tests.daemon import ready
from tests.lines import line_of, record
from tests.tailing import both_ways, following, rotate, writing


@both_ways
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_all_files_are_read_in_order(tmp_path: Path, is_watched: bool, is_stopped: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        for _ in range(3):
            writer.lines(10)
            rotate(log)
            writer.reopen()
        writer.lines(10)
        if is_stopped:
            follower.kill()
        follower.settle()
        assert follower.numbers == list(range(50))
        assert follower.gaps == []


@both_ways
def test_dated_files_as_well(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        follower.kill()
        for day in ("20260301", "20260302"):
            writer.lines(10)
            log.rename(tmp_path / f"vllm.log-{day}")
            writer.reopen()
        writer.lines(10)
        follower.settle()
        assert follower.numbers == list(range(40))


@both_ways
def test_a_file_that_is_gone_is_told(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        follower.kill()
        writer.lines(10)
        rotate(log).unlink()
        writer.reopen()
        writer.lines(10)
        follower.settle()
        assert follower.numbers == [*range(10), *range(20, 30)]
        assert follower.reasons() in ([Loss.GONE], [Loss.TRUNCATED])  # the new file may have the inode of the old one


def test_a_hundred_rotations(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        for _ in range(100):
            writer.lines(7)
            follower.poll(0.5)
            rotate(log)
            writer.reopen()
            follower.poll(0.5)
        follower.settle()
        assert follower.numbers == list(range(700))
        assert follower.gaps == []


@pytest.mark.skipif(shutil.which("gzip") is None, reason="gzip is not installed")
def test_004_a_daemon_that_was_down_reads_on_in_the_file_that_was_packed_meanwhile(tmp_path: Path) -> None:
    lines = [line_of(record(10.0 * n, running=1, generation_tps=5.0)) + b"\n" for n in range(85)]
    count = "SELECT count(*) AS n, count(DISTINCT ts) AS times FROM samples"
    with ready(tmp_path / "d") as daemon:
        with daemon.log.open("ab") as log:
            log.write(b"".join(lines[:60]))
        daemon.eventually(count, lambda rows: rows == [{"n": 60, "times": 60}])
        assert daemon.stop() == 0
        with daemon.log.open("ab") as log:
            log.write(b"".join(lines[60:80]))
        subprocess.run(["gzip", rotate(daemon.log)], check=True)
        daemon.log.write_bytes(b"".join(lines[80:]))
        daemon.up()
        daemon.eventually(count, lambda rows: rows == [{"n": 85, "times": 85}])
        assert {row["reason"] for row in daemon.rows("SELECT reason FROM gaps")} <= {Loss.COPIED}
        daemon.kill()
        daemon.up()
        assert daemon.rows(count) == [{"n": 85, "times": 85}]
