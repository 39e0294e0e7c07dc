"""68 c. Memory runs out while a backlog is read: the daemon waits or dies, and in the end each line is stored once.

That the kernel kills it is part of test_066_systemd.py, where there is a cgroup; here allocations fail.
"""

import resource
from pathlib import Path

from kvlogd import ask
from kvlogd.errors import KvlogdError
from tests.daemon import PATIENCE_S, Running
from tests.lines import line_of, record
from tests.waiting import until

BACKLOG = 60_000
COUNT = "SELECT count(*) FROM samples"


def asked(daemon: Running, sql: str) -> int:
    """Return the number that a query answers with; -1 while the daemon is in no state to answer."""
    try:
        with ask.sql([daemon.folder / "kvlogd.sock"], daemon.store, sql, 30) as found:
            return int(next(iter(found.rows))[0])
    except KvlogdError:
        return -1


def address_space(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))


def limit(pid: int, most: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def test_allocations_that_fail_lose_nothing(tmp_path: Path) -> None:
    daemon = Running(tmp_path)
    daemon.log.write_bytes(b"".join(line_of(record(10 * n, running=n % 7)) + b"\n" for n in range(BACKLOG)))
    try:
        daemon.up()
        until(lambda: asked(daemon, COUNT) > 0, PATIENCE_S)
        process = daemon.process
        assert process is not None
        limit(process.pid, address_space(process.pid) + (1 << 20))
        until(lambda: "allocate" in daemon.said.read_text() or process.poll() is not None, PATIENCE_S)
        assert asked(daemon, COUNT) < BACKLOG, "there was memory enough"
        if process.poll() is None:
            limit(process.pid, resource.RLIM_INFINITY)
        else:  # as systemd would
            daemon.up()
        until(lambda: asked(daemon, COUNT) == BACKLOG, PATIENCE_S)
        assert asked(daemon, "SELECT count(DISTINCT ts) FROM samples") == BACKLOG
        assert asked(daemon, "SELECT sum(running)::BIGINT FROM samples") == sum(n % 7 for n in range(BACKLOG))
        assert asked(daemon, "SELECT count(*) FROM gaps") == 0
        assert "Traceback" not in daemon.said.read_text()
    finally:
        daemon.close()
