"""Whether the service's user, who owns nothing and is in two groups, can get at a file.

Reads the mode bits; where an access list says more, the answer is yes: better silent than wrong.
"""

import grp
import os
import stat
from pathlib import Path

GROUPS = ("adm", "systemd-journal")
"""The groups that the unit gives the service's user."""


def groups() -> frozenset[int]:
    """Return the ids of these groups on this host."""
    known = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    return frozenset(known[name] for name in GROUPS if name in known)


def closed_at(path: Path, ids: frozenset[int]) -> Path | None:
    """Return the first folder on the way that such a user cannot pass, or the file that they cannot read."""
    return next((place for place in (*reversed(path.parents), path) if not _opens(place, ids)), None)


def _opens(path: Path, ids: frozenset[int]) -> bool:
    status = path.stat()
    bit = stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
    if status.st_mode & bit or (status.st_gid in ids and status.st_mode & (bit << 3)):
        return True
    return "system.posix_acl_access" in os.listxattr(path)
