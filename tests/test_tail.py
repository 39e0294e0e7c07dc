"""Which files of a source are followed, from where, and what is said of them."""

import gzip
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvlogd import unpacked
from kvlogd.recall import Loss
from kvlogd.tail import Tail, globbed
from tests.tailing import BUDGET, Follower, Writer, copytruncate, descriptors_of, following, lines, rotate, writing


@contextmanager
def stopped_behind(log: Path, count: int) -> Iterator[tuple[Follower, Writer]]:
    """Yield a follower that has read so many lines and reads no more, and the writer that goes on."""
    with following(log) as follower, writing(log) as writer:
        writer.lines(count)
        follower.settle()
        follower.tail.close()
        yield follower, writer


def test_patterns_find_files_and_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "c.txt"):
        (tmp_path / name).touch()
    find = globbed([str(tmp_path / "missing.log"), str(tmp_path / "*.log"), str(tmp_path / "a*")])
    assert find() == [tmp_path / "missing.log", tmp_path / "a.log", tmp_path / "b.log"]


def test_a_log_that_is_new_is_read_from_its_start_and_its_past_is_not(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    (tmp_path / "vllm.log.1").write_bytes(lines([100]))
    (tmp_path / "vllm.log-20260301").write_bytes(lines([101]))
    log.write_bytes(lines(range(3)))
    with following(log) as follower:
        follower.settle()
        follower.kill()
        follower.settle()
        assert follower.numbers == [0, 1, 2]
        assert follower.gaps == []


def test_rotated_files_that_the_source_names_are_read_oldest_first(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    (tmp_path / "vllm.log.2").write_bytes(lines(range(5)))
    (tmp_path / "vllm.log.1").write_bytes(lines(range(5, 10)))
    log.write_bytes(lines(range(10, 15)))
    with following(tmp_path / "vllm.log*") as follower:
        follower.settle()
        assert follower.numbers == list(range(15))


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "later" / "vllm.log"
    with following(log) as follower:
        follower.settle()
        assert [(health.log, health.state) for health in follower.health] == [("vllm", "waiting")]
        assert follower.tail.folders() == {log.parent}
        log.parent.mkdir()
        log.write_bytes(lines(range(3)))
        follower.poll(5.0)
        assert follower.numbers == [0, 1, 2]
        assert [(health.log, health.state, health.behind_bytes) for health in follower.health] == [
            ("vllm.log", "reading", 0)
        ]


def test_new_folders_under_a_pattern_are_found(tmp_path: Path) -> None:
    with following(tmp_path / "*" / "vllm.log") as follower:
        follower.settle()
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "vllm.log").write_bytes(lines([number]))
        follower.poll(2.5)
        follower.poll(2.5)
        assert sorted(follower.numbers) == [0, 1, 2]


def test_what_is_not_read_yet_is_said(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(20_000)))
    with following(log) as follower:
        follower.poll(budget=1)
        (health,) = follower.health
        assert health.behind_bytes == log.stat().st_size - 256 * 1024


def test_a_log_that_is_gone_is_forgotten_and_goes_on_when_it_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(100)))
    with following(log) as follower:
        follower.settle()
        away = log.rename(tmp_path / "away")
        follower.settle()
        assert [health.state for health in follower.health] == ["waiting"]
        assert descriptors_of("away") == []
        away.rename(log)
        with log.open("ab") as file:
            file.write(lines(range(100, 110)))
        follower.settle()
        assert follower.numbers == list(range(110))
        assert follower.gaps == []


