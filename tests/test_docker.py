"""A container's logs by its name: made anew, rotated, half written, of another driver."""

import json
import os
from pathlib import Path

import pytest

from kvlogd import docker
from kvlogd.docker import Containers, Found
from kvlogd.envelope import Envelope, Unwrapper, sniff
from tests import envelopes
from tests.logs import Server

NOW_S = 1_795_961_785.0


class Docker:
    """The folder of containers, as docker's daemon writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.made = 0

    def run(self, name: str, *, driver: str = "json-file", log: bytes | None = b"", old_style: bool = False) -> Path:
        """Make a container and return its folder."""
        self.made += 1
        id_ = f"{0xFADE0000 - self.made:08x}" * 8
        folder = self.root / id_
        folder.mkdir()
        host = {"LogConfig": {"Type": driver, "Config": {}}}
        self.config(folder, Name=f"/{name}", **({"HostConfig": host} if old_style else {}))
        if not old_style:
            (folder / "hostconfig.json").write_text(json.dumps(host), encoding="utf-8")
        if log is not None and driver == "json-file":
            (folder / f"{id_}-json.log").write_bytes(log)
        return folder

    def config(self, folder: Path, **changes: object) -> None:
        """Write a container's config as docker does: beside, then renamed onto the old one."""
        path = folder / "config.v2.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        created = f"2026-11-29T14:16:{self.made:02d}.000000001Z"
        log_path = f"/var/lib/docker/containers/{folder.name}/{folder.name}-json.log"
        new = {"ID": folder.name, "Created": created, "LogPath": log_path, **old, **changes}
        (folder / ".tmp-config.v2.json").write_text(json.dumps(new), encoding="utf-8")
        (folder / ".tmp-config.v2.json").rename(path)


@pytest.fixture
def engine(tmp_path: Path) -> Docker:
    return Docker(tmp_path / "containers")


def log_of(folder: Path, rotation: str = "") -> Path:
    return folder / f"{folder.name}-json.log{rotation}"


def test_a_container_is_found_by_its_name(engine: Docker) -> None:
    engine.run("chat-2")
    ours = engine.run("chat")
    assert Containers(engine.root, "chat").logs(NOW_S) == Found((log_of(ours),))


def test_rotations_come_first_and_packed_ones_not_at_all(engine: Docker) -> None:
    ours = engine.run("chat")
    for rotation in (".1", ".2", ".10", ".3.gz", ".old", "x"):
        log_of(ours, rotation).write_bytes(b"")
    assert Containers(engine.root, "chat").logs(NOW_S).paths == tuple(
        log_of(ours, rotation) for rotation in (".10", ".2", ".1", "")
    )


def test_a_container_that_is_made_anew_is_found_within_ten_seconds(engine: Docker) -> None:
    old = engine.run("chat")
    ours = Containers(engine.root, "chat")
    assert ours.logs(NOW_S).paths == (log_of(old),)
    new = engine.run("chat")
    assert ours.logs(NOW_S + 10).paths == (log_of(old), log_of(new))
    for path in old.iterdir():
        path.unlink()
    old.rmdir()
    assert ours.logs(NOW_S + 20).paths == (log_of(new),)


def test_the_container_that_compose_replaces_is_read_to_its_end(engine: Docker) -> None:
    old = engine.run("chat")
    ours = Containers(engine.root, "chat")
    ours.logs(NOW_S)
    engine.config(old, Name=f"/{old.name[:12]}_chat")
    new = engine.run("chat")
    assert ours.logs(NOW_S + 10).paths == (log_of(old), log_of(new))
    engine.config(old, Name="/somebody_chat")
    assert ours.logs(NOW_S + 20).paths == (log_of(new),)


def test_a_change_is_seen_even_within_one_tick_of_the_folders_clock(engine: Docker) -> None:
    folder = engine.run("chat")
    tick = folder.stat().st_mtime_ns
    ours = Containers(engine.root, "chat")
    assert ours.logs(tick / 1e9 + 1).paths == (log_of(folder),)
    log_of(folder, ".1").write_bytes(b"")
    os.utime(folder, ns=(tick, tick))
    assert ours.logs(tick / 1e9 + 3).paths == (log_of(folder, ".1"), log_of(folder))


def test_it_looks_once_a_second_and_after_a_clock_that_goes_back(engine: Docker) -> None:
    ours = Containers(engine.root, "chat")
    assert ours.logs(NOW_S).mend == docker.NO_CONTAINER
    folder = engine.run("chat")
    assert ours.logs(NOW_S + 0.9).paths == ()
    assert ours.logs(NOW_S + 1).paths == (log_of(folder),)
    log_of(folder, ".1").write_bytes(b"")
    assert len(ours.logs(NOW_S - 3600).paths) == 2


