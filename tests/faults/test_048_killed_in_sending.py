"""48. Killed between a send and its record: no message is lost, one at most comes twice for each kill, and it shows.

KVLOGD_KILLS=50 makes the long run.
"""

import os
import re
import threading
from collections import Counter
from pathlib import Path

from kvlogd.outbox import alert_id
from tests.paging import Paged
from tests.sinks import Answer, HttpSink, Request

KILLS = int(os.environ.get("KVLOGD_KILLS", "2"))


class Deadly(HttpSink):
    """Kills the daemon when a message has come and before it is answered, as long as it shall."""

    def __init__(self) -> None:
        self.victim: Paged | None = None
        self.came = threading.Event()
        super().__init__()

    def received(self, request: Request) -> Answer:
        answer = super().received(request)
        if self.victim is not None and self.victim.process is not None:
            self.victim.process.kill()
            self.victim = None
        self.came.set()
        return answer


def ids(sink: HttpSink) -> Counter[str]:
    found = [re.search(r"\b[0-9a-f]{8}\b", str(request.json["message"])) for request in sink.requests]
    assert all(found)
    return Counter(one.group() for one in found if one)


def test_048_nothing_is_lost_and_one_comes_twice_at_most_for_each_kill(tmp_path: Path) -> None:
    with Deadly() as sink:
        daemon = Paged(tmp_path, {"hook": sink.url()})
        try:
            daemon.up()
            for number in range(KILLS):
                sink.victim = daemon
                sink.came.clear()
                daemon.write(0.8 if number % 2 == 0 else 0.1, 3)
                daemon.waits(sink.came.is_set, 60)
                assert daemon.process is not None
                daemon.process.wait(30)
                daemon.process = None
                daemon.up()
                daemon.eventually(
                    "SELECT count(*) AS n FROM notices WHERE state = 'waiting'", lambda rows: rows[0]["n"] == 0
                )
            events = daemon.rows("SELECT rule, scope, run_id, state, epoch(ts) AS at FROM alert_events ORDER BY ts")
            told = Counter(str(request.json["title"]).partition("]")[0] for request in sink.requests)
            firing = [one for one in events if one["state"] == "firing" and one["rule"] == "full"]
            assert firing
            assert len(sink.requests) <= len(events) + KILLS
            assert sum(ids(sink).values()) == len(sink.requests)
            for one in firing:
                assert any(alert_id_of(one) in str(request.json["message"]) for request in sink.requests), told
        finally:
            daemon.close()


def alert_id_of(row: dict[str, object]) -> str:
    from kvlogd.model import AlertKey

    run = row["run_id"]
    key = AlertKey(str(row["rule"]), str(row["scope"]), None if run is None else int(str(run)))
    return alert_id(key, float(str(row["at"])))
