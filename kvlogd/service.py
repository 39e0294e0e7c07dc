"""`kvlogd run`: gives the daemon its surroundings - signals, systemd, the voice - and an exit status."""

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

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        daemon.stop()

    def reload(_number: int, _frame: FrameType | None) -> None:
        daemon.reload()

    signal.set_wakeup_fd(waker.fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, reload)
    faulthandler.enable()  # the watchdog ends a daemon that hangs with SIGABRT: where it hung stands in the journal
    faulthandler.register(signal.SIGUSR1, all_threads=True)
