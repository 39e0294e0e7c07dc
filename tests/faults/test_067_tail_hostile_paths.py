"""67f. What matches the pattern and is no log: nothing blocks, nothing but regular files is read."""

import os
import socket
from pathlib import Path

import pytest

from tests.tailing import following, lines, writing


def test_pipes_sockets_devices_folders_and_loops_are_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_bytes(lines([0]))
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop.log").symlink_to("loop.log")
    (tmp_path / "null.log").symlink_to("/dev/null")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "nowhere.log").symlink_to("missing")
    with socket.socket(socket.AF_UNIX) as sock, following(tmp_path / "*.log") as follower:
        sock.bind(os.path.relpath(tmp_path / "socket.log"))
        follower.settle()
        assert follower.numbers == [0]
        told = {Path(health.log).name: health.mend for health in follower.health if health.mend}
        assert sorted(told) == ["folder.log", "loop.log", "null.log", "pipe.log", "socket.log", "zero.log"]
        assert "circle" in told.pop("loop.log")
        assert all("regular file" in mend for mend in told.values())


@pytest.mark.parametrize("name", ["vllm.log.1", "vllm.log"])
def test_a_log_that_is_replaced_by_a_pipe(tmp_path: Path, name: str) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        writer.lines(5)
        follower.settle()
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        follower.settle()
        assert follower.numbers == list(range(5))


def test_a_name_with_control_characters_is_shown_without_them(tmp_path: Path) -> None:
    (tmp_path / "a\n\x1b[31m.log").mkdir()
    with following(tmp_path / "*.log") as follower:
        follower.settle()
        waiting, skipped = follower.health
        assert (waiting.state, skipped.state) == ("waiting", "skipped")
        assert skipped.log.isprintable()
