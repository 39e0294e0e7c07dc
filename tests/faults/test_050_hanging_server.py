"""Scenario 50: a server that drips a byte now and then holds up nothing.

The send is given up at its deadline, however alive the connection is; one child is killed and none is left; a daemon's
end waits for nobody, and when the daemon is killed its children go with it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from kvlogd.model import Fault, Outcome
from tests.office import Office, children
from tests.paging import Paged
from tests.sinks import DRIP, HttpSink
from tests.waiting import until

PARENT = """
import sys, time
from kvlogd.model import Letter
from kvlogd.postman import Postman
postman = Postman(lambda: None)
postman.send(1, "oncall", sys.stdin.readline().strip(), Letter("s", "t", "<p>t</p>", None), None, time.monotonic())
print("sending", flush=True)
sys.stdin.readline()
postman.close()
"""


def test_a_server_that_drips_is_given_up_at_the_deadline_again_and_again() -> None:
    office = Office(deadline_s=3.0)
    with HttpSink() as sink:
        sink.default = DRIP
        before = children()
        for ticket in range(3):
            office.send(ticket, sink.url(rto=15))
            until(lambda: len(sink.requests) > len(office.outcomes))
            office.now_s += 2.9
            assert office.poll()
            assert ticket not in office.outcomes
            office.now_s += 0.2
            assert office.outcome(ticket) == Outcome(Fault.TIMEOUT)
            until(lambda: office.poll() and office.postman.is_free("oncall"))
            assert children() == before
    office.postman.close()


def hanging(sink: HttpSink) -> tuple["subprocess.Popen[str]", int]:
    """Return a process that is in the midst of a send, and its child."""
    sink.default = DRIP
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert parent.stdin is not None
    parent.stdin.write(sink.url(rto=15) + "\n")
    until(lambda: sink.requests)
    (child,) = children(parent.pid)
    return parent, child


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; who adopts orphans may leave them as zombies."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_when_its_parent_is_killed_the_child_ends_in_the_midst_of_a_send() -> None:
    with HttpSink() as sink:
        parent, child = hanging(sink)
        with parent:
            os.kill(parent.pid, signal.SIGKILL)
            until(lambda: is_gone(child))


def test_the_end_waits_for_no_server() -> None:
    with HttpSink() as sink:
        parent, child = hanging(sink)
        with parent:
            assert parent.stdin is not None
            parent.stdin.write("end\n")
            assert parent.wait(10) == 0
            assert is_gone(child)


def test_a_daemon_goes_on_reading_while_its_server_hangs_and_ends_in_time(tmp_path: Path) -> None:
    with HttpSink() as sink:
        sink.default = DRIP
        daemon = Paged(tmp_path, {"oncall": sink.url(rto=15)})
        try:
            daemon.up()
            daemon.fire()
            daemon.waits(lambda: sink.requests)
            assert daemon.process is not None
            (child,) = children(daemon.process.pid)
            daemon.write(0.8, 6)
            daemon.eventually("SELECT count(*) AS n FROM samples", lambda rows: rows[0]["n"] == 18)
            assert children(daemon.process.pid) == {child}
            daemon.send(signal.SIGTERM)
            assert daemon.process.wait(10) == 0
            assert is_gone(child)
        finally:
            daemon.close()
