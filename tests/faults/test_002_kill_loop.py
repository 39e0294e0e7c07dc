"""2 and 24. Killed again and again under a writer, the daemon stores every line once, without any help.

KVLOGD_KILLS=200 makes the long run.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import Running

KILLS = int(os.environ.get("KVLOGD_KILLS", "4"))
WRITER = """
import sys, time
from tests.lines import line_of, record
log, stop = sys.argv[1:]
import os
number, begun = 0, time.monotonic()
with open(log, "ab", buffering=0) as out:
    while not os.path.exists(stop):
        due = int((time.monotonic() - begun) * 2000)
        new = [record(n, running=1 + n % 7, prompt_tps=float(n), generation_tps=9.0) for n in range(number, due)]
        out.write(b"".join(line_of(one) + b"\\n" for one in new))
        number = max(number, due)
        time.sleep(0.01)
print(number)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def test_every_line_is_stored_once(running: Running) -> None:
    dice = random.Random(2)
    stop = running.folder / "stop"
    running.log.touch()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, running.log, stop], stdout=subprocess.PIPE)
    for _ in range(KILLS):
        running.up()
        running.wait_for("WATCHDOG=1")
        for _ in range(dice.randrange(4)):
            running.wait_for("WATCHDOG=1")
        running.kill()
    stop.touch()
    written = int(writer.communicate(timeout=60)[0])
    running.up()
    count = "SELECT count(*) AS n, count(DISTINCT prompt_tps) AS once, max(prompt_tps) AS last FROM samples"
    found = running.eventually(count, lambda rows: rows[0]["last"] == written - 1, 60 + written / 1000)
    assert found[0]["n"] == found[0]["once"] == written
    offset = running.rows("SELECT max(byte_offset) AS o FROM positions")[0]["o"]
    assert offset == running.log.stat().st_size
    assert running.stop() == 0
