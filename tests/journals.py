"""Journals to follow: a scripted `journalctl` that dies and floods on command, and real ones made without systemd."""

import gzip
import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvlogd.journal import Journal
from kvlogd.model import Gap
from kvlogd.piece import Piece

UNIT = "vllm.service"
START_US = 1_795_961_785_000_000
REMOTE = Path("/lib/systemd/systemd-journal-remote")
REAL = Path(__file__).parent / "data" / "journal"

needs_journalctl = pytest.mark.skipif(shutil.which("journalctl") is None, reason="journalctl is not installed")
needs_remote = pytest.mark.skipif(
    shutil.which("journalctl") is None or not REMOTE.exists(),
    reason="needs journalctl and systemd-journal-remote (its package) to write a journal without systemd",
)

FAKE = '''#!{python} -SE
"""Plays journalctl from the files beside it."""
import json, os, re, select, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
def say(name, default=""):
    try:
        with open(os.path.join(here, name)) as file:
            return file.read()
    except FileNotFoundError:
        return default
with open(os.path.join(here, "calls"), "a") as file:
    file.write(json.dumps([os.getpid(), *sys.argv[1:]]) + "\\n")
options = dict(word.partition("=")[::2] for word in sys.argv[1:])
follows = "--follow" in options
if say("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if say("fail"):
    status, _, text = say("fail").partition(" ")
    sys.stderr.write(text + "\\n")
    sys.exit(int(status))
lives = len(say("calls").splitlines())
die = (say("die").split() + [""] * lives)[lives - 1]
at_us = lambda cursor: int((re.search(";t=([0-9a-f]+)", cursor) or [0, "0"])[1], 16)
def begins(line):
    own = json.loads(line)["__CURSOR"]
    if "--cursor" in options:
        return own == options["--cursor"] or at_us(own) > at_us(options["--cursor"])
    if "--since" in options:
        return at_us(own) >= round(float(options["--since"][1:]) * 1e6)
    return True
if "--cursor" in options and not options["--cursor"].startswith("s="):
    sys.stderr.write("Failed to seek to cursor: Invalid argument\\n")
    sys.exit(1)
shown, begun = 0, False
boot = say("boot").strip()
with open(os.path.join(here, "entries"), "rb") as entries:
    rest = b""
    while True:
        while follows and say("hang"):
            poll = select.poll()
            poll.register(1, 0)
            if poll.poll(5):
                sys.exit(0)
        rest += entries.readline()
        if rest[-1:] == b"\\n":
            line, rest = rest[:-1], b""
            begun = begun or begins(line)
            if not begun or (follows and boot and ";b=%s;" % boot not in json.loads(line)["__CURSOR"]):
                continue
            if die and shown >= int(die):
                os.write(1, line[: len(line) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            line += b"\\n"
            while line:
                line = line[os.write(1, line):]
            shown += 1
        elif not follows:
            break
        else:
            poll = select.poll()
            poll.register(1, 0)
            if poll.poll(5):
                break
'''


class FakeJournal:
    """A `journalctl` that shows entries which the test adds, and what it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.program = folder / "journalctl"
        self.program.write_text(FAKE.replace("{python}", sys.executable), encoding="utf-8")
        self.program.chmod(0o755)
        (folder / "entries").write_bytes(b"")
        self.count = 0

    def cursor(self, number: int, *, series: str = "a", boot: str = "0") -> str:
        """Return the cursor of entry `number`, one a second."""
        us = START_US + number * 1_000_000
        return f"s={series * 32};i={number + 1:x};b={boot * 32};m={number + 1:x};t={us:x};x={number:x}"

    def entry(self, message: object, *, boot: str = "0", number: int | None = None, **fields: str) -> bytes:
        """Return an entry as journalctl prints it, MESSAGE first."""
        at = self.count if number is None else number
        self.count = max(self.count, at + 1)
        head = {"__CURSOR": self.cursor(at, boot=boot), "__REALTIME_TIMESTAMP": str(START_US + at * 1_000_000)}
        return json.dumps({"MESSAGE": message, **head, "_PID": "811", **fields}, separators=(",", ":")).encode()

    def add(self, *entries: bytes) -> None:
        """Let journald write."""
        with (self.folder / "entries").open("ab") as file:
            file.write(b"".join(entry + b"\n" for entry in entries))

    def write(self, count: int, *, boot: str = "0") -> None:
        """Add entries `seq=N`."""
        self.add(*[self.entry(f"seq={self.count}", boot=boot) for _ in range(count)])

    def vacuum(self, keep: int) -> None:
        """Remove all but the newest entries."""
        lines = (self.folder / "entries").read_bytes().splitlines(keepends=True)
        (self.folder / "entries").write_bytes(b"".join(lines[len(lines) - keep :]))

    def script(self, name: str, text: str) -> None:
        """Set what the next lives do: `fail`: status and words; `die`: after how many entries each; `boot`; ..."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def unscript(self, name: str) -> None:
        """Undo `script`."""
        (self.folder / name).unlink()

    def calls(self) -> list[list[str]]:
        """Return the options of each life so far, the process id first."""
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [[str(word) for word in json.loads(line)] for line in lines]


