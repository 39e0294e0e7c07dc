"""`kvlogd replay` on real files: what is read, what is stored, and that it does not matter how the log is cut."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
import zstandard

from tests import envelopes
from tests.command import EVENTS, SAMPLES, Json, Told, replay, sql
from tests.logs import Server


def troubled() -> Server:
    """Return a server that leaks, hangs, is restarted, and stops in order; one request's body is in the log."""
    server = Server(seed=21)
    server.start()
    server.busy(60, 8, 0.30)
    server.log("logger.py:40", "Received request cmpl-1: prompt: '" + "lorem ipsum " * 4000 + "'")
    usage = server.busy(180, 8, 0.30, grows=0.003)
    server.record(0, usage, waiting=8, prompt=0.0, generation=0.0)
    for _ in range(20):
        server.pause(15)
        server.post()
    server.restart()
    server.busy(60, 8, 0.30)
    server.settle(0.0)
    server.stop()
    return server


TROUBLED = troubled()
LINES = TROUBLED.lines
VERDICTS = [("firing", "kv-leak"), ("firing", "engine-stall"), ("resolved", "engine-stall"), ("resolved", "kv-leak")]


class Plain(NamedTuple):
    told: Told
    samples: list[dict[str, str]]
    events: list[dict[str, str]]


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def halves(data: bytes, share: float = 0.5) -> tuple[bytes, bytes]:
    """Cut a log in two at the end of a line."""
    at = data.index(b"\n", int(len(data) * share)) + 1
    return data[:at], data[at:]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Return what the plain log gives in one go."""
    folder = tmp_path_factory.mktemp("plain")
    told = replay(put(folder / "vllm.log", envelopes.plain(LINES)), "--db", folder / "s.duckdb")
    return Plain(told, sql(folder / "s.duckdb", SAMPLES), sql(folder / "s.duckdb", EVENTS))


# --- the plain log


def test_what_the_log_says_is_what_is_told(straight: Plain) -> None:
    told = straight.told
    assert told.status == 1
    assert told.err == ""
    assert [(alert["state"], alert["verdict"]) for alert in told.alerts] == VERDICTS
    assert told.summary["stats_lines"] == TROUBLED.records == len(straight.samples)
    assert told.summary["lines"] == len(LINES)
    assert told.summary["engines"] == 1
    assert told.summary["runs"] == 2
    assert told.summary["duplicates"] == 0
    assert told.summary["gaps"] == []
    assert told.summary["first"] == "2026-03-02T09:00:00+00:00"


def test_the_store_holds_what_the_log_says(tmp_path: Path) -> None:
    db = tmp_path / "s.duckdb"
    replay(put(tmp_path / "vllm.log", envelopes.plain(LINES)), "--db", db)
    assert [row["label"] for row in sql(db, "SELECT label FROM engines")] == ["vllm.log/0"]
    runs = sql(
        db,
        "SELECT number, started, ended, end_reason, vllm_version, model, kv_tokens, max_model_len FROM runs ORDER BY 1",
    )
    assert [(r["number"], r["vllm_version"], r["model"], r["kv_tokens"], r["max_model_len"]) for r in runs] == [
        ("1", "0.20.0", "chat-8b", "65536", "8192"),
        ("2", "0.20.0", "chat-8b", "65536", "8192"),
    ]
    assert runs[0]["started"] == "2026-03-02T09:00:00+00:00"
    assert runs[0]["ended"] == runs[1]["started"]
    first = sql(db, "SELECT * FROM samples ORDER BY ts LIMIT 1")[0]
    assert first["ts"] == "2026-03-02T09:00:50+00:00"
    assert float(first["prefix_hit_rate"]) == pytest.approx(0.214)
    assert first["deferred"] == first["swapped"] == ""
    kinds = {row["kind"] for row in sql(db, "SELECT DISTINCT kind FROM events")}
    assert {"banner", "args", "engine_start", "engine_ready", "server_start", "server_ready", "stop"} <= kinds
    assert "request" not in kinds
    jam = sql(db, "SELECT running, waiting, generation_tps FROM samples WHERE waiting > 0")
    assert jam == [{"running": "0", "waiting": "8", "generation_tps": "0.0"}]
    assert [row["state"] for row in sql(db, "SELECT state FROM alert_events ORDER BY ts")] == [s for s, _ in VERDICTS]


def test_alerts_keep_the_contract_of_json_lines(straight: Plain) -> None:
    alert = straight.told.alerts[0]
    assert list(alert) == [
        *("type", "state", "rule", "verdict", "severity", "source", "engine", "engine_index", "run"),
        *("at", "since", "value", "summary", "evidence"),
    ]
    assert (alert["source"], alert["engine"], alert["engine_index"], alert["run"]) == ("vllm.log", "vllm.log/0", 0, 1)
    assert alert["at"].endswith("+00:00")
    assert alert["since"] < alert["at"]
    assert all(isinstance(number, float) for number in alert["evidence"].values())
    summary = straight.told.summary
    promised = ["stats_lines", "lines", "unparsed_stats_lines", "engines", "runs", "first", "last", "gaps", "abstained"]
    assert set(promised) <= set(summary)
    for abstained in summary["abstained"]:
        assert set(abstained) == {"rule", "engine", "why"}


# --- envelopes and compression


@pytest.mark.parametrize("wrap", envelopes.ALL.values(), ids=envelopes.ALL)
def test_envelopes_change_nothing(tmp_path: Path, straight: Plain, wrap: Callable[..., bytes]) -> None:
    db = tmp_path / "s.duckdb"
    told = replay(put(tmp_path / "vllm.log", wrap(LINES)), "--db", db)
    assert told.err == ""
    assert told.alerts == straight.told.alerts
    assert sql(db, SAMPLES) == straight.samples
    assert told.summary["runs"] == 2
    stamped = [row for row in sql(db, EVENTS) if row["kind"] not in ("server_ready", "stop")]
    assert stamped == [row for row in straight.events if row["kind"] not in ("server_ready", "stop")]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".gz", lambda data: gzip.compress(data)),
        (".gz", lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:])),
        (".zst", lambda data: zstandard.compress(data)),
        (".gz", lambda data: zstandard.compress(data)),
    ],
    ids=["gz", "gz-of-two-members", "zst", "wrong-name"],
)
def test_compression_changes_nothing(
    tmp_path: Path, straight: Plain, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    told = replay(put(tmp_path / f"vllm.log{suffix}", pack(envelopes.plain(LINES))))
    assert told == straight.told


# --- rotation, growth, and what was read before


def test_rotated_files_are_one_log_in_any_order(tmp_path: Path, straight: Plain) -> None:
    data = envelopes.plain(LINES)
    old, rest = halves(data, 0.4)
    middle, new = halves(rest)
    paths = [
        put(tmp_path / "vllm.log.2.gz", gzip.compress(old)),
        put(tmp_path / "vllm.log.1", middle),
        put(tmp_path / "vllm.log", new),
    ]
    for order in (paths, paths[::-1], random.Random(3).sample(paths, 3)):
        assert replay(*order) == straight.told


def test_replaying_again_adds_nothing_and_says_the_same(tmp_path: Path) -> None:
    log, db = put(tmp_path / "vllm.log", envelopes.plain(LINES)), tmp_path / "s.duckdb"
    first = replay(log, "--db", db)
    tables = ["engines", "runs", "samples", "events", "alert_events", "alerts", "positions", "gaps"]
    counts = " UNION ALL ".join(f"SELECT '{table}' AS name, count(*) AS n FROM {table}" for table in tables)
    before = sql(db, counts)
    again = replay(log, "--db", db)
    assert again.alerts == first.alerts
    assert again.status == first.status
    assert sql(db, counts) == before


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.75, 0.83, 0.85, 0.9, 0.99])
def test_a_log_that_grew_is_continued(tmp_path: Path, straight: Plain, share: float) -> None:
    data = envelopes.plain(LINES)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    replay(put(log, halves(data, share)[0]), "--db", db)
    told = replay(put(log, data), "--db", db)
    assert told.alerts == straight.told.alerts
    assert sql(db, SAMPLES) == straight.samples
    assert sql(db, EVENTS) == straight.events


def test_what_a_log_s_end_seemed_to_say_is_taken_back_before_the_same_is_found_in_truth(tmp_path: Path) -> None:
    server = Server(seed=3)
    server.start()
    server.busy(30, 4, 0.2)
    server.record(0, 0.2, waiting=3, prompt=0.0, generation=0.0)
    for _ in range(3):
        server.post()
    ends = len(server.lines)
    server.busy(720, 4, 0.2)
    server.record(4, 0.2, prompt=0.0, generation=0.0)
    server.pause(400)
    server.log("x.py:1", "something else")
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    states = [
        [alert["state"] for alert in replay(put(log, envelopes.plain(lines)), "--db", db).alerts]
        for lines in (server.lines[:ends], server.lines)
    ]
    assert states == [["firing"], ["firing", "resolved", "firing"]]


def test_what_the_last_seconds_of_a_log_tell_is_told_at_once_and_not_again_when_it_goes_on(tmp_path: Path) -> None:
    server = Server(seed=22)
    server.start()
    ends = 0
    for held in (0.0, 0.0, 0.05, 0.05):
        ends = len(server.lines) if held else 0
        server.busy(31, 8, 0.30)
        server.settle(held)
        server.settle(held)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    first = replay(put(log, envelopes.plain(server.lines[:ends])), "--db", db)
    assert [(alert["state"], alert["verdict"]) for alert in first.alerts] == [("firing", "kv-idle-residue")]
    assert replay(put(log, envelopes.plain(server.lines)), "--db", db).alerts == first.alerts


def test_a_log_that_rotated_between_two_replays_is_continued(tmp_path: Path, straight: Plain) -> None:
    data = envelopes.plain(LINES)
    begin, end = halves(data, 0.45)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    replay(put(log, begin), "--db", db)
    log.rename(tmp_path / "vllm.log.1")
    told = replay(put(log, end), tmp_path / "vllm.log.1", "--db", db)
    assert told.alerts == straight.told.alerts
    assert sql(db, SAMPLES) == straight.samples


@pytest.mark.parametrize("cut", [1, 30, 120])
def test_a_half_last_line_is_read_when_it_is_whole(tmp_path: Path, straight: Plain, cut: int) -> None:
    data = envelopes.plain(LINES)
    at = data.index(b"\n", len(data) // 2)
    while b"Avg prompt" not in data[data.rindex(b"\n", 0, at) : at]:
        at = data.index(b"\n", at + 1)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    replay(put(log, data[: at + 1 - cut]), "--db", db)
    told = replay(put(log, data), "--db", db)
    assert told.alerts == straight.told.alerts
    assert sql(db, SAMPLES) == straight.samples


def test_a_last_record_without_newline_counts(tmp_path: Path) -> None:
    server = Server(seed=5)
    server.busy(20, 4, 0.2)
    told = replay(put(tmp_path / "vllm.log", server.text().removesuffix(b"\n")))
    assert told.summary["stats_lines"] == 20


def test_records_that_stand_twice_count_once(tmp_path: Path, straight: Plain) -> None:
    data = envelopes.plain(LINES)
    begin, end = halves(data, 0.3)
    again = b"".join(line for line in begin.splitlines(keepends=True)[-30:] if b"Avg prompt" in line)
    told = replay(put(tmp_path / "vllm.log", begin + again + end))
    assert told.summary["stats_lines"] == straight.told.summary["stats_lines"]
    assert told.summary["duplicates"] == again.count(b"\n") > 5
    assert told.alerts == straight.told.alerts


# --- several logs


def test_several_sources_in_one_call(tmp_path: Path, straight: Plain) -> None:
    healthy = Server(seed=9)
    healthy.start()
    healthy.busy(90, 4, 0.2)
    healthy.settle(0.0)
    db = tmp_path / "s.duckdb"
    told = replay(
        put(tmp_path / "chat" / "vllm.log", envelopes.plain(LINES)),
        put(tmp_path / "code" / "vllm.log", healthy.text()),
        "--db",
        db,
    )
    assert {alert["source"] for alert in told.alerts} == {"chat/vllm.log"}
    assert told.summary["engines"] == 2
    assert told.summary["stats_lines"] == TROUBLED.records + healthy.records
    numbers = sql(db, "SELECT source, count(*) AS n FROM samples JOIN engines USING (engine_id) GROUP BY 1 ORDER BY 1")
    assert [(row["source"], int(row["n"])) for row in numbers] == [
        ("chat/vllm.log", TROUBLED.records),
        ("code/vllm.log", healthy.records),
    ]


def test_a_history_of_other_logs_changes_nothing(tmp_path: Path) -> None:
    db = tmp_path / "s.duckdb"
    healthy = Server(seed=9)
    healthy.busy(90, 4, 0.2)
    replay(put(tmp_path / "vllm.log", envelopes.plain(LINES)), "--db", db)
    told = replay(put(tmp_path / "other.log", healthy.text()), "--db", db)
    assert told.alerts == []
    assert told.status == 0
    assert told.summary["stats_lines"] == healthy.records


# --- beside the log


def test_sidecars_fill_their_tables(tmp_path: Path) -> None:
    gpu = put(
        tmp_path / "gpu.csv",
        b"timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W]\n"
        b"2026/03/02 09:00:00.000, 0, 97 %, 70000 MiB, 81559 MiB, 402.10 W\n"
        b"2026/03/02 09:00:30.000, 0, 0 %, 70000 MiB, 81559 MiB, [N/A]\n",
    )
    host = put(tmp_path / "host.csv", b"ts,rss_mib\n2026-03-02T09:00:00,6152.6\n2026-03-02T09:01:00+00:00,6153\n")
    db = tmp_path / "s.duckdb"
    log = put(tmp_path / "vllm.log", envelopes.plain(LINES))
    for _ in range(2):
        told = replay(log, "--db", db, "--gpu-csv", gpu, "--host-csv", host)
        assert told.err == ""
        rows = sql(db, "SELECT ts, util_share AS util, memory_used_mib, power_w FROM gpu_samples ORDER BY ts")
        assert rows == [
            {"ts": "2026-03-02T09:00:00+00:00", "util": "0.97", "memory_used_mib": "70000.0", "power_w": "402.1"},
            {"ts": "2026-03-02T09:00:30+00:00", "util": "0.0", "memory_used_mib": "70000.0", "power_w": ""},
        ]
        assert len(sql(db, "SELECT ts, rss_mib FROM host_samples")) == 2


# --- the store


def test_a_store_in_use_is_named(tmp_path: Path) -> None:
    from kvlogd.store import Store

    log, db = put(tmp_path / "vllm.log", envelopes.plain(LINES)), tmp_path / "s.duckdb"
    with Store.open(db):
        told = replay(log, "--db", db)
    assert told.status == 2
    assert told.out == ""
    assert str(db) in told.complaint


def test_a_newer_store_is_left_alone(tmp_path: Path) -> None:
    log, db = put(tmp_path / "vllm.log", envelopes.plain(LINES)), tmp_path / "s.duckdb"
    replay(log, "--db", db)
    with duckdb.connect(str(db)) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    before = db.read_bytes()
    told = replay(log, "--db", db)
    assert told.status == 2
    assert "newer" in told.complaint
    assert db.read_bytes() == before


@pytest.mark.parametrize("content", [b"just some text, no database at all\n" * 200, b"\0" * 8192])
def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    db = put(tmp_path / "s.duckdb", content)
    told = replay(put(tmp_path / "vllm.log", envelopes.plain(LINES)), "--db", db)
    assert told.status == 2
    assert str(db) in told.complaint
    assert db.read_bytes() == content


def test_a_store_in_no_folder_is_said(tmp_path: Path) -> None:
    told = replay(put(tmp_path / "vllm.log", envelopes.plain(LINES)), "--db", tmp_path / "nowhere" / "s.duckdb")
    assert told.status == 2
    assert "nowhere" in told.complaint


def said(alerts: list[Json]) -> list[tuple[str, str, str]]:
    return [(alert["state"], alert["verdict"], alert["at"]) for alert in alerts]


def test_own_rules_stand_beside_the_shipped_ones(tmp_path: Path, straight: Plain) -> None:
    put(
        tmp_path / "rules" / "queue.yaml",
        b"id: long-queue\nverdict: long-queue\nseverity: warning\nper: engine\n"
        b"when:\n  threshold: {signal: waiting, above: 5}\nwhy: Many wait.\ndo: [look]\n",
    )
    told = replay(put(tmp_path / "vllm.log", envelopes.plain(LINES)), "--rules", tmp_path / "rules")
    assert told.err == ""
    shipped = [alert for alert in told.alerts if alert["rule"] != "long-queue"]
    assert said(shipped) == said(straight.told.alerts)
    assert [alert["state"] for alert in told.alerts if alert["rule"] == "long-queue"] == ["firing", "resolved"]
