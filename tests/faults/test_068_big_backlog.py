"""68 e. A log of many megabytes is read while another is written: its lines come through at once, and all of both.

KVLOGD_BACKLOG_MB=2000 makes it large; then what it says of the rate (`pytest -s`) is worth reading.
"""

import os
from pathlib import Path

from bench.replay import write_busy
from kvlogd import ask
from kvlogd.intake import BUDGET_BYTES
from tests.daemon import Running
from tests.lines import line_of, record
from tests.waiting import until

BACKLOG_MB = int(os.environ.get("KVLOGD_BACKLOG_MB", "32"))
MOST_BETWEEN = 12 * BUDGET_BYTES
"""Bytes of the backlog that may be read between a live line and its row: at 10 MB/s, a second."""
READ = "SELECT coalesce(max(byte_offset), 0) FROM positions WHERE source = 'old'"
LIVE = "SELECT count(*) FROM samples JOIN engines USING (engine_id) WHERE label = 'chat/0'"
ALL = "SELECT count(*) FROM samples"
PATIENCE_S = 60.0 + BACKLOG_MB


def asked(daemon: Running, sql: str) -> int:
    with ask.sql([daemon.folder / "kvlogd.sock"], daemon.store, sql, 30) as found:
        return int(next(iter(found.rows))[0])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def two_logs(daemon: Running, old: Path) -> None:
    """Let the daemon follow its log, and an old one beside it that is there already."""
    sources = "".join(
        f"- {{name: {name}, files: [{log}], timezone: UTC}}\n" for name, log in (("old", old), ("chat", daemon.log))
    )
    daemon.config.write_text(f"sources:\n{sources}store: {{path: {daemon.store}}}\ngpu: {{enabled: no}}\n")
    daemon.log.write_bytes(b"")


def test_live_lines_come_through_while_a_backlog_is_read(tmp_path: Path) -> None:
    old = tmp_path / "old.log"
    with old.open("wb") as out:
        records = write_busy(out, BACKLOG_MB * 1_000_000)
    size = old.stat().st_size
    daemon = Running(tmp_path)
    two_logs(daemon, old)
    try:
        daemon.up()
        between = live = 0
        read = asked(daemon, READ)
        assert read < size, "the daemon is ready before the backlog is read"
        while read < size:
            with daemon.log.open("ab") as log:
                log.write(line_of(record(10 * live)) + b"\n")
            live += 1
            until(lambda live=live: asked(daemon, LIVE) == live, PATIENCE_S)  # type: ignore[misc]
            before, read = read, asked(daemon, READ)
            if read < size:
                between = max(between, read - before)
        assert daemon.process is not None
        rate = size / 1e6 / cpu_s(daemon.process.pid)
        print(f"\n{size / 1e6:.0f} MB at {rate:.1f} MB a CPU second, {records} records; {live} lines came live,")
        print(f"with at most {between / 1e6:.1f} MB of the backlog between two")
        until(lambda: asked(daemon, ALL) == records + live, PATIENCE_S)
        assert live >= 3, "the backlog was too short to tell"
        assert between <= MOST_BETWEEN
        assert asked(daemon, "SELECT count(*) FROM gaps") == 0
    finally:
        daemon.close()