def test_a_log_that_is_replaced_by_a_copy_of_itself_is_not_read_again(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(100)))
    with following(log) as follower:
        follower.settle()
        for begin in (100, 110):
            copy = tmp_path / "copy"
            copy.write_bytes(log.read_bytes())
            copy.rename(log)
            with log.open("ab") as file:
                file.write(lines(range(begin, begin + 10)))
            follower.settle()
        assert follower.numbers == list(range(120))


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_an_old_file_that_is_unpacked_again_is_not_read_again(tmp_path: Path, is_stopped: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        writer.lines(100)
        follower.settle()
        old = rotate(log)
        writer.reopen()
        writer.lines(5)
        follower.settle()
        packed = gzip.compress(old.read_bytes())
        old.unlink()
        follower.settle()
        if is_stopped:
            follower.kill()
        old.write_bytes(gzip.decompress(packed))
        follower.settle()
        assert follower.numbers == list(range(105))
        assert follower.gaps == []


def pack(old: Path) -> Path:
    """Compress a file as logrotate does: the time of its last line is kept."""
    status, packed = old.stat(), old.with_name(f"{old.name}.gz")
    packed.write_bytes(gzip.compress(old.read_bytes()))
    os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
    old.unlink()
    return packed


at_once_or_in_steps = pytest.mark.parametrize("step", [1, unpacked.STEP], ids=["in steps", "at once"])


@pytest.mark.parametrize("budget", [1, 1 << 20], ids=["killed between any two commits", "not killed"])
@at_once_or_in_steps
def test_what_was_packed_while_nobody_read_is_read_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, step: int
) -> None:
    monkeypatch.setattr(unpacked, "STEP", step)
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 50) as (follower, writer):
        writer.lines(9000)
        writer.raw("half a line")
        pack(rotate(log))
        writer.reopen()
        writer.lines(5)
        follower.kill()
        for _ in range(6):
            assert sum(piece.unpacked_bytes for piece in follower.poll(0.5, budget=budget)) == 0 or step == 1
            if budget == 1:
                follower.poll(0.5, budget=budget, commits=False)
                follower.kill()
        follower.settle()
        assert follower.numbers == list(range(9055))
        assert set(follower.reasons()) == {Loss.COPIED}
        assert follower.data.count(b"half a line") == 1
        follower.kill()
        (tmp_path / "vllm.log.1").write_bytes(gzip.decompress((tmp_path / "vllm.log.1.gz").read_bytes()))
        follower.settle()
        assert follower.numbers == list(range(9055))


def test_a_log_that_is_rotated_while_a_packed_one_is_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "STEP", 1)
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 50) as (follower, writer):
        writer.lines(50_000)
        pack(rotate(log))
        writer.reopen()
        writer.lines(5)
        follower.kill()
        for _ in range(2):
            (piece,) = follower.poll(0.5, budget=1)
            assert piece.unpacked_bytes > 0
            assert len(descriptors_of("memfd:rest")) == 1
        rotate(log)
        writer.reopen()
        writer.lines(5)
        follower.tail.hint()
        follower.settle()
        assert follower.numbers == list(range(50_060))
        assert set(follower.reasons()) == {Loss.COPIED}
        follower.kill()
        assert descriptors_of("memfd:rest") == []


def test_copytruncate_that_packs_its_copy_while_nobody_reads(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 50) as (follower, writer):
        writer.lines(10)
        pack(copytruncate(log))
        writer.lines(5)
        follower.kill()
        follower.settle()
        assert follower.numbers == list(range(65))
        assert follower.reasons() == [Loss.COPIED]


