"""Looks after the child that reads the GPUs: asks it, ends it where it hangs, starts it anew, lets go of it.

Never blocks, but where asked to, and never waits for a child to end: one that cannot be ended is left alone, and none
is started beside it.
Promises: no reading is told twice; a GPU of which nothing was heard for three intervals is unknown; what cannot be
read comes back by itself, also after the driver was changed underneath.
"""

import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kvlogd.reading import DriverFault, Gpu, GpuSample, GpuState

START_S, POLL_S = 60.0, 15.0
"""How long the first answer and each later one may take, with the default interval."""
STALE_INTERVALS = 3
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 600.0
FRESH_S, LONGEST_FRESH_S = 60.0, 3600.0
"""How soon a new process looks at a GPU that is lost: only a new one sees that it was reset."""
FAREWELL_S = 1.0
"""How long a child may take to end where somebody waits for it."""
MOST_BYTES = 4 << 20
MIB = float(2**20)

MENDS: Mapping[DriverFault, tuple[str, str]] = {
    DriverFault.NO_BINDINGS: (
        "nvidia-ml-py is not installed",
        "install it where kvlogd is: pip install nvidia-ml-py (not pynvml)",
    ),
    DriverFault.NO_LIBRARY: (
        "there is no NVIDIA driver (libnvidia-ml.so.1)",
        "a host without GPUs needs none, and gpu: {enabled: no} ends this line; else install it",
    ),
    DriverFault.NOT_LOADED: ("the NVIDIA driver is not loaded", "modprobe nvidia, and see dmesg why it was not"),
    DriverFault.MISMATCH: (
        "the NVIDIA driver was changed underneath: its library and its module are of different versions",
        "if it lasts, reload the nvidia modules or reboot",
    ),
    DriverFault.NO_PERMISSION: (
        "the GPUs may not be opened",
        "give the service /dev/nvidia*: DeviceAllow=char-nvidia rw in the unit, --gpus for a container",
    ),
    DriverFault.NO_GPU: ("the driver lists no GPU", "see nvidia-smi -L, lspci, and dmesg for Xid"),
    DriverFault.FAILED: (
        "the NVIDIA driver fails without saying why",
        "see that /dev/nvidiactl and /dev/nvidia0 are there and allowed, and dmesg for Xid",
    ),
    DriverFault.HUNG: (
        "the NVIDIA driver does not answer",
        "nvidia-smi will hang too: see dmesg for Xid; the host may need a reboot",
    ),
    DriverFault.ENDED: ("the process that reads the GPUs ended by itself", "see dmesg and coredumpctl"),
}
"""What is wrong, and what to do about it."""


class Held(NamedTuple):
    """A process that holds memory of a GPU."""

    pid: int
    memory_mib: float | None


class Found(NamedTuple):
    """One GPU as it answered."""

    gpu: Gpu
    sample: GpuSample
    processes: tuple[Held, ...] | None
    """None where that cannot be known."""


