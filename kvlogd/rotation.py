"""What logrotate is told to do with a log, as far as it bears on reading it: from its own config files.

Does not promise to understand all of logrotate: only which blocks name the log, and the four words that matter.
"""

import contextlib
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CONFIGS = (Path("/etc/logrotate.conf"), Path("/etc/logrotate.d"))
_BLOCK = re.compile(r"([^{}]*)\{([^{}]*)\}")
_SCRIPT = re.compile(r"(?ms)^\s*(?:prerotate|postrotate|firstaction|lastaction|preremove)\b.*?^\s*endscript\b")
_MOST_BYTES = 1 << 20


class Rotating(NamedTuple):
    """How a log is rotated."""

    config: Path
    copytruncate: bool
    packs_at_once: bool
    """`compress` without `delaycompress`."""


def rotating(log: Path, configs: tuple[Path, ...] = CONFIGS) -> Rotating | None:
    """Return how a log is rotated; None where no config that this user may read names it."""
    for config in _files(configs):
        with contextlib.suppress(OSError):
            text = config.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
            text = _SCRIPT.sub("", re.sub(r"(?m)#.*$", "", text))
            for names, body in _BLOCK.findall(text):
                # what stands before the first path of a file are settings, which look like no path
                patterns = [word.strip("\"'") for word in names.split() if word.strip("\"'").startswith("/")]
                if any(fnmatch.fnmatchcase(str(log), pattern) for pattern in patterns):
                    words = set(body.split())
                    packs = "compress" in words and "delaycompress" not in words
                    return Rotating(config, "copytruncate" in words, packs)
    return None


def _files(configs: tuple[Path, ...]) -> Iterator[Path]:
    for config in configs:
        if config.is_dir():
            with contextlib.suppress(OSError):
                yield from sorted(path for path in config.iterdir() if path.is_file())
        elif config.is_file():
            yield config
