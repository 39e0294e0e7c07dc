"""The daemon's upkeep, by a clock that the test moves on."""

import gc
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlogd import ask
from kvlogd.clock import Clock, Waker
from kvlogd.daemon import FIRST_TEND_S, SWOLLEN_BYTES, SWOLLEN_S, Daemon
from kvlogd.disk import size_of, wal_of
from kvlogd.systemd import Notifier
from kvlogd.voice import Voice
from tests.lines import line_of, record
from tests.waiting import until


class Hand(Clock):
    """A clock that stands still until it is moved on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        """Return where it was moved to."""
        return self.now_s


@contextmanager
def working(config: Path, clock: Clock) -> Iterator[Waker]:
    """Run a daemon in a thread; yield what wakes it."""
    waker = Waker()
    daemon = Daemon(config, clock, waker, Notifier(None), Voice(io.StringIO(), for_journal=False))
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield waker
    finally:
        daemon.stop()
        thread.join(60)
        waker.close()
        gc.unfreeze()


def test_a_log_of_the_store_that_has_grown_is_looked_after_within_a_minute(tmp_path: Path) -> None:
    log, store, config = tmp_path / "vllm.log", tmp_path / "kvlogd.duckdb", tmp_path / "kvlogd.yaml"
    config.write_text(
        f"sources: [{{name: chat, files: [{log}], timezone: UTC}}]\nstore: {{path: {store}}}\n"
        "gpu: {enabled: no}\nhost: {enabled: no}\nwatch: no\n"
    )
    log.write_bytes(
        b"".join(line_of(record(10 * n, running=2, kv_usage=n % 997 / 1000)) + b"\n" for n in range(60_000))
    )
    clock = Hand()
    with working(config, clock) as waker:
        until(lambda: size_of(wal_of(store)) >= SWOLLEN_BYTES, 120)

        def stored() -> int:
            with ask.sql([tmp_path / "kvlogd.sock"], store, "SELECT count(*) FROM samples", 30) as found:
                return int(next(iter(found.rows))[0])

        until(lambda: stored() == 60_000, 120)
        assert size_of(wal_of(store)) >= SWOLLEN_BYTES
        assert SWOLLEN_S < FIRST_TEND_S
        clock.now_s += SWOLLEN_S
        waker.wake()
        until(lambda: size_of(wal_of(store)) < SWOLLEN_BYTES, 60)
