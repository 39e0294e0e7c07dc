"""Looks at the GPUs for `kvlogd doctor`: what the daemon says of them, and what the driver itself answers now.

The driver is asked in a child, as the daemon does it: one that hangs costs `ANSWER_S` and no more, and NVML is never
loaded here. It is not asked while the daemon has let go of the GPUs: somebody wants them to be closed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvlogd.checkup import Item, Mark
from kvlogd.clock import Clock
from kvlogd.config import Enabled
from kvlogd.gpus import FAREWELL_S, MENDS, Gpus
from kvlogd.quantity import count_text, duration_text
from kvlogd.reading import DriverFault, GpuState
from kvlogd.status import Status

ANSWER_S = 15.0
"""How long the driver may take: tenths of a second where it keeps the GPUs awake, else it wakes one after the other."""
NVIDIA = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))


class Answer(NamedTuple):
    """What the driver said: its GPUs, or what is wrong; neither where it did not answer in time."""

    states: tuple[tuple[str, str], ...] = ()
    """Each GPU by its number, or by its UUID where it has none, and its state."""
    driver: str | None = None
    fault: DriverFault | None = None


def items(enabled: Enabled, status: Status | None, clock: Clock) -> Iterator[Item]:
    """Tell how the GPUs are by the daemon's word, where one runs, and by the driver's."""
    if status is not None:
        yield from devices(status, has_driver=_has_driver())
    if enabled is Enabled.NO:
        yield Item("GPU", Mark.OK, "not asked, as the config says")
    elif status is not None and any(gpu.state == GpuState.RELEASED for gpu in status.gpus):
        yield Item("GPU", Mark.OK, "not asked: the daemon has let go of them; `kvlogd gpu resume` takes them up again")
    else:
        is_told = status is not None and bool(status.gpus)
        yield from judged(asked(clock), enabled, has_driver=_has_driver(), is_told=is_told)


def devices(status: Status, *, has_driver: bool) -> Iterator[Item]:
    """Tell of GPUs that the daemon cannot read, one by one, and why it reads none although there is a driver."""
    for gpu in status.gpus:
        if gpu.state not in (GpuState.OK, GpuState.RELEASED):
            yield _ill(gpu.gpu if gpu.device_index is None else str(gpu.device_index), gpu.state)
    if status.gpus_note and has_driver:
        yield Item("GPU", Mark.WARN, f"the daemon says: {status.gpus_note}", "journalctl -u kvlogd says more")


def asked(clock: Clock) -> Answer:
    """Ask the driver once, in a child that is let go of at the end."""
    gpus, begun_s = Gpus(2 * ANSWER_S), clock.monotonic_s()
    try:
        while (left_s := begun_s + ANSWER_S - clock.monotonic_s()) > 0:
            found = gpus.poll(clock.monotonic_s(), clock.wall_s()).found
            if found or gpus.nameless or gpus.fault is not None:
                numbered = [(str(index), state.value) for index, state in gpus.nameless.items()]
                named = [
                    (one.gpu.gpu if one.gpu.device_index is None else str(one.gpu.device_index), one.gpu.state)
                    for one in found
                ]
                return Answer((*named, *numbered), gpus.driver, gpus.fault)
            gpus.wait(left_s)
    finally:
        gpus.close(FAREWELL_S)
    return Answer()


def judged(answer: Answer, enabled: Enabled, *, has_driver: bool, is_told: bool) -> Iterator[Item]:
    """Tell what the driver answered; of a GPU that is ill only where the daemon did not tell of it."""
    bad = Mark.FAIL if enabled is Enabled.YES else Mark.WARN
    if answer.fault is DriverFault.NO_LIBRARY and not has_driver:
        mend = "load the driver, or write gpu: {enabled: auto}" if enabled is Enabled.YES else ""
        yield Item("GPU", Mark.FAIL if mend else Mark.OK, "no NVIDIA driver is loaded", mend)
    elif answer.fault is not None:
        yield Item("GPU", bad, *MENDS[answer.fault])
    elif not answer.states:
        what = f"the NVIDIA driver did not answer within {duration_text(ANSWER_S)}"
        yield Item("GPU", bad, what, "try nvidia-smi: if it hangs too, see dmesg for Xid")
    else:
        well = sum(state == GpuState.OK for _, state in answer.states)
        what = f"{count_text(well, 'GPU')} can be read" + (f", driver {answer.driver}" if answer.driver else "")
        yield Item("GPU", Mark.OK if well else bad, what, "" if well else MENDS[DriverFault.FAILED][1])
        if not is_told:
            yield from (_ill(number, state) for number, state in answer.states if state != GpuState.OK)


def _ill(number: str, state: str) -> Item:
    return Item(f"GPU {number}", Mark.FAIL, f"is {state}", "nvidia-smi -L, and dmesg | grep -i xid")


def _has_driver() -> bool:
    return any(path.exists() for path in NVIDIA)
