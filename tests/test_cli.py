"""The commands as people meet them: exit statuses, one clear line for what is wrong, terminals, pipes, signals."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import Told, installed, kvlogd, replay
from tests.logs import CASES, Server, healthy_log

LEAK = CASES / "leak-at-constant-load.log.gz"
HEALTHY = CASES / "load-that-grows.log.gz"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# --- help and exit statuses


def test_the_command_alone_prints_help() -> None:
    told = installed()
    assert told.status == 0
    assert "replay" in told.out
    assert told.err == ""


@pytest.mark.parametrize(
    "command", [["replay"], ["sql"], ["check"], ["rules"], ["rules", "list"], ["rules", "show"]], ids=" ".join
)
def test_each_command_has_help(command: list[str]) -> None:
    told = kvlogd(*command, "--help")
    assert told.status == 0
    assert told.out.startswith(f"usage: kvlogd {' '.join(command)}")


def test_version() -> None:
    assert kvlogd("--version").out.startswith("kvlogd 0.")


@pytest.mark.parametrize(("log", "status"), [(LEAK, 1), (HEALTHY, 0)], ids=["leak", "healthy"])
def test_exit_status_tells_what_was_found(log: Path, status: int) -> None:
    told = installed("replay", "--year", "2026", "--timezone", "UTC", log)
    assert told.status == status
    assert told.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "--years", "2026"], ["--years"]),
        (["replay"], ["LOG"]),
        (["replay", "--year", "soon", "x.log"], ["--year", "soon"]),
        (["replay", "--year", "0", "x.log"], ["--year", "0"]),
        (["replay", "--year", "12026", "x.log"], ["--year", "12026"]),
        (["replay", "--timezone", "Mars/Olympus", "x.log"], ["Mars/Olympus"]),
        (["replay", "--timezone", "../../etc/passwd", "x.log"], ["etc/passwd"]),
        (["replay", "--timezone", "", "x.log"], ["zone"]),
        (["sql", "--format", "xml", "SELECT 1"], ["--format", "xml"]),
        (["nonsense"], ["nonsense"]),
        (["rules", "show", "kv-leek"], ["kv-leek", "kv-leak"]),
        (["check", "--config", "/nowhere/kvlogd.yaml"], ["/nowhere/kvlogd.yaml"]),
        (["sql", "--db", "/nowhere/s.duckdb", "SELECT 1"], ["/nowhere/s.duckdb"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], words: list[str]) -> None:
    told = kvlogd(*arguments)
    assert told.status == 2
    assert told.out == ""
    last = told.err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("kvlogd")
    assert all(word in last for word in words), last


# --- what cannot be read


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def missing(path: Path) -> Path:
    return path


UNREADABLE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (missing, "No such file"),
    "empty": (lambda path: put(path, b""), "empty"),
    "binary": (lambda path: put(path, bytes(range(1, 9)) + b"\0\1\2\3" * 500), "binary"),
    "folder": (folder, "folder"),
    "fifo": (fifo, "pipe"),
    "link-loop": (loop, "circle"),
    "device": (lambda _path: Path("/dev/null"), "device"),
    "not-vllm": (lambda path: put(path, b"GET / 200\nGET / 404\n"), "no line that vLLM wrote"),
    "empty-gz": (lambda path: put(path, gzip.compress(b"")), ""),
    "store": (lambda path: put(path, b"\0" * 8 + b"DUCK" + b"\0" * 4000), ""),
}


@pytest.mark.parametrize(("make", "word"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_said_and_the_rest_is_read(
    tmp_path: Path, make: Callable[[Path], Path], word: str
) -> None:
    bad = make(tmp_path / "bad.log")
    good = put(tmp_path / "good.log", healthy_log())
    told = replay(bad, good)
    assert told.status == 2
    assert told.complaint.startswith("kvlogd: ")
    assert word in told.complaint
    assert bad.name in told.complaint
    assert told.summary["stats_lines"] == 31


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_without_rights_is_said(tmp_path: Path) -> None:
    bad = put(tmp_path / "bad.log", healthy_log())
    bad.chmod(0)
    told = replay(bad)
    assert told.status == 2
    assert "Permission denied" in told.complaint


def test_a_file_that_cannot_be_looked_at_is_named_and_standard_output_is_not(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 300)
    for arguments in (("sql", "SELECT 1"), ("snapshot", tmp_path / "copy"), ("silence", "--list"), ("alerts",)):
        told = kvlogd(*arguments, "--db", too_long)
        assert told.status == 2
        assert told.complaint == f"kvlogd: {too_long}: cannot be looked at (File name too long): run as root"
    told = kvlogd("check", "--rules", tmp_path / ("y" * 300))
    assert told.status == 2
    assert "File name too long" in told.complaint
    assert "standard output" not in told.complaint


def test_each_of_several_bad_files_has_its_line(tmp_path: Path) -> None:
    told = replay(tmp_path / "a.log", folder(tmp_path / "b.log"), fifo(tmp_path / "c.log"))
    assert told.status == 2
    assert [line.split(": ")[1].rpartition("/")[2] for line in told.err.splitlines()] == ["a.log", "b.log", "c.log"]
    assert told.summary["stats_lines"] == 0


def test_a_truncated_gz_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = LEAK.read_bytes()
    told = replay(put(tmp_path / "leak.log.gz", whole[: len(whole) * 9 // 10]))
    assert told.status == 2
    assert "ends in the middle" in told.complaint
    assert 400 < told.summary["stats_lines"] < 520
    assert [alert["verdict"] for alert in told.alerts] == ["kv-leak"]
    assert told.summary["gaps"] == [{"source": "leak.log", "reason": "cut short", "count": 1}]


def test_a_gz_that_is_damaged_inside_is_said(tmp_path: Path) -> None:
    whole = bytearray(LEAK.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    told = replay(put(tmp_path / "leak.log.gz", bytes(whole)))
    assert told.status == 2
    assert "leak.log.gz" in told.complaint


# --- logs without a record


def started(extra_args: str = "") -> Server:
    server = Server(seed=32)
    server.start(extra_args=extra_args)
    return server


def served(server: Server, requests: int = 5) -> bytes:
    for _ in range(requests):
        server.pause(5)
        server.post()
    return server.text()


def several_api_servers() -> bytes:
    server = started()
    server.log(
        "loggers.py:1335",
        "AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats.",
        level="WARNING",
    )
    return served(server)


def warnings_only() -> bytes:
    server = Server(seed=33)
    server.log("model.py:1", "Casting torch.float32 to torch.bfloat16.", level="WARNING")
    server.uvicorn("Application startup complete.")
    return served(server)


BLIND: dict[str, tuple[Callable[[], bytes], str]] = {
    "statistics off": (lambda: served(started(", 'disable_log_stats': True")), "--disable-log-stats"),
    "several API servers": (several_api_servers, "--api-server-count"),
    "log level": (warnings_only, "log level"),
    "no request": (lambda: started().text(), "no request came"),
}


@pytest.mark.parametrize(("make", "words"), BLIND.values(), ids=BLIND)
@pytest.mark.parametrize("form", ["--json", "text"])
def test_a_log_without_records_says_why(tmp_path: Path, make: Callable[[], bytes], words: str, form: str) -> None:
    log = put(tmp_path / "vllm.log", make())
    told = kvlogd("replay", "--year", "2026", "--timezone", "UTC", log, *(["--json"] if form == "--json" else []))
    assert told.status == 1
    assert told.err == ""
    if form == "--json":
        (blind,) = told.summary["blind"]
        assert blind["source"] == "vllm.log"
        assert words in blind["why"]
    else:
        assert words in told.out
        assert "Nothing to judge" in told.out or "data-source" in told.out


def test_a_crash_at_start_says_so() -> None:
    told = replay(Path(__file__).parent / "data" / "real" / "crash-at-start.log")
    assert told.status == 1
    assert "died before it served" in told.summary["blind"][0]["why"]


def test_records_of_an_unknown_shape_are_counted_once_and_said(tmp_path: Path) -> None:
    forked = (
        healthy_log().replace(b"Engine 000: Avg", b"instance 7: Avg").replace(b"tokens/s, Running", b"t/s; Running")
    )
    told = replay(put(tmp_path / "vllm.log", forked))
    assert told.status == 1
    assert told.summary["unparsed_stats_lines"] == 31
    assert "shape" in told.summary["blind"][0]["why"]


# --- rules and options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id: x\nverdict: x\nseverty: warning\n", [":3", "severty", "severity"]),
        ("id: x\nid: y\n", [":2", "id"]),
        ("id: kv-leak\nverdict: x\nseverity: warning\nper: engine\nwhen: {}\n", []),
        (
            "id: x\nverdict: x\nseverity: warning\nper: engine\nwhen:\n  threshold: {signal: kv_usge, above: 3%}\n"
            "why: w\ndo: [d]\n",
            [":6", "kv_usage"],
        ),
        (
            "id: x\nverdict: x\nseverity: warning\nper: engine\nwhen:\n  threshold: {signal: kv_usage, above: 3m}\n"
            "why: w\ndo: [d]\n",
            [":6", "3m"],
        ),
        ("[1, 2\n", [":"]),
        ("\0\1", [":"]),
        ("!!python/object/apply:os.system [id]\n", [":1"]),
    ],
    ids=["key", "key-twice", "incomplete", "signal", "unit", "no-yaml", "binary", "tag"],
)
def test_a_wrong_rule_is_said_with_its_line(tmp_path: Path, text: str, words: list[str]) -> None:
    put(tmp_path / "rules" / "mine.yaml", text.encode())
    for told in (
        replay(put(tmp_path / "vllm.log", healthy_log()), "--rules", tmp_path / "rules"),
        kvlogd("check", "--rules", tmp_path / "rules"),
    ):
        assert told.status == 2
        assert all(line.count("mine.yaml:") for line in told.err.splitlines()), told.err
        assert all(word in told.err for word in words), told.err


def test_a_rule_id_that_is_taken_is_said(tmp_path: Path) -> None:
    rule = (
        "id: kv-leak\nverdict: x\nseverity: warning\nper: engine\nwhen:\n  threshold: {signal: kv_usage, above: 3%}\n"
    )
    put(tmp_path / "rules" / "mine.yaml", f"{rule}why: w\ndo: [d]\n".encode())
    told = kvlogd("check", "--rules", tmp_path / "rules")
    assert told.status == 2
    assert "mine.yaml:1" in told.err
    assert "kv-leak" in told.err


def test_a_pipe_among_the_rules_does_not_block(tmp_path: Path) -> None:
    folder(tmp_path / "rules")
    fifo(tmp_path / "rules" / "mine.yaml")
    told = installed("check", "--rules", tmp_path / "rules")
    assert told.status == 2
    assert "mine.yaml" in told.complaint


def test_a_rule_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    told = replay(put(tmp_path / "vllm.log", healthy_log()), "--rules", tmp_path / "nowhere")
    assert told.status == 2
    assert "nowhere" in told.complaint


@pytest.mark.parametrize("option", ["--gpu-csv", "--host-csv"])
def test_a_wrong_sidecar_is_said_and_the_log_is_read(tmp_path: Path, option: str) -> None:
    log = put(tmp_path / "vllm.log", healthy_log())
    for bad in (tmp_path / "nowhere.csv", put(tmp_path / "bad.csv", b"a,b\n1,2\n"), fifo(tmp_path / "pipe.csv"), log):
        told = replay(log, option, bad)
        assert told.status == 2
        assert bad.name in told.complaint
        assert told.summary["stats_lines"] == 31


def test_a_report_into_no_folder_is_said_and_the_finding_told(tmp_path: Path) -> None:
    pytest.importorskip("kvlogd.report")
    told = replay(LEAK, "--report", tmp_path / "nowhere" / "r.html")
    assert told.status == 2
    assert "nowhere" in told.complaint
    assert [alert["verdict"] for alert in told.alerts] == ["kv-leak"]


# --- the text for people


def block(told: Told) -> str:
    return told.out.partition("\n\n")[0]


def test_a_finding_says_what_since_when_how_fast_and_what_to_do(tmp_path: Path) -> None:
    db = tmp_path / "s.duckdb"
    told = kvlogd("replay", "--year", "2026", "--timezone", "UTC", LEAK, "--db", db)
    words = [
        "free blocks \N{MINUS SIGN}",
        "points/h",
        "full in about",
        "since 2026-03-02 09:",
        "what to do",
        "run 1",
        str(db),
    ]
    for word in words:
        assert word in block(told)
    assert "Read leak-at-constant-load.log: 520 stats records in 1,049 lines, 1 engine, 1 run" in told.out
    assert "could not judge kv-idle-residue" in told.out


def test_the_sql_that_a_finding_offers_works(tmp_path: Path) -> None:
    db = tmp_path / "s.duckdb"
    told = kvlogd("replay", "--year", "2026", "--timezone", "UTC", LEAK, "--db", db)
    line = next(line for line in told.out.splitlines() if "kvlogd sql" in line)
    query = line.partition('"')[2].rpartition('"')[0]
    asked = kvlogd("sql", "--db", db, "--format", "json", query)
    assert asked.status == 0, asked.err
    assert len(asked.out) > 100
