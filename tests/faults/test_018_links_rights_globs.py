"""18. Links that switch and loop, rights that go and come back, many files at once, files that are no logs."""

import os
from pathlib import Path

import pytest

from tests.tailing import both_ways, descriptors_of, following, lines, numbers, rotate, writing


@both_ways
def test_a_link_that_is_switched(tmp_path: Path, is_watched: bool) -> None:
    link, targets = tmp_path / "logs" / "vllm.log", tmp_path / "targets"
    link.parent.mkdir()
    targets.mkdir()
    link.symlink_to(targets / "a")
    with following(link, is_watched=is_watched) as follower, writing(targets / "a") as old:
        old.lines(10)
        follower.settle()
        (link.parent / "next").symlink_to(targets / "b")
        (link.parent / "next").rename(link)
        with writing(targets / "b") as new:
            old.lines(5)
            new.written = old.written
            new.lines(5)
            follower.settle(1.0)
            assert sorted(follower.numbers) == list(range(20))
            for _ in range(10):
                follower.poll(1.0)
            assert descriptors_of("targets/a") == []


@both_ways
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_the_file_that_a_link_leads_to_is_rotated(tmp_path: Path, is_watched: bool, is_stopped: bool) -> None:
    link, target = tmp_path / "logs" / "vllm.log", tmp_path / "targets" / "0.log"
    link.parent.mkdir()
    target.parent.mkdir()
    link.symlink_to(target)
    with following(link, is_watched=is_watched) as follower, writing(target) as writer:
        writer.lines(10)
        follower.settle()
        if is_stopped:
            follower.kill()
        for _ in range(2):
            writer.lines(10)
            rotate(target)
            writer.reopen()
        writer.lines(10)
        follower.settle()
        assert follower.numbers == list(range(40))
        assert follower.gaps == []
        assert {piece.log for piece in follower.stored} == {"vllm.log"}


@both_ways
def test_one_file_under_two_names_is_followed_once(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(10)))
    (tmp_path / "a-link.log").symlink_to(log)
    (tmp_path / "other").mkdir()
    os.link(log, tmp_path / "other" / "hard.log")
    patterns = (tmp_path / "*.log", tmp_path / "other" / "*.log")
    with following(*patterns, is_watched=is_watched) as follower:
        follower.settle()
        assert follower.numbers == list(range(10))
        assert len(follower.places) == 1


@both_ways
@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "seteuid"), reason="needs to give up its rights")
def test_rights_that_are_lost_and_given_back(tmp_path: Path, is_watched: bool) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "vllm.log"
    log.write_bytes(lines(range(5)))
    user = os.geteuid()
    for path in (*reversed(tmp_path.parents), tmp_path):
        if path.stat().st_uid == user and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    with following(log, is_watched=is_watched) as follower, without_rights(user):
        follower.settle()
        with with_rights(user):
            folder.chmod(0o000)
        follower.settle()
        assert any("kvlogd's user" in health.mend for health in follower.health)
        follower.kill()
        follower.settle()
        assert follower.gaps == []
        with with_rights(user):
            folder.chmod(0o755)
            log.write_bytes(log.read_bytes() + lines(range(5, 10)))
            log.chmod(0o644)
        follower.settle(5.0)
        assert follower.numbers == list(range(10))
        assert follower.gaps == []
        assert [health.mend for health in follower.health] == [""]


@both_ways
def test_a_folder_that_is_away_for_a_while(tmp_path: Path, is_watched: bool) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "vllm.log"
    log.write_bytes(lines(range(5)))
    with following(log, is_watched=is_watched) as follower:
        follower.settle()
        folder.rename(tmp_path / "away")
        follower.settle()
        follower.kill()
        follower.settle()
        (tmp_path / "away").rename(folder)
        with log.open("ab") as file:
            file.write(lines(range(5, 10)))
        follower.settle(5.0)
        assert follower.numbers == list(range(10))
        assert follower.gaps == []


@both_ways
def test_five_hundred_files_at_once_and_some_that_are_no_logs(tmp_path: Path, is_watched: bool) -> None:
    (tmp_path / "first.log").write_bytes(lines([0]))
    with following(tmp_path / "*.log*", is_watched=is_watched) as follower:
        follower.settle()
        for number in range(1, 501):
            (tmp_path / f"job-{number}.log").write_bytes(lines([number]))
        (tmp_path / "old.log.gz").write_bytes(b"\x1f\x8b packed")
        (tmp_path / "folder.log").mkdir()
        follower.settle(rounds=3)
        assert sorted(follower.numbers) == list(range(501))
        mends = sorted(health.mend for health in follower.health if health.mend)
        assert len(mends) == 2
        assert "kvlogd replay" in mends[0]
        assert "regular file" in mends[1]


def test_a_loud_log_does_not_delay_a_quiet_one(tmp_path: Path) -> None:
    loud, quiet = tmp_path / "loud.log", tmp_path / "quiet.log"
    loud.write_bytes(lines(range(400_000)))
    quiet.write_bytes(b"")
    with following(loud, quiet) as follower:
        follower.poll(budget=1 << 20)
        for number in range(5):
            with quiet.open("ab") as file:
                file.write(lines([number]))
            handed = [*follower.poll(budget=1 << 20), *follower.poll(budget=1 << 20)]
            assert numbers(b"".join(piece.data for piece in handed if piece.log == "quiet.log")) == [number]
            assert any(piece.log == "loud.log" and piece.data for piece in handed)


def test_a_poll_keeps_to_its_budget(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(100_000)))
    with following(log) as follower:
        for budget in (1, 300_000, 1 << 20):
            taken = sum(len(piece.data) for piece in follower.poll(budget=budget))
            assert 0 < taken <= budget + 256 * 1024
        follower.settle()
        assert follower.numbers == list(range(100_000))


class without_rights:  # noqa: N801 - reads as a word
    """Act as a user who may not do everything, for a while."""

    user = 65534

    def __init__(self, real: int) -> None:
        self.real = real

    def __enter__(self) -> None:
        if self.real == 0:
            os.seteuid(self.user)

    def __exit__(self, *_: object) -> None:
        if self.real == 0:
            os.seteuid(self.real)


class with_rights(without_rights):  # noqa: N801
    """Act as oneself again, for a while."""

    def __enter__(self) -> None:
        if self.real == 0:
            os.seteuid(self.real)

    def __exit__(self, *_: object) -> None:
        if self.real == 0:
            os.seteuid(self.user)
