"""The progress bar of long work: on a terminal only, on stderr, with rate and time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]


@contextmanager
def bar(what: str, unit: str = "B") -> Iterator[Advance | None]:
    """Yield a function to be told how much is done and in all, in bytes by default; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm  # nothing of it is needed off a terminal

    with tqdm(desc=what, unit=unit, unit_scale=unit == "B", leave=False, dynamic_ncols=True, delay=0.3) as shown:

        def advance(done: int, in_all: int) -> None:
            shown.total = in_all
            shown.update(done - shown.n)

        yield advance
