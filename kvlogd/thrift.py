"""Gives back memory that this process holds and does not use: for a daemon at rest, after its start and after upkeep.

What lives then lives long, so that the garbage collector need not look at it again before the next time.
What allocators keep free goes back to the system for good. Of libraries only the mapping goes: most of what was
mapped of DuckDB is code that opens a store, and each touch maps 64 KiB around it. That code stays in the page cache,
where the system may drop it sooner, and what is used again is mapped again from there within microseconds, without
reading the disk. So resident memory then counts the code that works at rest, and not that of the start.
Promises that nothing else changes, and to do nothing where the system has no such calls.
"""

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_DONTNEED = 4
_LEAST_KIB = 128
_SIZES = ("Rss:", "Anonymous:", "Swap:")
"""In the order in which the kernel tells them."""


class Mapping(NamedTuple):
    """A part of a library in this process."""

    begin: int
    end: int


def give_back() -> None:
    """Give back what is not used. Takes some 50 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # the C library of some small systems has none
        libc.malloc_trim(0)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        with Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as file:
            found = list(unchanged(file))
    except OSError:
        return
    for one in found:
        libc.madvise(one.begin, one.end - one.begin, _DONTNEED)


def unchanged(smaps: Iterable[str]) -> Iterator[Mapping]:
    """Yield the parts of libraries that nobody may write to and that are as they lie on the disk.

    A part that was written to before it was protected, as linking does, would lose that for ever: its written pages
    are anonymous or, where memory was short, in the swap.
    """
    part: Mapping | None = None
    sizes: dict[str, int] = {}
    for line in smaps:
        name, _, rest = line.replace("\t", " ").partition(" ")  # some kernels have tabs in lines of their own
        if not name.endswith(":"):
            part, sizes = _library(name, rest.split(maxsplit=4)), {}
        elif part is not None and name in _SIZES:
            sizes[name] = _kib(rest)
            written = sizes.get("Anonymous:"), sizes.get("Swap:")
            if name == "Swap:" and sizes.get("Rss:", 0) >= _LEAST_KIB and written == (0, 0):
                yield part


def _library(span: str, fields: list[str]) -> Mapping | None:
    if len(fields) < 5:  # of no file, or another kind of line
        return None
    path = fields[4].strip()
    if fields[0] not in ("r-xp", "r--p") or ".so" not in os.path.basename(path):  # noqa: PTH119
        return None
    begin, _, end = span.partition("-")
    return Mapping(int(begin, 16), int(end, 16))


def _kib(text: str) -> int:
    return int(text.split()[0])
