"""What is given back, and that everything works behind it."""

import subprocess
import sys

from kvlogd.thrift import Mapping, unchanged

LIBRARY = "08:01 1234 /usr/lib/libduck.so.2"
SMAPS = f"""\
100000-200000 r--p 00000000 {LIBRARY}
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
200000-300000 r-xp 00100000 {LIBRARY}
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
300000-400000 r--p 00200000 {LIBRARY}
Rss:                 900 kB
Anonymous:             4 kB
Swap:                  0 kB
400000-500000 rw-p 00300000 {LIBRARY}
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
500000-600000 r-xp 00000000 08:01 1235 /usr/lib/libtiny.so
Rss:                  64 kB
Anonymous:             0 kB
Swap:                  0 kB
600000-700000 r--p 00000000 08:01 1236 /var/lib/kvlogd/kvlogd.duckdb
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
700000-800000 r-xp 00000000 00:00 0
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
800000-900000 r-xp 00100000 08:01 1237 /a folder/libduck.so (deleted)
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  0 kB
a00000-b00000 r--p 00200000 08:01 1238 /usr/lib/libswapped.so
Rss:                 900 kB
Anonymous:             0 kB
Swap:                  4 kB
900000-a00000 r-xp 00000000 00:00 0                          [vdso]
Rss:                 900 kB
"""

# A process of its own: what is resident here hangs on the tests before.
PROBE = """
import duckdb
from kvlogd import thrift

def resident_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssFile:"))

def ask():
    return connection.execute("SELECT sum(range)::BIGINT FROM range(1000)").fetchone()

connection = duckdb.connect()
ask()
before = resident_kib()
thrift.give_back()
after = resident_kib()
print(before - after, *ask())
"""


def test_only_libraries_that_are_as_on_the_disk_go() -> None:
    found = list(unchanged(SMAPS.splitlines(keepends=True)))
    assert found == [Mapping(0x100000, 0x200000), Mapping(0x200000, 0x300000), Mapping(0x800000, 0x900000)]


def test_code_that_is_not_used_is_resident_no_more_and_all_works_on() -> None:
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    assert probe.stderr == ""
    given_back_kib, total = map(int, probe.stdout.split())
    assert given_back_kib > 10_000
    assert total == 499_500


def test_lines_of_other_kernels_are_passed_over() -> None:
    lines = SMAPS.replace("Swap:                  0 kB", "THPeligible:\t0\nSwap:                  0 kB")
    found = list(unchanged(SMAPS.splitlines(keepends=True)))
    assert found
    assert list(unchanged(lines.splitlines(keepends=True))) == found
