"""Reads the GPUs through NVML, in a process of its own: a driver that hangs or crashes takes nobody with it.

Run as `python -m kvlogd.nvml`. Each line on standard input asks for one reading, and each is answered by one JSON line:
{"fault", "driver", "gpus": [...], "nameless": [[index, state], ...], "notes": [[field, error], ...]}. Ends with its
parent, and after any fault, because only a new process meets a new driver.
Promises: each call is safe by itself; what is not supported is null, never 0, and noted once; one GPU that fails does
not hide the others. Nothing else in kvlogd may import pynvml.
"""

import ctypes
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from kvlogd.reading import DriverFault, GpuState

try:
    import pynvml
except ImportError:
    pynvml = None

Values = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_LONGEST_NAME = 64
_MOST_EVENTS = 64
_LOST, _RESET_REQUIRED, _NO_PERMISSION = 15, 16, 4
_UNSUPPORTED = {3, 13, 25}
"""Not supported, function not found, argument version mismatch: it will not be otherwise in this process."""
_FAULTS = {
    4: DriverFault.NO_PERMISSION,
    9: DriverFault.NOT_LOADED,
    12: DriverFault.NO_LIBRARY,
    13: DriverFault.MISMATCH,
    18: DriverFault.MISMATCH,
}


class _GoneError(Exception):
    """A GPU that cannot be read at all now."""

    def __init__(self, state: GpuState) -> None:
        super().__init__()
        self.state = state


class Reader:
    """The GPUs of this host."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int]] = []
        """Fields that cannot be read, with NVML's error, since they were taken last."""
        self.nameless: list[tuple[int, GpuState]] = []
        """GPUs that could not be asked for their UUID yet: their index and state."""
        self._noted: set[str] = set()
        self._handles: dict[str, tuple[int, Any]] = {}
        """UUID -> index and handle."""
        self._events: Any = None

    def open(self) -> str | None:
        """Begin; return the driver's version. Raises NVMLError."""
        pynvml.nvmlInit()
        self._enumerate()
        self._events = self._safe("xid", pynvml.nvmlEventSetCreate)
        for _, handle in self._handles.values():
            self._register(handle)
        driver = self._safe("driver", pynvml.nvmlSystemGetDriverVersion)
        return driver if isinstance(driver, str) and len(driver) <= _LONGEST_NAME else None

    def read(self) -> list[Values]:
        """Return what each GPU says now. Raises NVMLError where the driver as a whole fails."""
        before = set(self._handles)
        self._enumerate()
        for uuid in self._handles.keys() - before:
            self._register(self._handles[uuid][1])
        xids = self._xids()
        return [
            {"uuid": uuid, "index": index, **self._gpu(handle), "xid": xids.get(uuid)}
            for uuid, (index, handle) in self._handles.items()
        ]

    def _enumerate(self) -> None:
        """Find the GPUs; one that cannot be asked for its UUID keeps the one it had."""
        found: dict[str, tuple[int, Any]] = {}
        failed: dict[int, GpuState] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found[pynvml.nvmlDeviceGetUUID(handle)] = index, handle
            except pynvml.NVMLError as error:
                failed[index] = _state_of(error.value)
            except UnicodeDecodeError:
                failed[index] = GpuState.FAILING
        for uuid, (index, handle) in self._handles.items():
            if index in failed and uuid not in found:
                found[uuid] = index, handle
                del failed[index]
        self.nameless = list(failed.items())
        self._handles = dict(sorted(found.items(), key=lambda one: one[1][0]))

    def _register(self, handle: Any) -> None:
        if self._events is not None:
            self._safe(
                "xid", pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events
            )

    def _xids(self) -> dict[str, int]:
        """Return the last Xid of each GPU that had one."""
        found: dict[str, int] = {}
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0) if self._events is not None else None
                if event is None:
                    break
                found[pynvml.nvmlDeviceGetUUID(event.device)] = int(event.eventData)
            except (pynvml.NVMLError, UnicodeDecodeError):
                break
        return found

    def _gpu(self, handle: Any) -> Values:
        try:
            values = self._values(handle)
        except _GoneError as gone:
            return {"state": gone.state}
        return {"state": GpuState.OK, **values}

    def _values(self, handle: Any) -> Values:
        memory = self._memory(handle)
        ask = self._safe
        util = ask("utilisation", pynvml.nvmlDeviceGetUtilizationRates, handle)
        mig = ask("mig", pynvml.nvmlDeviceGetMigMode, handle)
        name = ask("name", pynvml.nvmlDeviceGetName, handle)
        return {
            **memory,
            "name": "".join(filter(str.isprintable, name))[:_LONGEST_NAME] if isinstance(name, str) else None,
            "util": None if util is None else util.gpu,
            "memory_util": None if util is None else util.memory,
            "temperature": ask("temperature", _temperature, handle),
            "power": ask("power", pynvml.nvmlDeviceGetPowerUsage, handle),
            "power_limit": ask("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            "sm_clock": ask("sm clock", pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "memory_clock": ask("memory clock", pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            "limit_reasons": ask("clock limit reasons", _limit_reasons, handle),
            "ecc_corrected": ask("ecc", _ecc, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": ask("ecc", _ecc, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "mig": None if mig is None else bool(mig[0]),
            "processes": ask("processes", _processes, handle),
        }

    def _memory(self, handle: Any) -> Values:
        """Return the memory, what the driver keeps apart where it can tell; what this call says goes for the GPU."""
        version = getattr(pynvml, "nvmlMemory_v2", None)
        found = None if version is None else self._safe("memory v2", pynvml.nvmlDeviceGetMemoryInfo, handle, version)
        if found is not None:
            return {"total": found.total, "used": found.used, "free": found.free, "reserved": found.reserved}
        try:
            found = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value in _UNSUPPORTED:
                self._note("memory", error.value)
                return {}
            raise _GoneError(_state_of(error.value)) from error
        return {"total": found.total, "used": found.used, "free": found.free}

    def _safe(self, field: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call returns, None where it fails; raises _GoneError where the GPU is lost."""
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value in (_LOST, _RESET_REQUIRED):
                raise _GoneError(_state_of(error.value)) from error
            self._note(field, error.value)
        except (UnicodeDecodeError, AttributeError, TypeError):
            self._note(field, 0)
        return None

    def _note(self, field: str, error: int) -> None:
        if field not in self._noted:
            self._noted.add(field)
            self.notes.append((field, error))


def _state_of(error: int) -> GpuState:
    states = {
        _LOST: GpuState.LOST,
        _RESET_REQUIRED: GpuState.RESET_REQUIRED,
        _NO_PERMISSION: GpuState.NO_PERMISSION,
    }
    return states.get(error, GpuState.FAILING)


def _temperature(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _limit_reasons(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (pynvml.NVMLError_FunctionNotFound, AttributeError):  # before 535 it had another name
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _ecc(handle: Any, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _processes(handle: Any) -> list[list[int | None]]:
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError_FunctionNotFound:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    return [[int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)] for one in found]


def main() -> None:
    """Answer until nobody asks any more, or the driver fails."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    reader, driver = Reader(), None
    is_open = False
    for _ in sys.stdin:
        if pynvml is None:
            _answer(fault=DriverFault.NO_BINDINGS)
            return
        try:
            if not is_open:
                driver, is_open = reader.open(), True
            gpus = reader.read()
        except pynvml.NVMLError as error:
            _answer(fault=_FAULTS.get(error.value, DriverFault.FAILED))
            return
        notes, reader.notes = reader.notes, []
        _answer(driver=driver, gpus=gpus, nameless=reader.nameless, notes=notes)


def _answer(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
