"""The socket between the daemon and the commands: where it lies, and how a message looks on it.

A Unix stream socket; one request a connection. Each message is a JSON object on a line of its own:

    > {"v": 1, "kind": "sql", "store": "/var/lib/kvlogd/kvlogd.duckdb", "sql": "SELECT 1 AS a", "max_rows": 100000}
    < {"v": 1, "columns": ["a"], "types": ["INTEGER"]}
    < {"rows": [[1]]}
    < {"end": 1}

`status` is answered by {"v", "status"} and the end; `alerts` (with "all": true for those that are over) by {"v"}, some
{"items"} and the end; so is `silence`, which begins one ("rule", "scope", "for_s", "comment"), ends one ("end"), or
lists them; `snapshot` by {"v", "bytes"}, that many bytes, and the end; `gpu_release` (with "for_s") by
{"v", "released"} and the end. In place of any line an {"error"} may
stand, with `what`, `where` and `mend`, and then nothing follows. Who wants an answer no more closes the connection.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvlogd import systemd
from kvlogd.errors import KvlogdError

VERSION = 1
OTHER_STORE = "this daemon keeps another store"
MAX_REQUEST_BYTES = 2**20
RUN_FOLDER = Path("/run/kvlogd")
_NAME = "kvlogd.sock"
_LONGEST_ADDRESS = 100


class Kind(StrEnum):
    """What may be asked."""

    SQL = "sql"
    STATUS = "status"
    ALERTS = "alerts"
    SNAPSHOT = "snapshot"
    SILENCE = "silence"
    GPU_RELEASE = "gpu_release"


def place(store: Path, configured: Path | None, environment: Mapping[str, str]) -> Path:
    """Return where the daemon of a store listens: where the config says, else in its run folder, else beside the store.

    The run folder is the unit's, or /run/kvlogd where somebody has made it.
    """
    if configured is not None:
        return configured
    folder = systemd.runtime_folder(environment) or (RUN_FOLDER if RUN_FOLDER.is_dir() else store.absolute().parent)
    return folder / _NAME


def places(store: Path, configured: Path | None) -> list[Path]:
    """Return where a daemon of this store may listen; each says which store it serves."""
    return [configured] if configured is not None else [store.absolute().parent / _NAME, RUN_FOLDER / _NAME]


def line(message: Mapping[str, object]) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def message(sent: bytes) -> dict[str, Any]:
    """Return the message of a line; raises KvlogdError where it is none, or of another version."""
    try:
        told = json.loads(sent)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise KvlogdError("what came over the socket is no message of kvlogd")
    if told.get("v", VERSION) != VERSION:
        mend = "restart the daemon, so that both are of one version"
        raise KvlogdError(f"the other side speaks version {told['v']} of the protocol, not {VERSION}", mend=mend)
    return told


def failure(error: KvlogdError) -> bytes:
    """Return the line that tells an error."""
    return line({"v": VERSION, "error": {"what": error.what, "where": error.where, "mend": error.mend}})


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield a socket's address for bind and connect, also where its path is longer than an address may be."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
