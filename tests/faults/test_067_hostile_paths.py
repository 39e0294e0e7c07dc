"""67f. What stands where a log should: only regular files are opened, pipes never block, names cannot write lines."""

import os
from pathlib import Path

from tests.command import installed, replay
from tests.logs import Server


def log_text() -> bytes:
    server = Server(seed=67)
    server.start()
    server.busy(20, 5, 0.2)
    return server.text()


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vllm.log")
    told = installed("replay", tmp_path / "vllm.log", "--gpu-csv", tmp_path / "vllm.log")
    assert told.status == 2
    assert all("vllm.log" in line for line in told.err.splitlines())


def test_links_to_logs_are_followed_and_links_to_devices_are_not(tmp_path: Path) -> None:
    (tmp_path / "real.log").write_bytes(log_text())
    (tmp_path / "link.log").symlink_to("real.log")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    (tmp_path / "gone.log").symlink_to("nowhere")
    assert replay(tmp_path / "link.log").summary["stats_lines"] == 20
    for bad in ("zero.log", "gone.log"):
        told = replay(tmp_path / bad)
        assert told.status == 2
        assert bad in told.complaint


def test_a_file_and_a_link_to_it_count_once(tmp_path: Path) -> None:
    (tmp_path / "real.log").write_bytes(log_text())
    (tmp_path / "link.log").symlink_to("real.log")
    assert replay(tmp_path / "real.log", tmp_path / "link.log").summary["stats_lines"] == 20


def test_a_name_cannot_write_a_line_of_its_own(tmp_path: Path) -> None:
    hostile = tmp_path / "x\nkvlogd: all is well\n.log"
    told = replay(hostile)
    assert told.status == 2
    assert "\\nkvlogd" in told.complaint


def test_other_files_content_is_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:$6$KVLOGD-CANARY:19000:0:99999:7:::\n")
    (tmp_path / "vllm.log").symlink_to(secret)
    told = replay(tmp_path / "vllm.log", "--gpu-csv", secret, "--host-csv", secret, "--rules", tmp_path)
    assert told.status == 2
    assert "CANARY" not in told.out + told.err
