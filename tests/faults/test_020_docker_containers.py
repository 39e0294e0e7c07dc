"""20. docker, live: records cut anywhere, rotation by max-size, and a container that is made anew, each line once."""

import json
import random
from pathlib import Path

import pytest

from kvlogd.docker import Containers
from kvlogd.envelope import Unwrapped, Unwrapper
from tests import envelopes
from tests.logs import START, Server
from tests.test_docker import Docker, log_of

START_S = START.timestamp()
FORGED = "INFO 03-02 09:05:00 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 77 reqs"


def lines_of(pid: int) -> Server:
    """Return the log of one container: lines of 40 KiB between others."""
    made = Server(pid, seed=pid)
    made.start()
    for _ in range(4):
        made.busy(4, 5, 0.2)
        made.lines.append(
            (made.now, f"(APIServer pid={pid}) Received request: ".ljust(2 * envelopes.PART, "y") + FORGED)
        )
    return made


class Tail:
    """Reads what `Containers` finds, each file on from where it was left, in whole lines; one unwrapper a container."""

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.got: list[Unwrapped] = []
        self._read: dict[int, int] = {}
        self._unwrappers: dict[Path, Unwrapper] = {}

    def look(self, at_s: float) -> None:
        for path in self.containers.logs(at_s).paths:
            inode = path.stat().st_ino
            data = path.read_bytes()[self._read.get(inode, 0) :]
            whole = data[: data.rfind(b"\n") + 1]
            self._read[inode] = self._read.get(inode, 0) + len(whole)
            unwrapper = self._unwrappers.setdefault(path.parent, Unwrapper())
            self.got += [inner for line in whole.splitlines() if (inner := unwrapper.feed(line)) is not None]

    @property
    def texts(self) -> list[str]:
        return [inner.text.decode() for inner in self.got if not inner.text.startswith(b"nanobind")]


def rotate(folder: Path) -> None:
    """Rotate as docker does; none is dropped here, so that no inode comes again."""
    for number in range(40, 0, -1):
        older = log_of(folder, f".{number}")
        if older.exists():
            older.rename(log_of(folder, f".{number + 1}"))
    log_of(folder).rename(log_of(folder, ".1"))
    log_of(folder).touch()


@pytest.mark.parametrize("seed", range(4))
def test_each_line_once_through_rotations_and_new_containers(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    engine = Docker(tmp_path / "containers")
    tail = Tail(Containers(engine.root, "chat"))
    wanted: list[str] = []
    at_s = START_S
    for number in range(3):
        made = lines_of(100 + number)
        wanted += [line for _, line in made.lines]
        folder = engine.run("chat")
        for record in envelopes.docker_json(made.lines).splitlines(keepends=True):
            cut = chance.randrange(len(record))
            for part in (record[:cut], record[cut:]):
                with log_of(folder).open("ab") as file:
                    file.write(part)
                at_s += chance.choice([0, 0, 0, 1.5])
                tail.look(at_s)
            if chance.random() < 0.1:
                rotate(folder)
                tail.look(at_s := at_s + 2)
        tail.look(at_s := at_s + 2)  # docker ends the old one before it makes the new one
    assert tail.texts == wanted


def test_half_a_line_of_a_container_that_was_killed_is_not_joined_to_the_next(tmp_path: Path) -> None:
    engine = Docker(tmp_path / "containers")
    tail = Tail(Containers(engine.root, "chat"))
    stamp = {"stream": "stdout", "time": "2026-03-02T09:00:00Z"}
    engine.run("chat", log=json.dumps({"log": "x" * envelopes.PART, **stamp}).encode() + b"\n" + b'{"log":"tor')
    engine.run("chat", log=json.dumps({"log": "first\n", **stamp}).encode() + b"\n")
    tail.look(START_S)
    assert tail.texts == ["first"]


def test_who_starts_again_in_mid_line_reads_the_begin_first() -> None:
    """A new unwrapper is fed with what lies before the place, its answers dropped: it then knows the open parts."""
    records = envelopes.docker_json(lines_of(7).lines).splitlines()
    forged = next(at for at, record in enumerate(records) if record.startswith(b'{"log": "' + FORGED[:20].encode()))
    for warm in (False, True):
        unwrapper = Unwrapper()
        for record in records[:forged] if warm else []:
            unwrapper.feed(record)
        texts = [inner.text for record in records[forged:] if (inner := unwrapper.feed(record)) is not None]
        assert (FORGED.encode() in texts) is not warm