def test_what_does_not_change_is_not_read_again(engine: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        engine.run(f"chat-{number}")
    folder = engine.run("chat")
    ours = Containers(engine.root, "chat")
    settled_s = folder.stat().st_mtime + 10
    first = ours.logs(settled_s)
    opened: list[Path] = []
    reads = Path.read_bytes

    def counted(path: Path) -> bytes:
        opened.append(path)
        return reads(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert ours.logs(settled_s + 5) == first
    assert opened == []
    engine.config(folder, Name="/chat")
    os.utime(folder, (settled_s, settled_s))
    assert ours.logs(settled_s + 10) == first
    assert {path.parent for path in opened} == {folder}


@pytest.mark.parametrize("text", [b"", b'{"Name": "/chat", "Lo', b"[]", b'{"Name": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_half_written_is_tried_again(engine: Docker, text: bytes) -> None:
    folder = engine.run("chat")
    config = (folder / "config.v2.json").read_bytes()
    (folder / "config.v2.json").write_bytes(text)
    ours = Containers(engine.root, "chat")
    late_s = folder.stat().st_mtime + 100
    assert ours.logs(late_s) == Found((), docker.BROKEN)
    (folder / "config.v2.json").write_bytes(config)  # in place: the folder's own time stays
    assert ours.logs(late_s + 2) == Found((log_of(folder),))


@pytest.mark.parametrize("old_style", [False, True])
@pytest.mark.parametrize("driver", ["journald", "local", "none", "fluentd"])
def test_another_driver_is_told_with_the_mend(engine: Docker, driver: str, old_style: bool) -> None:
    engine.config(engine.run("chat", driver=driver, old_style=old_style), LogPath="")
    found = Containers(engine.root, "chat").logs(NOW_S)
    assert found.paths == ()
    assert f"logs to {driver}: start it with --log-driver=json-file" in found.mend


def test_a_container_that_has_not_been_started_has_no_log(engine: Docker) -> None:
    engine.config(engine.run("chat", log=None), LogPath="")
    assert Containers(engine.root, "chat").logs(NOW_S) == Found((), docker.NO_LOG)


def test_dockers_folder_may_be_away_or_closed(tmp_path: Path) -> None:
    ours = Containers(tmp_path / "containers", "chat")
    assert ours.logs(NOW_S) == Found((), docker.NO_FOLDER)
    (tmp_path / "containers").write_bytes(b"")
    assert ours.logs(NOW_S + 2) == Found((), docker.NO_ACCESS)
    (tmp_path / "containers").unlink()
    engine = Docker(tmp_path / "containers")
    folder = engine.run("chat")
    assert ours.logs(NOW_S + 4).paths == (log_of(folder),)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_rights_is_told(engine: Docker) -> None:
    engine.root.chmod(0)
    assert Containers(engine.root, "chat").logs(NOW_S) == Found((), docker.NO_ACCESS)
    engine.root.chmod(0o700)


def test_strange_things_in_the_folder_are_passed_over(engine: Docker) -> None:
    (engine.root / "tmp").mkdir()
    (engine.root / ("0" * 64)).write_bytes(b"")
    (engine.root / ("1" * 64)).symlink_to(engine.root)
    pipes = engine.root / ("2" * 64)
    pipes.mkdir()
    os.mkfifo(pipes / "config.v2.json")
    folder = engine.run("chat")
    assert Containers(engine.root, "chat").logs(NOW_S) == Found((log_of(folder),))


# --- its records, as they come while docker writes


def course() -> Server:
    made = Server(seed=20)
    made.busy(3, 5, 0.2)
    made.lines.append((made.now, "Received request: " + "y" * 40_000))
    made.busy(3, 5, 0.2)
    return made


@pytest.mark.parametrize("step", [1, 7, 4096, 16_400])
def test_records_that_arrive_cut_anywhere_come_out_whole(step: int) -> None:
    lines = course().lines
    data = envelopes.docker_json(lines)
    unwrapper, rest, got = Unwrapper(), b"", []
    for at in range(0, len(data), step):
        *whole, rest = (rest + data[at : at + step]).split(b"\n")  # the tailer hands on whole lines
        got += [inner for line in whole if (inner := unwrapper.feed(line)) is not None]
    ours = [inner for inner in got if not inner.text.startswith(b"nanobind")]
    assert [inner.text.decode() for inner in ours] == [line for _, line in lines]
    assert [inner.ts_s for inner in ours] == pytest.approx([at.timestamp() + 0.108632 for at, _ in lines], abs=1e-5)
    assert unwrapper.counts == {}
    assert sniff(data) is Envelope.DOCKER_JSON
