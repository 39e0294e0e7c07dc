"""Tells that files came, went or changed their names, so that they are looked at sooner.

Events are hints: they may be lost, merged or late, and nobody acts on what they say. Growth is not watched at all,
for each line would cost an event.
Promises: never raises, never blocks; folders that go and come back, threads that die and limits that are reached are
noticed within seconds, and events come again by themselves once they can.
Does not promise: events on network file systems, where there are none; whoever is woken must look by himself as well.
"""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers.api import BaseObserver, ObservedWatch

CHECK_S = 2.0
"""How often the folders and the threads that watch them are looked at."""
RETRY_S = 60.0
"""How long to wait after a limit was reached."""

_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances (or LimitNOFILE= of the unit)",
}


class _Hint:
    """What watchdog calls for each event."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def dispatch(self, event: object) -> None:
        """Pass on that something happened, not what."""
        self._wake()


class _Watched(NamedTuple):
    identity: tuple[int, int]
    watch: "ObservedWatch"


class Watch:
    """Watches folders; calls `wake` from a thread of its own, which must only set a flag."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.trouble = ""
        """Why there are no events, and what to do about it; empty while there are."""
        self._wake = wake
        self._observer: BaseObserver | None = None
        self._watched: dict[Path, _Watched] = {}
        self._folders: set[Path] = set()
        self._check_at_s = self._retry_at_s = float("-inf")
        # its warnings tell of nothing that is not noticed here
        logging.getLogger("watchdog").addHandler(logging.NullHandler())
        logging.getLogger("watchdog").propagate = False

    @property
    def mode(self) -> str:
        """Return `events`, or `polling` where nothing comes but what is looked for."""
        return "polling" if self.trouble else "events"

    def follow(self, folders: set[Path], now_s: float) -> None:
        """Watch these folders and no others; to be called on each pass. `now_s` is monotonic time."""
        if folders == self._folders and now_s < self._check_at_s:
            return
        if now_s < self._retry_at_s:
            return
        self._folders, self._check_at_s = set(folders), now_s + CHECK_S
        try:
            self._reconcile()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self.trouble = _told(error)
            self._retry_at_s = now_s + RETRY_S
            self.close()
        else:
            self.trouble = ""

    def close(self) -> None:
        """Stop watching."""
        observer, self._observer, self._watched = self._observer, None, {}
        if observer is not None:
            observer.stop()
            observer.join()

    def _reconcile(self) -> None:
        if self._observer is None or not self._observer.is_alive():
            self.close()
            self._observer = _observer()
        alive = {emitter.watch for emitter in self._observer.emitters if emitter.is_alive()}
        for folder, watched in list(self._watched.items()):
            is_same = watched.watch in alive and watched.identity == _identity(folder)
            if folder not in self._folders or not is_same:
                del self._watched[folder]
                self._observer.unschedule(watched.watch)
                self._wake()
        for folder in self._folders - self._watched.keys():
            self._begin(self._observer, folder)

    def _begin(self, observer: "BaseObserver", folder: Path) -> None:
        from watchdog import events

        identity = _identity(folder)
        if identity is None:
            return
        kinds = [
            *(events.FileCreatedEvent, events.FileMovedEvent, events.FileDeletedEvent),
            *(events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent),
        ]
        hint = cast("FileSystemEventHandler", _Hint(self._wake))
        try:
            watch = observer.schedule(hint, os.path.realpath(folder), event_filter=kinds)
        except OSError as error:
            if error.errno in _LIMITS:
                raise
            return  # it went, or may not be read: it is looked at again
        self._watched[folder] = _Watched(identity, watch)
        self._wake()  # for what happened before


def _observer() -> "BaseObserver":
    from watchdog.observers import Observer

    observer = Observer()
    observer.start()
    return observer


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _told(error: OSError | RuntimeError) -> str:
    if isinstance(error, RuntimeError):
        return "files are polled: no thread can be started to watch files: raise TasksMax= of the unit"
    limit = _LIMITS.get(error.errno or 0)
    if limit is None:
        return f"files are polled: they cannot be watched: {os.strerror(error.errno or 0)}"
    return f"files are polled: the limit of inotify is reached: raise sysctl {limit}"
