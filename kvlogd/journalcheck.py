"""Looks at the journal of one unit as `kvlogd doctor` does: can its entries be read, and are vLLM's records among them.

Asks journalctl for the last entries only, within seconds, keeps them in memory and never on a disk, and hands them to
`logcheck` as what they are: a log in journald's envelope.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlogd.checkup import Item, Mark
from kvlogd.journal import FIELDS
from kvlogd.logcheck import Looked, judged
from kvlogd.rules import Rule
from kvlogd.source import shown

MOST_ENTRIES = 5000
ANSWER_S = 10.0


def look(
    name: str,
    unit: str,
    rules: Sequence[Rule],
    zone: tzinfo,
    wall_s: float,
    *,
    program: str = "journalctl",
    directory: Path | None = None,
) -> Looked:
    """Return how a unit's journal fares; `directory` is for journals of other machines."""
    link = f"{name}: journal"
    # without --all an entry of more than 4 KiB is left out: no stats line is so long, and memory stays small
    command = [
        program, "--quiet", "--no-pager", "--output=json", f"--output-fields={','.join(FIELDS)}", f"--unit={unit}",
        f"--lines={MOST_ENTRIES}", *([] if directory is None else [f"--directory={directory}"]),
    ]  # fmt: skip
    with _in_memory(name) as entries:
        fault = _fill(command, entries)
        if fault is None and not entries.stat().st_size:
            fault = f"no entry of {shown(unit)}", "check the unit's name, and that you are in the group systemd-journal"
        if fault is not None:
            return Looked([Item(link, Mark.FAIL, *fault)], [])
        within = f"{MOST_ENTRIES:,} entries"
        looked = judged(name, entries, rules, zone, wall_s, last_bytes=None, within=within, where=shown(unit))
    return Looked([Item(link, Mark.OK, f"entries of {shown(unit)} can be read"), *looked.items], looked.verdict)


@contextmanager
def _in_memory(name: str) -> Iterator[Path]:
    """Yield a path of this name that leads to an empty file which is on no disk."""
    fd = os.memfd_create("journal")
    try:
        with TemporaryDirectory(prefix="kvlogd-") as folder:
            path = Path(folder) / name
            path.symlink_to(f"/proc/self/fd/{fd}")
            yield path
    finally:
        os.close(fd)


def _fill(command: Sequence[str], entries: Path) -> tuple[str, str] | None:
    """Write what journalctl shows; return what is wrong with it, and the mend."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        with entries.open("wb") as out:
            run = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=env, check=False,
                timeout=ANSWER_S,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"journalctl does not answer within {ANSWER_S:.0f} s", "see `systemctl status systemd-journald`"
    except (OSError, ValueError):
        return "journalctl cannot be started", "install systemd, or give the log as files"
    if b"permission" in run.stderr.lower():
        return "the journal may not be read by you", "run this as root, or as a member of the group systemd-journal"
    if run.returncode:
        return f"journalctl ends with status {run.returncode}", "see journalctl --verify"
    return None