class RealJournal:
    """A journal file that systemd-journal-remote writes, entry by entry."""

    def __init__(self, folder: Path, unit: str = UNIT) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.unit = unit
        self.count = 0
        self._boot = uuid.uuid4().hex
        command = [str(REMOTE), f"--output={folder}/made-{uuid.uuid4().hex}.journal", "-"]
        self._writer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def add(self, message: bytes) -> None:
        """Write one entry, a millisecond after the one before."""
        us = START_US + self.count * 1000
        fields = [
            b"__REALTIME_TIMESTAMP=%d" % us, b"__MONOTONIC_TIMESTAMP=%d" % (self.count * 1000 + 1000),
            b"_BOOT_ID=" + self._boot.encode(), b"_MACHINE_ID=" + b"a" * 32,
            b"_SYSTEMD_UNIT=" + self.unit.encode(), b"_PID=811", b"_TRANSPORT=stdout",
            b"MESSAGE\n" + len(message).to_bytes(8, "little") + message,
        ]  # fmt: skip
        assert self._writer.stdin is not None
        self._writer.stdin.write(b"\n".join(fields) + b"\n\n")
        self._writer.stdin.flush()
        self.count += 1

    def write(self, count: int) -> None:
        """Add entries `seq=N`."""
        for _ in range(count):
            self.add(b"seq=%d" % self.count)

    def reboot(self) -> None:
        """Go on in another boot."""
        self._boot = uuid.uuid4().hex

    def close(self) -> None:
        """Let the writer finish its file."""
        assert self._writer.stdin is not None
        self._writer.stdin.close()
        self._writer.wait(30)


def checked_in(name: str, folder: Path) -> Path:
    """Unpack a journal file of tests/data/journal into a folder of its own, and return that."""
    folder.mkdir()
    (folder / f"{name}.journal").write_bytes(gzip.decompress((REAL / f"{name}.journal.gz").read_bytes()))
    return folder


def children(pid: int | str = "self") -> list[int]:
    """Return the children of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found += [int(child) for child in path.read_text(encoding="utf-8").split()]
    return found


def followers(pid: int | str = "self") -> list[int]:
    """Return the children of a process that follow a journal by now."""
    return [child for child in children(pid) if b"\0--follow\0" in command_of(child)]


def command_of(pid: int) -> bytes:
    """Return what a process was called with; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Reader:
    """Polls a tailer as the daemon does, on a clock of its own."""

    def __init__(self, tailer: Journal, *, budget: int = 1 << 20) -> None:
        self.tailer = tailer
        self.budget = budget
        self.now_s = 1000.0
        self.step_s = 0.25
        self.wall_s = START_US / 1e6 + 3600
        self._others = set(children())
        self.pieces: list[Piece] = []
        self.lines: list[bytes] = []

    def poll(self) -> list[Piece]:
        """Poll once, `step_s` after the last time."""
        self.now_s += self.step_s
        self.wall_s += self.step_s
        got = self.tailer.poll(self.budget, self.now_s, self.wall_s)
        self.pieces += got
        self.lines += [line for piece in got for line in piece.data.splitlines()]
        return got

    def until(self, done: Callable[[], bool], limit_s: float = 30.0) -> "Reader":
        """Poll until something holds."""
        deadline = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < deadline, (self.tailer.health(), len(self.pieces))
            self.poll()
            time.sleep(0.002)
        return self

    def until_lines(self, count: int) -> "Reader":
        """Poll until that many lines are there."""
        return self.until(lambda: len(self.lines) >= count)

    def rest(self) -> "Reader":
        """Poll until the journal has been gone through and nothing more comes."""
        self.until(lambda: bool(self.followers()))
        quiet = 0
        while quiet < 40:
            quiet = 0 if self.poll() else quiet + 1
            time.sleep(0.005)
        return self

    def children(self) -> set[int]:
        """Return the children of this process that came after this reader."""
        return set(children()) - self._others

    def followers(self) -> list[int]:
        """Return those of them that follow a journal by now."""
        return sorted(set(followers()) - self._others)

    @property
    def numbers(self) -> list[int]:
        """Return the N of the entries `seq=N`."""
        return list(numbers(self.lines))

    @property
    def gaps(self) -> list[Gap]:
        """Return the gaps so far."""
        return [gap for piece in self.pieces for gap in piece.gaps]


def numbers(lines: list[bytes]) -> Iterator[int]:
    """Yield the N of entries `seq=N`."""
    for line in lines:
        message = json.loads(line)["MESSAGE"]
        if isinstance(message, str) and message.startswith("seq="):
            yield int(message[4:])
