"""Hints come for names, not for lines; and come again after whatever stopped them."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.watch import CHECK_S, RETRY_S, Watch
from tests.waiting import until

LIMITED = """
import sys
from pathlib import Path
from kvlogd.watch import RETRY_S, Watch
limit, least, most = sys.argv[1:4]
set_limit = lambda number: Path(limit).write_text(str(number))
set_limit(least)
watch = Watch(lambda: None)
watch.follow({Path(sys.argv[4])}, 0.0)
print(watch.mode, watch.trouble)
set_limit(most)
watch.follow({Path(sys.argv[4])}, RETRY_S - 1)
print(watch.mode)
watch.follow({Path(sys.argv[4])}, RETRY_S + 1)
print(watch.mode, watch.trouble)
watch.close()
"""


class Hints:
    """Counts the hints of a watch and lets its time pass."""

    def __init__(self) -> None:
        self.count = 0
        self.watch = Watch(self.wake)
        self.now_s = itertools.count(0.0, CHECK_S + 0.1)

    def wake(self) -> None:
        self.count += 1

    def follow(self, *folders: Path) -> None:
        self.watch.follow(set(folders), next(self.now_s))

    def hinted_by(self, folder: Path) -> None:
        """Make files until one is seen."""
        before = self.count
        names = itertools.count()

        def seen() -> bool:
            (folder / f"new-{next(names)}").touch()
            return self.count > before

        until(seen)


@pytest.fixture
def hints() -> Iterator[Hints]:
    made = Hints()
    yield made
    made.watch.close()


def test_a_file_that_comes_or_goes_or_is_renamed_is_a_hint_and_a_line_is_none(tmp_path: Path, hints: Hints) -> None:
    hints.follow(tmp_path)
    assert hints.count == 1  # whatever happened before
    log = tmp_path / "vllm.log"
    log.touch()
    until(lambda: hints.count == 2)
    with log.open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(b"line\n")
    log.read_bytes()
    log.rename(tmp_path / "vllm.log.1")
    until(lambda: hints.count == 3)
    (tmp_path / "vllm.log.1").unlink()
    until(lambda: hints.count == 4)
    assert hints.watch.mode == "events"


def test_a_pass_without_news_does_nothing(tmp_path: Path, hints: Hints) -> None:
    hints.follow(tmp_path)
    threads = threading.active_count()
    for _ in range(5):
        hints.follow(tmp_path)
    assert hints.count == 1
    assert threading.active_count() == threads


def test_a_folder_that_is_missing_is_watched_once_it_is_there(tmp_path: Path, hints: Hints) -> None:
    folder = tmp_path / "logs"
    hints.follow(folder)
    assert (hints.watch.mode, hints.count) == ("events", 0)
    folder.mkdir()
    hints.follow(folder)
    hints.hinted_by(folder)


def test_a_folder_that_was_made_anew_is_watched_anew(tmp_path: Path, hints: Hints) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    hints.follow(folder)
    folder.rmdir()
    until(lambda: hints.count == 2)
    folder.mkdir()
    hints.follow(folder)
    hints.hinted_by(folder)


def test_a_link_to_a_folder_is_followed_where_it_leads_now(tmp_path: Path, hints: Hints) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("a")
    hints.follow(link)
    hints.hinted_by(tmp_path / "a")
    link.unlink()
    link.symlink_to("b")
    hints.follow(link)
    hints.hinted_by(tmp_path / "b")


def test_a_folder_that_is_not_followed_any_more_gives_no_hints(tmp_path: Path, hints: Hints) -> None:
    left, kept = tmp_path / "left", tmp_path / "kept"
    left.mkdir()
    kept.mkdir()
    hints.follow(left, kept)
    hints.follow(kept)
    before = hints.count
    (left / "file").touch()
    (kept / "file").touch()
    until(lambda: hints.count > before)
    assert hints.count == before + 1


def test_a_thread_that_died_is_replaced(tmp_path: Path, hints: Hints) -> None:
    hints.follow(tmp_path)
    (emitter,) = (thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyEmitter")
    emitter.stop()  # type: ignore[attr-defined]
    emitter.join()
    hints.follow(tmp_path)
    hints.hinted_by(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hint_that_raises_does_not_end_the_hints(tmp_path: Path) -> None:
    calls = []

    def wake() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("from the daemon")

    watch = Watch(wake)
    watch.follow({tmp_path}, 0.0)
    dispatcher = {thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyObserver"}
    (tmp_path / "first").touch()
    until(lambda: not any(thread.is_alive() for thread in dispatcher))
    watch.follow({tmp_path}, CHECK_S + 0.1)
    before = len(calls)
    (tmp_path / "second").touch()
    until(lambda: len(calls) > before)
    watch.close()


def test_closing_leaves_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    warm = Watch(lambda: None)
    warm.follow({tmp_path}, 0.0)
    warm.close()
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        watch = Watch(lambda: None)
        watch.follow({tmp_path}, 0.0)
        watch.close()
        watch.close()
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


@pytest.mark.parametrize(
    ("limit", "sysctl"),
    [("watches", "fs.inotify.max_user_watches"), ("instances", "fs.inotify.max_user_instances")],
)
def test_a_limit_is_named_and_events_come_back_when_it_is_raised(tmp_path: Path, limit: str, sysctl: str) -> None:
    # a user namespace has limits of its own
    command = ["unshare", "-Ur", sys.executable, "-c", LIMITED, f"/proc/sys/user/max_inotify_{limit}"]
    if subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no user namespaces here")
    told = subprocess.run([*command, "0", "64", str(tmp_path)], capture_output=True, text=True, check=False)
    first, early, late = told.stdout.splitlines()
    assert first.startswith("polling files are polled: ")
    assert sysctl in first
    assert (early, late.strip()) == ("polling", "events")
    assert told.stderr == ""


def test_too_few_descriptors_are_told(tmp_path: Path) -> None:
    script = LIMITED.replace("set_limit = lambda number: Path(limit).write_text(str(number))", SET_DESCRIPTORS)
    command = [sys.executable, "-c", script, "", "0", "64", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "LimitNOFILE=" in told.stdout.splitlines()[0]
    assert told.stdout.splitlines()[2].strip() == "events"
    assert RETRY_S > CHECK_S


SET_DESCRIPTORS = """
import os, resource, watchdog.observers.inotify
used = len(os.listdir("/proc/self/fd")) - 1
set_limit = lambda more: resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(more), 1024))
"""
