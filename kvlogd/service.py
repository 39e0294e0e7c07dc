"""`kvlogd run`: gives the daemon its surroundings - signals, systemd, the voice - and an exit status."""

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from kvlogd.clock import Clock, Waker
from kvlogd.daemon import Daemon
from kvlogd.errors import ConfigError
from kvlogd.systemd import Notifier
from kvlogd.voice import Level, Voice

FINE, FAILED, CONFIG = 0, 1, 78
"""78 is sysexits' EX_CONFIG: the unit does not restart a service whose config is wrong."""
_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(config: Path | None) -> int:
    """Run the daemon until a signal ends it; return the exit status. Raises StoreError."""
    voice = Voice(sys.stderr, for_journal="JOURNAL_STREAM" in os.environ)
    waker = Waker()
    try:
        daemon = Daemon(config, Clock(), waker, Notifier.of(os.environ, os.getpid()), voice)
    except ConfigError as error:
        for line in str(error).splitlines():
            voice.say(Level.ERROR, line)
        return CONFIG
    if not daemon.setup.is_asked:
        voice.say(
            Level.WARNING, "channels: Apprise did not come to look at the URLs in time: they are taken as they are"
        )
    _obey(daemon, waker)
    daemon.run()
    return FINE


def _obey(daemon: Daemon, waker: Waker) -> None:
    """Let signals steer the daemon; a second one that ends it does so at once."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_DFL)
        daemon.stop()

    def reload(_number: int, _frame: FrameType | None) -> None:
        daemon.reload()

    signal.set_wakeup_fd(waker.fd, warn_on_full_buffer=False)
    for ending in _ENDING:
        signal.signal(ending, end)
        _only_once(ending)
    signal.signal(signal.SIGHUP, reload)
    faulthandler.enable()  # the watchdog ends a daemon that hangs with SIGABRT: where it hung stands in the journal
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _only_once(number: int) -> None:
    """Let the kernel drop a signal's handler as it calls it, so that a second one ends a process that hangs, too.

    Python's own handlers run between two of its instructions; a commit on a disk that hangs never comes to the next.
    """
    set_handler = getattr(ctypes.CDLL(None), "sysv_signal", None)  # glibc's; elsewhere SIGKILL must do
    if set_handler is not None:
        set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        set_handler(number, set_handler(number, None))  # what it was: Python's, in C
