"""What is read beside the logs: GPUs, the processes on them, and the memory of servers. Pure.

The fields stand in the order of the tables' columns. Unknown is None, never 0; MiB are 2**20 bytes.
"""

from enum import StrEnum
from typing import NamedTuple

GPU_SOURCE, HOST_SOURCE = "@gpu", "@host"
"""What alerts about GPUs and hosts have for a source: no source of a config can be called so."""
HOST = "host"
"""What messages call the memory of a server whose log is not named."""


class GpuState(StrEnum):
    """Whether a GPU can be read."""

    OK = "ok"
    LOST = "lost"
    """It fell off the bus."""
    RESET_REQUIRED = "reset required"
    NO_PERMISSION = "no permission"
    FAILING = "failing"
    """The driver gives an error that says no more."""
    ABSENT = "absent"
    """It was there, and the driver does not list it any more."""
    UNKNOWN = "unknown"
    """Nothing was heard of it for three intervals."""
    RELEASED = "released"
    """kvlogd let go of it because an operator asked."""


BLIND = frozenset({GpuState.UNKNOWN, GpuState.RELEASED})
"""States that say nothing of the GPU itself."""


class GpuSample(NamedTuple):
    """One GPU at one moment."""

    ts_s: float
    gpu: str
    """Its UUID; in what nvidia-smi wrote, its index where the file gives no UUID."""
    util: float | None
    """0..1"""
    memory_used_mib: float | None
    """Without what the driver keeps for itself, where that is told apart."""
    memory_total_mib: float | None
    temperature_c: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    state: str = GpuState.OK
    memory_reserved_mib: float | None = None
    memory_free_mib: float | None = None
    memory_util: float | None = None
    memory_clock_mhz: float | None = None
    power_limit_w: float | None = None
    limit_reasons: int | None = None
    """NVML's bits for what holds the clocks down."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid: int | None = None
    """The last Xid since the reading before."""
    engines_mib: float | None = None
    """Held by processes of engines whose logs are followed."""
    others_mib: float | None = None
    """Held by all other processes."""
    processes: int | None = None
    other_pid: int | None = None
    """Which of the others holds most."""


class HostSample(NamedTuple):
    """The memory of the processes of one server at one moment."""

    ts_s: float
    source: str | None
    """The log that these processes write; None where a file has no such column."""
    rss_mib: float
    limit_mib: float | None = None
    oom_kills: int | None = None
    """Processes of its cgroup that the kernel has killed for want of memory, since the cgroup was made."""
    processes: int | None = None
    pid: int | None = None
    """The process at the top of the tree."""


class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU."""

    ts_s: float
    gpu: str
    pid: int
    name: str | None
    """Of its executable, without a path and without arguments."""
    memory_mib: float | None
    source: str | None
    """The log that it writes, where it is an engine's."""
    engine_id: int | None


class Gpu(NamedTuple):
    """One GPU of this host."""

    gpu: str
    device_index: int | None
    name: str | None
    memory_total_mib: float | None
    driver: str | None
    mig: bool | None
    state: str
    seen_s: float
    """When it was read last."""


class DriverFault(StrEnum):
    """Why no GPU can be read at all."""

    NO_BINDINGS = "no bindings"
    NO_LIBRARY = "no library"
    NOT_LOADED = "not loaded"
    MISMATCH = "version mismatch"
    NO_PERMISSION = "no permission"
    NO_GPU = "no gpu"
    FAILED = "failed"
    """The driver gives an error that says no more: most often its device nodes are missing or forbidden."""
    HUNG = "hung"
    """A call does not come back."""
    ENDED = "ended"
    """The child that reads ended by itself."""
