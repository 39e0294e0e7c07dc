"""Parse one plain log and print how many records it holds, as JSON: what `bench/replay.py` times as `parse only`."""

import json
import sys
from datetime import UTC
from pathlib import Path

from kvlogd.envelope import Envelope, Unwrapper, sniff
from kvlogd.model import Stats
from kvlogd.parse import Parser
from kvlogd.scan import Scanner
from kvlogd.source import chunks, expand
from kvlogd.stamp import Stamper


def main(path: str, year: int) -> None:
    """Feed the chunks of a file to the scanner and count what comes out."""
    scanner = Scanner(Parser(Stamper(year=year, zone=UTC, mtime_s=None)), Unwrapper())
    records = 0
    for chunk in chunks(expand([Path(path)]).files[0]):
        scanner.plain = scanner.plain or sniff(chunk.data[:65536]) is Envelope.PLAIN
        records += sum(isinstance(found, Stats) for found in scanner.feed(chunk.data))
    records += sum(isinstance(found, Stats) for found in scanner.finish())
    print(json.dumps({"stats": records}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
