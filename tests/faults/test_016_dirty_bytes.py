"""16. Bytes that no log should hold: no exception, the records among them are read, nothing else is kept."""

from pathlib import Path

import pytest

from tests.command import SAMPLES, replay, sql
from tests.logs import Server

DIRT = {
    "invalid UTF-8": b"\xff\xfe\x80 \xc3( (APIServer pid=1) \xf0\x28\n",
    "CRLF": b"plain text\r\n\r\n",
    "ANSI": b"\x1b[31mred\x1b[0m \x1b[2K\x1b]0;title\x07\n",
    "progress bar": b"Loading: 10%|#   |\rLoading: 50%|##  |\rLoading: 100%|####|\n",
    "NUL": b"\0" * 512 + b"\n",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf\n".encode(),
    "UTF-16": "(APIServer pid=1) INFO".encode("utf-16") + b"\n",
    "parentheses": b"(" * 50_000 + b" " * 50_000 + b"\n",
    "deep JSON": b'{"a":' * 20_000 + b"\n",
    "big numbers": b'{"__REALTIME_TIMESTAMP": "' + b"9" * 5000 + b'", "MESSAGE": "x"}\n',
    "strange stamps": b"(APIServer pid=4319) INFO 02-30 25:61:61 [loggers.py:1] Engine 000: Avg prompt throughput: 1\n",
}


def server() -> Server:
    made = Server(seed=16)
    made.start()
    made.busy(60, 5, 0.2)
    return made


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Return the records of the log without any dirt."""
    return records(tmp_path_factory.mktemp("clean"), server().text())


def records(folder: Path, data: bytes) -> list[dict[str, str]]:
    log, db = folder / "vllm.log", folder / "s.duckdb"
    log.write_bytes(data)
    told = replay(log, "--db", db)
    assert told.err == ""
    assert told.alerts == []
    return sql(db, SAMPLES)


@pytest.mark.parametrize("dirt", DIRT.values(), ids=DIRT)
def test_records_among_dirt_are_read(tmp_path: Path, dirt: bytes, clean: list[dict[str, str]]) -> None:
    lines = server().text().splitlines(keepends=True)
    assert records(tmp_path, b"".join(line + (dirt if i % 11 == 3 else b"") for i, line in enumerate(lines))) == clean


def test_all_dirt_at_once_with_the_line_ends_of_windows(tmp_path: Path, clean: list[dict[str, str]]) -> None:
    lines = server().text().replace(b"\n", b"\r\n").splitlines(keepends=True)
    dirt = list(DIRT.values())
    assert records(tmp_path, b"".join(line + dirt[i % len(dirt)] for i, line in enumerate(lines))) == clean