@pytest.mark.parametrize("harm", ["another", "cut", "large", "rest", "short"])
def test_what_cannot_be_read_on_from_a_packed_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 10 if harm == "short" else 50) as (follower, writer):
        writer.lines(20)
        packed = pack(rotate(log))
        data = packed.read_bytes()
        if harm == "another":
            packed.write_bytes(gzip.compress(lines(range(1000, 1080))))
        elif harm == "cut":
            packed.write_bytes(data[: len(data) // 2])
        elif harm in ("large", "rest"):
            monkeypatch.setattr(unpacked, {"large": "MOST_READ", "rest": "MOST_REST"}[harm], 10)
        writer.reopen()
        writer.lines(5)
        follower.kill()
        follower.settle()
        assert follower.numbers == [*range(10 if harm == "short" else 50), *range(writer.written - 5, writer.written)]
        assert follower.reasons() in ([Loss.GONE], [Loss.TRUNCATED])  # the new file may have the inode of the old one
        assert descriptors_of("memfd:rest") == []


def test_what_was_read_to_its_end_before_it_was_packed_is_not_told_as_lost(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 50) as (follower, writer):
        old = rotate(log)
        os.utime(old, (time.time() - 3600,) * 2)
        pack(old)
        writer.reopen()
        writer.lines(5)
        follower.kill()
        follower.settle()
        assert follower.numbers == list(range(55))
        assert follower.reasons() == [Loss.COPIED]


@at_once_or_in_steps
def test_the_rest_of_a_line_that_came_in_parts_is_no_line_in_a_packed_file_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(unpacked, "STEP", step)
    log, part = tmp_path / "vllm.log", '{"log":"%s","stream":"stdout","time":"2026-11-29T14:00:00Z"}\\n'
    with following(log) as follower, writing(log) as writer:
        writer.lines(5000)
        writer.raw(part % ("x" * 4000))
        follower.settle()
        follower.tail.close()
        writer.raw(part % "the rest\\\\n")
        pack(rotate(log))
        writer.reopen()
        follower.kill()
        follower.settle()
        cut, rest = follower.data.splitlines()[-2:]
        assert b'"_LINE_BREAK":' in cut
        assert b"the rest" in rest


def test_a_file_that_was_packed_unseen_behind_one_that_is_read_on_is_told(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with stopped_behind(log, 50) as (follower, writer):
        writer.lines(10)
        pack(rotate(log)).rename(tmp_path / "vllm.log.2.gz")
        writer.reopen()
        writer.lines(10)
        pack(rotate(log))
        writer.reopen()
        writer.lines(10)
        follower.kill()
        follower.settle()
        assert follower.numbers == [*range(60), *range(70, 80)]
        assert set(follower.reasons()) == {Loss.COPIED, Loss.GONE}


def test_a_file_from_another_time_that_is_put_beside_the_log_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(5)))
    with following(log) as follower:
        follower.settle()
        stray = tmp_path / "vllm.log.3"
        stray.write_bytes(lines(range(1000, 1100)))
        os.utime(stray, (time.time() - 3600,) * 2)
        follower.settle()
        assert follower.numbers == list(range(5))


@pytest.mark.parametrize("is_packed_too", [False, True], ids=["copied", "copied and packed"])
def test_a_crash_between_any_two_commits_loses_and_repeats_nothing(tmp_path: Path, is_packed_too: bool) -> None:
    for stored in range(8):
        log = tmp_path / str(stored) / "vllm.log"
        log.parent.mkdir()
        with following(log) as follower, writing(log) as writer:
            writer.lines(50)
            follower.settle()
            writer.lines(10)
            log.with_name("vllm.log.1").write_bytes(log.read_bytes())
            if is_packed_too:  # what the copy tells is read there already
                log.with_name("vllm.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
            os.truncate(log, 0)
            writer.lines(10)
            for _ in range(3):
                follower.poll(0.5, commits=False)
            follower.pending = follower.pending[:stored]
            follower.commit()
            follower.kill()
            follower.settle()
            assert follower.numbers == list(range(70))
            assert set(follower.reasons()) == {Loss.COPIED}


def test_a_log_whose_last_look_was_long_ago_is_not_opened_at_rest(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(5)))
    tail = Tail("vllm", globbed([str(log)]), lambda base: base.name)
    now_s = 0.0
    for _ in range(5):
        now_s += 0.5
        tail.poll(BUDGET, now_s, time.time())
    for _ in range(100):
        now_s += 0.5
        assert tail.poll(BUDGET, now_s, time.time()) == []
    assert len(descriptors_of("vllm.log")) == 1
    tail.close()
    assert descriptors_of("vllm.log") == []


def test_logs_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    with following(tmp_path / "*.log") as follower:
        for number in range(40):
            log = tmp_path / f"job-{number}.log"
            log.write_bytes(lines([number]))
            follower.settle(rounds=1)
            log.unlink()
        follower.settle()
        assert follower.numbers == list(range(40))
        assert [health.state for health in follower.health] == ["waiting"]
        assert descriptors_of("job-") == []
