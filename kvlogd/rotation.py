"""What logrotate is told to do with a log, as far as it bears on reading it: from its own config files.

Does not promise to understand all of logrotate: only which blocks name the log, and the four words that matter.
"""

import contextlib
import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CONFIGS = (Path("/etc/logrotate.conf"), Path("/etc/logrotate.d"))
_SCRIPTS = {"prerotate", "postrotate", "firstaction", "lastaction", "preremove"}
_MOST_BYTES = 1 << 16


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
            for names, body in _blocks("\n".join(_directives(text))):
                # what stands before the first path of a file are settings, which look like no path
                patterns = [word.strip("\"'") for word in names.split() if word.strip("\"'").startswith("/")]
                if any(fnmatch.fnmatchcase(str(log), pattern) for pattern in patterns):
                    words = set(body.split())
                    packs = "compress" in words and "delaycompress" not in words
                    return Rotating(config, "copytruncate" in words, packs)
    return None


def _directives(text: str) -> Iterator[str]:
    """Yield the lines without comments and without the shell scripts between them."""
    in_script = False
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words and words[0] in _SCRIPTS:
            in_script = True
        elif not in_script:
            yield " ".join(words)
        elif words[:1] == ["endscript"]:
            in_script = False


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and in each pair of braces."""
    for part in text.split("}"):
        names, brace, body = part.partition("{")
        if brace:
            yield names, body


def _files(configs: tuple[Path, ...]) -> Iterator[Path]:
    for config in configs:
        if config.is_dir():
            with contextlib.suppress(OSError):
                yield from sorted(path for path in config.iterdir() if path.is_file())
        elif config.is_file():
            yield config
