"""Read what stands beside a log: `nvidia-smi --query-gpu=… --format=csv` and a CSV `ts,rss_mib` of resident memory.

Promises: one pass, flat memory, no row that can stop the others; all that is wrong with a file is one complaint, and it
quotes nothing of the file, which may be a log given by mistake. Does not promise: an order of time beyond that of the
file, or columns whose meaning it would have to guess.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple, TypeVar

from kvlogd.errors import ConfigError
from kvlogd.reading import GpuSample, HostSample

Complain = Callable[[ConfigError], None]
"""Gets the one error of a file, after its last row."""

TIME, INDEX, UUID, SOURCE = "timestamp", "index", "uuid", "source"

UNITS = {
    "util": "%",
    "memory_used_mib": "MiB",
    "memory_total_mib": "MiB",
    "temperature_c": "C",
    "power_w": "W",
    "sm_clock_mhz": "MHz",
    "memory_reserved_mib": "MiB",
    "rss_mib": "MiB",
    "limit_mib": "MiB",
}
UNKNOWN = {"", "n/a", "not supported"}
LONGEST_LINE = 4096  # characters; a row has some 200, and a binary file may have no newline at all

COLUMN = re.compile(r"([\w.]+)(?: \[([^\]]+)\])?", re.ASCII)
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?: ?([A-Za-z%]+))?", re.ASCII)
EPOCH = re.compile(r"\d{9,11}(\.\d+)?", re.ASCII)
GPU_INDEX = re.compile(r"\d{1,4}", re.ASCII)
GPU_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F/-]{8,80}", re.ASCII)


class Layout(NamedTuple):
    """What a kind of file must look like: the fields its columns give, which of them it needs, and how to write it."""

    columns: Mapping[str, str]
    needed: tuple[tuple[str, ...], ...]
    """Of each group, one column at least."""
    mend: str


GPU_LAYOUT = Layout(
    columns={
        "timestamp": TIME,
        "index": INDEX,
        "uuid": UUID,
        "gpu_uuid": UUID,
        "utilization.gpu": "util",
        "memory.used": "memory_used_mib",
        "memory.total": "memory_total_mib",
        "memory.reserved": "memory_reserved_mib",
        "temperature.gpu": "temperature_c",
        "power.draw": "power_w",
        "power.draw.instant": "power_w",
        "power.draw.average": "power_w",
        "clocks.sm": "sm_clock_mhz",
        "clocks.current.sm": "sm_clock_mhz",
    },
    needed=((TIME,), (INDEX, UUID)),
    mend="write it with `nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,memory.total,"
    "temperature.gpu,power.draw,clocks.sm --format=csv`, without noheader",
)
HOST_LAYOUT = Layout(
    columns={"ts": TIME, "timestamp": TIME, "source": SOURCE, "rss_mib": "rss_mib", "limit_mib": "limit_mib"},
    needed=((TIME,), ("rss_mib",)),
    mend="begin it with the line `ts,rss_mib` and go on with rows like `2026-11-29T14:25:47,6152.6`",
)

Sample = TypeVar("Sample")
Fields = Mapping[str, str]


def read_gpu(path: Path, zone: tzinfo, complain: Complain) -> Iterator[GpuSample]:
    """Yield the samples of a file that nvidia-smi wrote; its stamps are in `zone`. Complains once at most."""
    faults = _Faults(str(path), GPU_LAYOUT.mend)
    return _samples(_lines(path, faults), _Table(GPU_LAYOUT, zone), _gpu_sample, faults, complain)


def read_host(path: Path, zone: tzinfo, complain: Complain) -> Iterator[HostSample]:
    """Yield the samples of a `ts,rss_mib` file; stamps without an offset are in `zone`. Complains once at most."""
    faults = _Faults(str(path), HOST_LAYOUT.mend)
    return _samples(_lines(path, faults), _Table(HOST_LAYOUT, zone), _host_sample, faults, complain)


def gpu_samples(lines: Iterable[str], name: str, zone: tzinfo, complain: Complain) -> Iterator[GpuSample]:
    """Yield what the lines of nvidia-smi's CSV say. `name` is what a complaint calls the file."""
    return _samples(lines, _Table(GPU_LAYOUT, zone), _gpu_sample, _Faults(name, GPU_LAYOUT.mend), complain)


def host_samples(lines: Iterable[str], name: str, zone: tzinfo, complain: Complain) -> Iterator[HostSample]:
    """Yield what the lines of a `ts,rss_mib` CSV say. `name` is what a complaint calls the file."""
    return _samples(lines, _Table(HOST_LAYOUT, zone), _host_sample, _Faults(name, HOST_LAYOUT.mend), complain)


@dataclass
class _Faults:
    """What was wrong with a file: the first fault in full, the others as a number."""

    name: str
    mend: str
    first: str = ""
    where: str = ""
    count: int = 0

    def add(self, fault: str, line: int | None = None) -> None:
        if not self.count:
            self.first, self.where = fault, self.name if line is None else f"{self.name}:{line}"
        self.count += 1

    def error(self) -> ConfigError:
        more = f" (rows that cannot be read: {self.count})" if self.count > 1 else ""
        return ConfigError(self.first + more, where=self.where, mend=self.mend)


