"""Messages go out through children that are started when needed, kept for a while and killed when they hang."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.model import Fault, Outcome
from kvlogd.postman import flaws
from tests.office import LETTER, TAKEN, Office, children, descriptors
from tests.paging import Paged
from tests.sinks import DRIP, HttpSink
from tests.waiting import until


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.postman.close()


def test_a_message_arrives_and_the_loop_is_woken(office: Office) -> None:
    with HttpSink() as sink:
        office.send(7, sink.url())
        assert office.woken.wait(30)
        assert office.postman.poll(office.now_s) == [(7, TAKEN)]
        assert office.postman.poll(office.now_s) == []
        (request,) = sink.requests
        assert request.json["title"] == LETTER.subject
        assert request.json["message"] == LETTER.text


def test_one_child_a_channel_takes_one_message_after_the_other(office: Office) -> None:
    with HttpSink() as sink:
        before = children()
        for ticket in range(3):
            assert office.postman.is_free("oncall")
            office.send(ticket, sink.url())
            assert not office.postman.is_free("oncall")
            with pytest.raises(ValueError, match="in hand"):
                office.send(99, sink.url())
            assert office.outcome(ticket) == TAKEN
        assert len(children() - before) == 1
        assert len(sink.requests) == 3


def test_a_child_gets_ready_before_its_message_is_there(office: Office) -> None:
    with HttpSink() as sink:
        before = children()
        office.postman.warm("oncall", sink.url(), office.now_s)
        assert not office.postman.is_free("oncall")
        assert office.woken.wait(30)
        assert office.postman.poll(office.now_s) == []
        assert office.postman.is_free("oncall")
        office.postman.warm("oncall", sink.url(), office.now_s)
        assert office.postman.is_free("oncall")
        assert sink.requests == []
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN
        assert len(children() - before) == 1


def test_a_child_that_does_not_get_ready_is_killed_and_the_message_has_another(office: Office) -> None:
    with HttpSink() as sink:
        office.postman.warm("oncall", sink.url(), office.now_s)
        office.now_s += 31
        until(lambda: office.postman.poll(office.now_s) == [] and office.postman.is_free("oncall"))
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN


def test_a_child_without_work_is_ended_and_taken_leave_of(office: Office) -> None:
    with HttpSink() as sink:
        before, open_before = children(), descriptors()
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN
        office.now_s += 29
        office.poll()
        assert children() - before
        office.now_s += 2
        until(lambda: office.poll() and not children() - before)
        office.poll()
        until(lambda: descriptors() <= open_before)
        office.send(2, sink.url())
        assert office.outcome(2) == TAKEN


def test_a_channel_that_hangs_is_given_up_and_holds_up_no_other(office: Office) -> None:
    with HttpSink() as dead, HttpSink() as alive:
        dead.default = DRIP
        before = children()
        office.send(1, dead.url(), "dead")
        office.send(2, alive.url(), "alive")
        assert office.outcome(2) == TAKEN
        until(lambda: dead.requests)
        office.now_s += 29
        office.poll()
        assert 1 not in office.outcomes
        office.now_s += 1.5
        assert office.outcome(1) == Outcome(Fault.TIMEOUT)
        until(lambda: office.poll() and office.postman.is_free("dead"))
        assert len(children() - before) <= 1  # that of the channel which is alive
        dead.default = alive.default
        office.send(3, dead.url(), "dead")
        assert office.outcome(3) == TAKEN


def test_a_child_that_dies_with_a_message_has_failed(office: Office) -> None:
    with HttpSink() as sink:
        sink.default = DRIP
        before = children()
        office.send(1, sink.url())
        until(lambda: sink.requests)
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
        assert office.outcome(1) == Outcome(Fault.FAILED)
        until(lambda: office.poll() and office.postman.is_free("oncall"))
        assert not children() - before


def test_a_child_that_dies_while_idle_is_replaced(office: Office) -> None:
    with HttpSink() as sink:
        before = children()
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        office.send(2, sink.url())
        assert office.outcome(2) == TAKEN
        assert child not in children()


def test_signals_to_the_group_end_no_send(office: Office) -> None:
    with HttpSink() as sink:
        before = children()
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN
        (child,) = children() - before
        assert os.getpgid(child) == child != os.getpgrp()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child, number)
        office.send(2, sink.url())
        assert office.outcome(2) == TAKEN
        assert children() - before == {child}


def test_closing_ends_every_child_at_once() -> None:
    office = Office()
    with HttpSink() as sink:
        sink.default = DRIP
        before, open_before = children(), descriptors()
        for ticket, channel in enumerate(("one", "two", "three")):
            office.send(ticket, sink.url(), channel)
        until(lambda: len(sink.requests) == 3)
        office.postman.close()
        assert children() == before
    until(lambda: descriptors() <= open_before)  # the sink closes its own in its threads
    office.postman.close()


def test_nothing_waits_for_a_child_that_does_not_read(office: Office) -> None:
    """A message larger than any pipe, and a child that is stopped before it can take it."""
    with HttpSink() as sink:
        before = children()
        office.send(1, sink.url())
        assert office.outcome(1) == TAKEN
        (child,) = children() - before
        os.kill(child, signal.SIGSTOP)
        began_s = time.monotonic()
        office.send(2, sink.url(), letter=LETTER._replace(text="x" * 3_000_000))
        office.poll()
        assert time.monotonic() - began_s < 5
        office.now_s += 31
        assert office.outcome(2) == Outcome(Fault.TIMEOUT)
        until(lambda: office.poll() and not children() - before)


def test_no_child_to_be_had_is_a_failure_and_passes(office: Office) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with HttpSink() as sink:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()), hard))
        held = exhausted()
        try:
            office.send(1, sink.url())
            assert flaws({"oncall": sink.url()}) is None
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert office.outcome(1) == Outcome(Fault.FAILED)
        office.send(2, sink.url())
        assert office.outcome(2) == TAKEN


def exhausted() -> list[int]:
    """Take all descriptors that are left."""
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    return held


def test_urls_are_looked_at_without_sending() -> None:
    with HttpSink() as sink:
        before = children()
        urls = {"fine": sink.url(), "unknown": "bogus://host/x", "cut": "slack://token", "none": "hello"}
        assert flaws(urls) == {"unknown": "schema", "cut": "url", "none": "schema"}
        assert sink.requests == []
        assert children() == before
    assert flaws({}) == {}
    assert flaws({"slow": sink.url()}, longest_s=0.0) is None
    assert children() == before


LOADED = """
import sys
from pathlib import Path
from kvlogd.service import serve
status = serve(Path(sys.argv[1]))
print(status, *sys.modules)
"""


def test_the_daemon_never_loads_apprise_or_matplotlib(tmp_path: Path) -> None:
    """A real daemon that sends: at its start, through a reload, an alert and its end."""
    with HttpSink() as sink:
        daemon = Paged(tmp_path, {"oncall": sink.url()})
        try:
            daemon.program = ["-c", LOADED, str(daemon.config)]
            daemon.up()
            (tmp_path / "oncall.url").write_text(sink.url("other"))
            daemon.send(signal.SIGHUP)
            daemon.wait_for("RELOADING=1")
            daemon.wait_for("READY=1")
            daemon.fire()
            daemon.waits(lambda: sink.requests)
            assert daemon.stop() == 0
        finally:
            daemon.close()
        assert sink.requests[0].path == "/other"
        status, *modules = daemon.printed.read_text().split()
        assert status == "0"
        assert "kvlogd.postman" in modules
        assert {"apprise", "matplotlib", "requests", "kvlogd.sender", "kvlogd.picture"} & set(modules) == set()


SENDS = """
import resource, select, sys, time
from pathlib import Path
from kvlogd.clock import Waker
from kvlogd.postman import Postman
from tests.office import LETTER

def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024

waker, count, rows = Waker(), int(sys.argv[2]), []
postman = Postman(waker.wake)
for ticket in range(count):
    postman.send(ticket, "oncall", sys.argv[1], LETTER, None, time.monotonic())
    while not (told := postman.poll(time.monotonic())):
        waker.wait(1.0)
    assert told[0][1].fault is None, told
    if ticket % (count // 10) == 0:
        rows.append(resident_kib())
postman.close()
assert not {"apprise", "matplotlib"} & set(sys.modules)
print(*rows)
"""


@pytest.mark.parametrize("count", [int(os.environ.get("KVLOGD_SENDS", "100"))])
def test_memory_stays_where_it_was(count: int) -> None:
    """100 sends; KVLOGD_SENDS=5000 in the environment makes it 5,000."""
    with HttpSink() as sink:
        ran = subprocess.run(
            [sys.executable, "-c", SENDS, sink.url(), str(count)], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        first, *_, final = [int(word) for word in ran.stdout.split()]
        assert len(sink.requests) == count
        print(f"{count} sends: {ran.stdout.strip()} KiB")
        assert final - first < 1024
