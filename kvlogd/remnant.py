"""What is left of a line that docker or a kubelet wrote in parts, where reading begins between two of them. Pure.

Its begin was read before a restart and is not known any more. Promises that its rest is not taken for a line.
Does not promise that for a line whose parts stand in two files, or with a line of the other stream between them.
"""

import json
import re

from kvlogd.envelope import JOURNAL_BREAKS

MOST_BYTES = 128 * 1024
"""Before the place; docker cuts after 16 KiB of text, of which JSON makes six times as much at most."""
_CRI = re.compile(rb"\d[^ ]{1,60} (stdout|stderr) P(?::[^ ]{1,60})? ")


def cut_after(read: bytes) -> bytes | None:
    """Return a line that says that the rest of the last line in `read` must be dropped; None where that is whole."""
    line = read.removesuffix(b"\n").rpartition(b"\n")[2]
    stream = _open_stream(line)
    if stream is None:
        return None
    # as the journal tells of a line that it cut
    return json.dumps({"MESSAGE": "", "_STREAM_ID": stream, "_LINE_BREAK": JOURNAL_BREAKS[0]}).encode() + b"\n"


def _open_stream(line: bytes) -> str | None:
    """Return the stream of a part of a line; None for what is none."""
    if not line.startswith(b'{"log":'):
        part = _CRI.match(line)
        return None if part is None else part[1].decode()
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    log, stream = record.get("log"), record.get("stream")
    is_part = isinstance(log, str) and not log.endswith("\n")
    return stream if is_part and isinstance(stream, str) else None