class _Table:
    """Tells header from row, and what stands in a row's columns, line after line of one file."""

    def __init__(self, layout: Layout, zone: tzinfo) -> None:
        self.layout = layout
        self.zone = zone
        self.header: list[str] = []
        self.last_s: float | None = None

    def row(self, line: str) -> tuple[float, Fields] | None:
        """Return a row's time and its known fields, None for a blank line or a header. Raises ValueError."""
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if cells == [""]:
            return None
        names = [COLUMN.fullmatch(cell.lower()) for cell in cells]
        if any(name and name[1] in self.layout.columns for name in names):
            self.header = self._read_header(cells)
            return None
        fields = self._fields(cells)
        self.last_s = _time_s(fields[TIME], self.zone, self.last_s)
        return self.last_s, fields

    def _read_header(self, cells: list[str]) -> list[str]:
        self.header = []
        found = [COLUMN.fullmatch(cell) for cell in cells]
        header = [self.layout.columns.get(name[1].lower(), "") if name else "" for name in found]
        for name, field in zip(found, header, strict=True):
            if name and name[2] and field in UNITS and name[2] != UNITS[field]:
                raise ValueError(f"the column {name[1]} must be in {UNITS[field]}")
        for group in self.layout.needed:
            if not set(group) & set(header):
                raise ValueError(f"there is no column {' or '.join(group)}")
        return header

    def _fields(self, cells: list[str]) -> Fields:
        if not self.header:
            raise ValueError("no header line tells which column is what")
        if len(cells) != len(self.header):
            raise ValueError(f"{len(cells)} columns, where the header names {len(self.header)}")
        # The first of two columns for one field wins, so that `power.draw` goes before `power.draw.instant`.
        return {field: cell for field, cell in reversed(list(zip(self.header, cells, strict=True))) if field}


def _samples(
    lines: Iterable[str],
    table: _Table,
    make: Callable[[float, Fields], Sample],
    faults: _Faults,
    complain: Complain,
) -> Iterator[Sample]:
    empty = True
    for number, line in enumerate(lines, 1):
        try:
            row = table.row(line)
            if row is None:
                continue
            sample = make(*row)
        except ValueError as fault:
            faults.add(str(fault), number)
            continue
        empty = False
        yield sample
    if empty and not faults.count:
        faults.add("no samples in it")
    if faults.count:
        complain(faults.error())


def _lines(path: Path, faults: _Faults) -> Iterator[str]:
    try:
        if path.exists() and not path.is_file():
            faults.add("not a regular file")  # opening a FIFO would wait for its writer
            return
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from iter(lambda: file.readline(LONGEST_LINE), "")
    except OSError as error:
        faults.add(f"cannot be read: {error.strerror}")


def _gpu_sample(ts_s: float, fields: Fields) -> GpuSample:
    util = _number(fields, "util")
    if util is not None and util > 100:
        raise ValueError("util is more than 100 %")
    return GpuSample(
        ts_s=ts_s,
        gpu=_gpu(fields),
        util=None if util is None else util / 100,
        memory_used_mib=_number(fields, "memory_used_mib"),
        memory_total_mib=_number(fields, "memory_total_mib"),
        temperature_c=_number(fields, "temperature_c"),
        power_w=_number(fields, "power_w"),
        sm_clock_mhz=_number(fields, "sm_clock_mhz"),
        memory_reserved_mib=_number(fields, "memory_reserved_mib"),
    )


def _gpu(fields: Fields) -> str:
    for field, pattern in ((INDEX, GPU_INDEX), (UUID, GPU_UUID)):
        if pattern.fullmatch(fields.get(field, "")):
            return fields[field]
    raise ValueError("neither index nor uuid names a GPU")


def _host_sample(ts_s: float, fields: Fields) -> HostSample:
    rss_mib = _number(fields, "rss_mib")
    if rss_mib is None:
        raise ValueError("rss_mib is unknown")
    return HostSample(ts_s, fields.get(SOURCE) or None, rss_mib, _number(fields, "limit_mib"))


def _number(fields: Fields, field: str) -> float | None:
    """Return the number of a field; None where there is no such column, or `[N/A]`, `[Not Supported]` and the like."""
    text = fields.get(field, "")
    if text.startswith("[") or text.lower() in UNKNOWN:
        return None
    found = NUMBER.fullmatch(text)
    if not found or found[2] not in (None, UNITS[field]):
        raise ValueError(f"{field} is no number in {UNITS[field]}")
    number = float(found[1])
    if not math.isfinite(number) or (number < 0 and field != "temperature_c"):
        raise ValueError(f"{field} is out of range")
    return number


def _time_s(text: str, zone: tzinfo, last_s: float | None) -> float:
    """Return a stamp as Unix seconds. In the hour that a clock change repeats, the one that does not go back."""
    if EPOCH.fullmatch(text):
        return float(text)
    try:
        stamp = datetime.fromisoformat(text.replace("/", "-"))
    except ValueError:
        raise ValueError("the time is none like 2026-11-29T14:25:47 or 2026/11/29 14:25:47.123") from None
    if stamp.tzinfo is not None:
        return stamp.timestamp()
    first_s, second_s = (stamp.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    # In the hour that a clock change skips, the second reading lies before the first.
    return second_s if last_s is not None and first_s < last_s <= second_s else first_s