class News(NamedTuple):
    """What came of a look."""

    found: tuple[Found, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    """Fields that cannot be read, with NVML's error."""


class Gpus:
    """All GPUs of this host. `known` are those that were there before this daemon."""

    def __init__(self, every_s: float, known: Iterable[Gpu] = (), command: Sequence[str] = ()) -> None:
        self.fault: DriverFault | None = None
        self.gpus: dict[str, Gpu] = {gpu.gpu: gpu for gpu in known}
        self.driver: str | None = None
        self.nameless: Mapping[int, GpuState] = {}
        """GPUs, by their number, that could not be asked who they are."""
        self._every_s = every_s
        self._command = command or (sys.executable, "-P", "-m", "kvlogd.nvml")
        self._child: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._said = bytearray()
        self._asked_s: float | None = None
        self._has_answered = False
        self._next_s = self._retry_at_s = -math.inf
        self._retry_s, self._fresh_s = FIRST_RETRY_S, FRESH_S
        self._fresh_at_s = math.inf
        self._heard_s: float | None = None
        self._released_until_s = -math.inf
        self._is_told = True

    def poll(self, now_s: float, wall_s: float) -> News:
        """Return what is new; starts, asks and ends the child."""
        if self._heard_s is None:
            self._heard_s = now_s
        if now_s < self._released_until_s:
            return self._blind(now_s, wall_s, GpuState.RELEASED)
        news = self._answer(now_s, wall_s) if self._asked_s is not None else None
        if news is not None:
            return news
        if self._child is None and not self.is_stuck() and now_s >= self._retry_at_s:
            self._start(now_s)
        if self._child is not None and self._asked_s is None and now_s >= self._next_s:
            self._ask(now_s)
        if self._heard_s is not None and now_s - self._heard_s >= STALE_INTERVALS * self._every_s:
            return self._blind(now_s, wall_s, GpuState.UNKNOWN)
        return News()

    def wait(self, longest_s: float) -> None:
        """Wait until the child has something to say, or for so long: for who has nothing else to do."""
        stream = self._child.stdout if self._child is not None else None
        select.select([] if stream is None else [stream], [], [], longest_s)

    def is_stuck(self) -> bool:
        """Return whether a child that was ended is still there: it hangs inside the driver."""
        if self._stuck is not None and self._stuck.poll() is not None:
            self._stuck = None
        return self._stuck is not None

    def release(self, now_s: float, for_s: float) -> None:
        """Let go of the GPUs for so long, so that they can be reset; 0 takes them up again."""
        self._released_until_s = now_s + for_s
        self.close(FAREWELL_S)
        self._retry_at_s, self._retry_s = now_s + for_s, FIRST_RETRY_S
        self._is_told = False

    def released_for_s(self, now_s: float) -> float | None:
        """Return for how long they stay released; None where they are not."""
        return self._released_until_s - now_s if now_s < self._released_until_s else None

    def drop(self, gpus: Iterable[str]) -> None:
        """Expect these no more; one that comes back is a new one."""
        for gpu in gpus:
            self.gpus.pop(gpu, None)

    def shift(self, by_s: float) -> None:
        """Move the times at which they were read last, where the host's clock was set."""
        self.gpus = {name: gpu._replace(seen_s=gpu.seen_s + by_s) for name, gpu in self.gpus.items()}

    def close(self, patience_s: float = 0.0) -> None:
        """End the child; wait for it so long at most, where somebody else wants the GPUs or it is the last we do."""
        self._end()
        if self._stuck is not None and patience_s > 0:
            with suppress(subprocess.TimeoutExpired):
                self._stuck.wait(patience_s)

    # --- the child

    def _start(self, now_s: float) -> None:
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            self._failed(DriverFault.ENDED, now_s)
            return
        os.set_blocking(_fd(self._child.stdout), False)
        self._said.clear()
        self._has_answered = False

    def _ask(self, now_s: float) -> None:
        self._asked_s = now_s
        try:
            os.write(_fd(self._child.stdin if self._child is not None else None), b"poll\n")
        except OSError:
            self._end()
            self._failed(DriverFault.ENDED, now_s)

    def _answer(self, now_s: float, wall_s: float) -> News | None:
        """Return what the child answered; None while nothing came, or where it failed."""
        line = self._line()
        if line is None:
            if now_s - (self._asked_s or now_s) >= self._patience_s():
                self._end()
                self._failed(DriverFault.HUNG, now_s)
            return None
        fault, found = _told(line)
        if fault is not None or found is None:
            self._end()
            self._failed(fault or DriverFault.ENDED, now_s)
            return None
        return self._heard(found, now_s, wall_s)

    def _patience_s(self) -> float:
        if self._has_answered:
            return max(2.0, min(POLL_S, self._every_s))
        return max(10.0, min(START_S, 20 * self._every_s))

    def _line(self) -> bytes | None:
        """Return the answer once it is whole, nothing where the child is gone, None while more may come."""
        stream = self._child.stdout if self._child is not None else None
        while True:
            try:
                block = os.read(_fd(stream), 65_536)
            except BlockingIOError:
                return None
            if not block or len(self._said) > MOST_BYTES:
                return b""
            self._said += block
            if self._said.endswith(b"\n"):
                line = bytes(self._said)
                self._said.clear()
                return line

    def _heard(self, answer: "_Answer", now_s: float, wall_s: float) -> News:
        asked_s = self._asked_s if self._asked_s is not None else now_s
        self._asked_s, self._next_s, self._heard_s = None, asked_s + self._every_s, now_s
        self._has_answered, self._is_told = True, False
        self.fault, self._retry_s = None, FIRST_RETRY_S
        self.driver, self.nameless = answer.driver, answer.nameless
        found = [_at(one, wall_s) for one in answer.found]
        there = {one.gpu.gpu for one in found}
        for gpu in self.gpus.values():
            if gpu.gpu not in there:
                index = -1 if gpu.device_index is None else gpu.device_index
                found.append(self._without(gpu, wall_s, answer.nameless.get(index, GpuState.ABSENT)))
        found = [self._with_past(one) for one in found]
        self.gpus = {one.gpu.gpu: one.gpu for one in found}
        self._look_afresh(any(one.gpu.state != GpuState.OK for one in found), now_s)
        return News(tuple(found), answer.notes)

    def _look_afresh(self, is_ill: bool, now_s: float) -> None:
        """Let a new process look at GPUs that fail, ever more seldom."""
        if not is_ill:
            self._fresh_s, self._fresh_at_s = FRESH_S, math.inf
        elif self._fresh_at_s == math.inf:
            self._fresh_at_s = now_s + self._fresh_s
        elif now_s >= self._fresh_at_s:
            self._end()
            self._fresh_s, self._fresh_at_s = min(2 * self._fresh_s, LONGEST_FRESH_S), math.inf

    def _with_past(self, one: Found) -> Found:
        """Keep the name and the time that a GPU had, where it does not answer now."""
        old = self.gpus.get(one.gpu.gpu)
        if old is None or one.gpu.state == GpuState.OK:
            return one
        gpu = one.gpu
        return one._replace(
            gpu=gpu._replace(
                name=gpu.name or old.name,
                memory_total_mib=gpu.memory_total_mib or old.memory_total_mib,
                seen_s=old.seen_s,
            )
        )

    def _without(self, gpu: Gpu, wall_s: float, state: GpuState) -> Found:
        sample = GpuSample(wall_s, gpu.gpu, None, None, gpu.memory_total_mib, None, None, None, state)
        return Found(gpu._replace(state=state), sample, None)

    def _blind(self, now_s: float, wall_s: float, state: GpuState) -> News:
        """Say once that nothing is known any more: a number that is old must not be taken for a new one."""
        if self._is_told:
            return News()
        self._is_told = True
        found = tuple(self._without(gpu, wall_s, state) for gpu in self.gpus.values())
        self.gpus = {one.gpu.gpu: one.gpu for one in found}
        return News(found)

    def _failed(self, fault: DriverFault, now_s: float) -> None:
        self.fault = fault
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._next_s = -math.inf

    def _end(self) -> None:
        """End the child without waiting; a look at it follows, so that it is no zombie for long."""
        child, self._child, self._asked_s = self._child, None, None
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        child.kill()
        self._stuck = child
        self.is_stuck()


def _fd(stream: Any) -> int:
    if stream is None:
        raise OSError("no pipe")
    return int(stream.fileno())


class _Answer(NamedTuple):
    """What the child said; times are not set yet."""

    driver: str | None
    found: tuple[Found, ...]
    nameless: Mapping[int, GpuState]
    """By index, the state of GPUs that could not be asked who they are: those that are missing otherwise."""
    notes: tuple[tuple[str, int], ...]


def _told(line: bytes) -> tuple[DriverFault | None, _Answer | None]:
    """Return the fault that a child tells of, or its answer; neither for what is no answer of this kvlogd's child."""
    try:
        told = json.loads(line)
        if told.get("fault") is not None:
            return DriverFault(told["fault"]), None
        driver = _text(told.get("driver"))
        found = tuple(_found(one, driver) for one in told["gpus"])
        nameless = {int(index): GpuState(state) for index, state in told["nameless"]}
        notes = tuple((str(field), int(error)) for field, error in told["notes"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None, None
    return (None, _Answer(driver, found, nameless, notes)) if found or nameless else (DriverFault.NO_GPU, None)


def _at(one: Found, wall_s: float) -> Found:
    return one._replace(gpu=one.gpu._replace(seen_s=wall_s), sample=one.sample._replace(ts_s=wall_s))


def _found(one: Mapping[str, Any], driver: str | None) -> Found:
    state = GpuState(one["state"])
    memory = {name: _scaled(one.get(name), 1 / MIB) for name in ("used", "total", "reserved", "free")}
    sample = GpuSample(
        0.0,
        str(one["uuid"]),
        _scaled(one.get("util"), 0.01),
        memory["used"],
        memory["total"],
        _scaled(one.get("temperature")),
        _scaled(one.get("power"), 0.001),
        _scaled(one.get("sm_clock")),
        state,
        memory["reserved"],
        memory["free"],
        _scaled(one.get("memory_util"), 0.01),
        _scaled(one.get("memory_clock")),
        _scaled(one.get("power_limit"), 0.001),
        _whole(one.get("limit_reasons")),
        _whole(one.get("ecc_corrected")),
        _whole(one.get("ecc_uncorrected")),
        _whole(one.get("xid")),
    )
    mig = one.get("mig")
    gpu = Gpu(
        sample.gpu,
        _whole(one.get("index")),
        _text(one.get("name")),
        sample.memory_total_mib,
        driver,
        mig if isinstance(mig, bool) else None,
        state,
        0.0,
    )
    return Found(gpu, sample, _held(one.get("processes")))


def _held(processes: object) -> tuple[Held, ...] | None:
    if not isinstance(processes, list):
        return None
    return tuple(Held(int(pid), _scaled(size, 1 / MIB)) for pid, size in processes)


def _scaled(value: object, by: float = 1.0) -> float | None:
    return value * by if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
