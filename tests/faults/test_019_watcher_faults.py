"""19. Whatever ails the watcher, each line is read once by looking; and a file system that gives stale handles."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlogd.watch import CHECK_S
from tests.tailing import Follower, following, rotate, writing
from tests.waiting import until


def emitter_dies(follower: Follower, folder: Path) -> None:
    (emitter,) = (thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyEmitter")
    emitter.stop()  # type: ignore[attr-defined]


def reader_dies(follower: Follower, folder: Path) -> None:
    """The thread that reads inotify ends; the others do not notice."""
    (reader,) = (thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyFD")
    reader.stop()  # type: ignore[attr-defined]
    reader.join()


def watch_is_closed(follower: Follower, folder: Path) -> None:
    assert follower.watch is not None
    follower.watch.close()


def folder_is_made_anew(follower: Follower, folder: Path) -> None:
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    for path in away.iterdir():
        path.rename(folder / path.name)


def nothing(follower: Follower, folder: Path) -> None:
    """The kernel drops the events."""
    follower.hints = Deaf()


class Deaf(list[None]):
    def append(self, hint: None) -> None:
        """Lose it."""


@pytest.mark.parametrize("fault", [emitter_dies, reader_dies, watch_is_closed, folder_is_made_anew, nothing])
def test_each_line_is_read_once_all_the_same(tmp_path: Path, fault: Callable[[Follower, Path], None]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "vllm.log"
    with following(log, is_watched=True) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        fault(follower, folder)
        for _ in range(3):
            writer.lines(10)
            rotate(log)
            writer.reopen()
            writer.lines(10)
            follower.settle()
        assert follower.numbers == list(range(70))
        assert follower.gaps == []


@pytest.mark.parametrize("fault", [emitter_dies, watch_is_closed, folder_is_made_anew])
def test_events_come_again_by_themselves(tmp_path: Path, fault: Callable[[Follower, Path], None]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "vllm.log"
    log.touch()
    with following(log, is_watched=True) as follower:
        follower.settle()
        fault(follower, folder)
        assert follower.watch is not None

        def seen() -> bool:
            follower.poll(CHECK_S + 0.1)
            (folder / f"file-{follower.now_s}").touch()
            return bool(follower.hints)

        until(seen)
        assert follower.watch.mode == "events"


def test_a_stale_handle_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "vllm.log"
    real = os.pread
    stale: list[int] = []

    def pread(fd: int, length: int, offset: int) -> bytes:
        if fd in stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(fd, length, offset)

    with following(log) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        # only a file server that forgets a handle can do this; here the kernel is made to say so
        stale += [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if leads_to(fd, log)]
        assert len(stale) == 1
        monkeypatch.setattr(os, "pread", pread)
        keeper = os.dup(stale[0])  # so that the new handle has another number
        held = [os.open(log, os.O_RDONLY) for _ in range(3)]
        writer.lines(10)
        follower.poll()
        os.close(keeper)
        for fd in held:
            os.close(fd)
        stale.clear()
        follower.settle()
        assert follower.numbers == list(range(20))
        assert follower.gaps == []


def leads_to(fd: Path, log: Path) -> bool:
    try:
        return os.readlink(fd) == str(log)  # noqa: PTH115
    except FileNotFoundError:
        return False
