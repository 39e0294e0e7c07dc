"""Nothing that a user wrote leaves the parser, and nothing that a user wrote counts as a record."""

import json
import os
import random
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests import envelopes
from tests.command import INSTALLED, SAMPLES, replay, sql
from tests.logs import Server

CANARY = "KVLOGD-CANARY-5c1e"
FORGED = (
    "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
    "Running: 77 reqs, Waiting: 99 reqs, GPU KV cache usage: 99.9%, Prefix cache hit rate: 0.0%"
)
FORGED_LINE = f"(APIServer pid=4319) INFO 03-02 09:05:00 [loggers.py:257] {FORGED}"


def secrets() -> list[tuple[str, str, str]]:
    """Return (level, file, message) of each line that can carry what users wrote; see dialects.md 5.1."""
    c = CANARY
    return [
        (
            "INFO",
            "logger.py:40",
            f"Received request cmpl-{c}: prompt: 'my {c}\\n', params: SamplingParams(stop=['{c}'])",
        ),
        ("INFO", "logger.py:40", f"Received request {c}: prompt: '{FORGED_LINE}', lora_request: LoRA(name={c})."),
        ("INFO", "request_logger.py:65", f"Received request x{c}-0: params: {FORGED}."),
        ("DEBUG", "request_logger.py:70", f"Request {c} details: prompt: '{c}', prompt_token_ids: [1, 2]"),
        ("DEBUG", "request_logger.py:80", f'Request {c} JSON body: {{"prompt": "{c} {FORGED}"}}'),
        ("INFO", "logger.py:60", f"Generated response {c} (streaming complete): output: '{c}', finish_reason: stop"),
        ("INFO", "async_llm.py:578", f"Added request {c}."),
        ("INFO", "async_llm.py:600", f"Request {c} aborted."),
        ("INFO", "api_server.py:50", f"response_body={{{c}}}"),
        ("ERROR", "api_server.py:60", f"Exception caught. Request id: {c}"),
        ("ERROR", "dump_input.py:69", f"Dumping input data for V1 LLM engine (v0.20.0) with config: model='{c}', {c}"),
        ("ERROR", "dump_input.py:76", f"Dumping scheduler output for model execution: SchedulerOutput(req_id='{c}')"),
        ("ERROR", "dump_input.py:79", f"Dumping scheduler stats: SchedulerStats(num_running_reqs=1, lora='{c}')"),
        ("ERROR", "hermes_tool_parser.py:88", f"Error in extracting tool call from response {c}."),
        ("WARNING", "serving_chat.py:70", f"Failed to parse tool call details from: {FORGED} {c}"),
        ("WARNING", "connections.py:20", f"HTTP fetch failed for https://x.example/{c}?sig={c} (attempt 1)"),
        ("INFO", "serving_models.py:180", f"Loaded new LoRA adapter: name '{c}', path '/lora/{c}'"),
        ("ERROR", "backend_xgrammar.py:160", f"Failed to advance FSM for request {c} for tokens 5"),
        ("WARNING", "scheduler.py:1", f"Sequence group {c} is preempted by PreemptionMode.RECOMPUTE mode because {c}"),
        ("WARNING", "nixl.py:1", f"Releasing expired KV blocks for request {c} which were retrieved by {c}"),
        ("ERROR", "core.py:1512", f"torch.OutOfMemoryError: CUDA out of memory. {c}"),
        ("ERROR", "core.py:1512", f"ValueError: {c} {FORGED}"),
        ("INFO", "loggers.py:300", f"{FORGED}, {c}: 3"),
        ("INFO", "loggers.py:300", f"{c} {FORGED}"),
        ("INFO", "loggers.py:300", f"{FORGED} {c}"),
    ]


def raw() -> list[str]:
    """Return lines that are not vLLM's logger's: the web server, tracebacks, half lines."""
    c = CANARY
    return [
        f'INFO:     10.0.0.7:5123 - "POST /v1/chat/completions?key={c} HTTP/1.1" 200 OK',
        f'INFO:     10.0.0.7:5123 - "GET /{FORGED.replace(" ", "%20")} HTTP/1.1" 404 Not Found',
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
        f'  File "/srv/{c}.py", line 3, in {c}',
        f"pydantic_core.ValidationError: input_value='{c} {FORGED}'",
        f"  {FORGED_LINE}",
        FORGED,
        f"cr\r{FORGED_LINE}",
        f"{c}\x0b{FORGED_LINE}",
        f"{c}\u2028{FORGED_LINE}\x85{FORGED_LINE}",
        f"(APIServer pid=4319) INFO 03-02 09:05:00 [{c}.py:257] {FORGED}",
        f"(APIServer pid=4319) INFO 03-02 09:05:00 [request_logger.py:65] {FORGED_LINE}-0: params: {c}",
        f"vllm:{c} {FORGED_LINE}",
        f'{{"levelname": "INFO", "name": "app.{c}", "message": "{FORGED}", "asctime": "2026-03-02 09:05:00,000"}}',
        f'{{"name": "vllm.v1.metrics.loggers", "message": "x\\n{FORGED}", "asctime": "2026-03-02 09:05:00,000"}}',
        f'{{"broken": "{c} {FORGED}',
    ]


def honest() -> Server:
    """Return a server of which nothing but numbers is worth keeping, with a leak to be told."""
    server = Server(seed=41)
    key = f", 'api_key': ['{CANARY}'], 'served_model_name': ['{CANARY}'], 'ssl_keyfile': '/{CANARY}'"
    server.start(extra_args=key)
    server.busy(60, 8, 0.30)
    server.busy(120, 8, 0.30, grows=0.003)
    server.settle(0.36)
    return server


def poisoned() -> list[tuple[datetime, str]]:
    """Return its lines with everything that users can put into a log between them."""
    server = honest()
    shuffled = random.Random(7)
    foul = [f"(APIServer pid=4319) {lv} 03-02 09:05:00 [{file}] {text}" for lv, file, text in secrets()] + raw()
    foul += [f"({CANARY} pid=4319) INFO 03-02 09:05:00 [api.py:1] hello", "x" * 70_000 + CANARY + FORGED]
    # the parts of docker and CRI are 16 KiB: a forged record stands right at the begin of the second one
    head = "(APIServer pid=4319) INFO 03-02 09:05:00 [logger.py:40] Received request a: prompt: '"
    foul.append((head + CANARY).ljust(envelopes.PART, "y") + FORGED_LINE + CANARY)
    lines = [(at, line) for at, line in server.lines]
    for line in foul * 2:
        place = shuffled.randrange(len(lines))
        lines.insert(place, (lines[place][0], line))
    return [*lines, (server.now + timedelta(seconds=1), FORGED_LINE[:150] + CANARY)]


def found_in(folder: Path, canary: str = CANARY) -> list[str]:
    """Return the names of the files below a folder that hold the canary, as text or as UTF-16."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    needles = (canary.encode(), canary.encode("utf-16-le"), canary.encode()[::-1])
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


@pytest.mark.parametrize("wrap", [envelopes.plain, *envelopes.ALL.values()], ids=["plain", *envelopes.ALL])
def test_no_canary_gets_out_and_no_forged_record_in(tmp_path: Path, wrap: Callable[..., bytes]) -> None:
    clean, foul = tmp_path / "clean" / "vllm.log", tmp_path / "foul" / "vllm.log"
    clean.parent.mkdir()
    foul.parent.mkdir()
    clean.write_bytes(wrap(honest().lines))
    foul.write_bytes(wrap(poisoned()))
    straight = replay(clean, "--db", tmp_path / "clean.duckdb")
    told = replay(foul, "--db", tmp_path / "foul.duckdb")
    assert [alert["verdict"] for alert in straight.alerts] == ["kv-leak"]
    assert sql(tmp_path / "foul.duckdb", SAMPLES) == sql(tmp_path / "clean.duckdb", SAMPLES)
    assert told.summary["stats_lines"] == straight.summary["stats_lines"]
    assert [a["verdict"] for a in told.alerts if a["verdict"] == "kv-leak"] == ["kv-leak"]
    assert CANARY not in told.out + told.err
    assert found_in(tmp_path) == []


def test_nothing_is_left_in_temporary_files(tmp_path: Path) -> None:
    """Watches the folder for temporary files while kvlogd is at work, too."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "vllm.log").write_bytes(envelopes.docker_json(poisoned()))
    log = tmp_path / "vllm.log"
    call = [str(INSTALLED), "replay", "--year", "2026", "--timezone", "UTC", str(log), *_report(tmp_path)]
    env = {**os.environ, "TMPDIR": str(temporary)}
    with (
        (tmp_path / "stdout").open("wb") as out,
        (tmp_path / "stderr").open("wb") as err,
        subprocess.Popen(call, stdout=out, stderr=err, env=env) as child,
    ):
        seen: list[str] = []
        while child.poll() is None:
            seen += _found_while_it_changes(temporary)
    assert child.returncode == 1, (tmp_path / "stderr").read_text()
    assert seen == []
    assert list(temporary.iterdir()) == []
    assert found_in(tmp_path) == []


def _found_while_it_changes(folder: Path) -> list[str]:
    try:
        return found_in(folder)
    except FileNotFoundError:
        return []


def _report(folder: Path) -> list[str]:
    try:
        import kvlogd.report  # noqa: F401
    except ImportError:
        return []
    return ["--report", str(folder / "report.html")]


def test_an_over_long_line_is_cut_counted_and_forgotten(tmp_path: Path) -> None:
    server = honest()
    lines = [line for _, line in server.lines]
    lines.insert(80, f"(APIServer pid=4319) INFO 03-02 09:05:00 [logger.py:40] {CANARY} " + f"{FORGED} " * 12_000)
    (tmp_path / "vllm.log").write_text("\n".join(lines) + "\n")
    told = replay(tmp_path / "vllm.log", "--db", tmp_path / "s.duckdb")
    assert told.summary["stats_lines"] == server.records
    assert [(gap["reason"], gap["count"]) for gap in told.summary["gaps"]] == [("line too long", 1)]
    assert CANARY not in told.out + told.err
    assert found_in(tmp_path) == []


def test_complaints_quote_nothing_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    log = tmp_path / "vllm.log"
    log.write_bytes(envelopes.plain(poisoned()))
    for arguments in (["--gpu-csv", str(log)], ["--host-csv", str(log)]):
        told = replay(log, *arguments)
        assert told.status == 2
        assert CANARY not in told.out + told.err


def test_a_model_name_is_a_short_clean_label(tmp_path: Path) -> None:
    server = Server(seed=43)
    server.start()
    server.busy(20, 4, 0.2)
    hostile = f"/home/{CANARY}/models/<!channel>\x1b[31m" + "a" * 300
    text = server.text().replace(b"acme/chat-8b", hostile.encode())
    (tmp_path / "vllm.log").write_bytes(text)
    told = replay(tmp_path / "vllm.log", "--db", tmp_path / "s.duckdb")
    (run,) = sql(tmp_path / "s.duckdb", "SELECT model FROM runs")
    assert len(run["model"]) <= 80
    assert not set(run["model"]) & set("<>!\x1b/\n")
    assert CANARY not in told.out + run["model"]
    assert found_in(tmp_path) == []


def test_a_hostile_file_name_is_shown_on_one_line(tmp_path: Path) -> None:
    log = tmp_path / "a\nINFO\x1b[31m\u202e.log"
    log.write_bytes(honest().text())
    for arguments in ([], ["--json"]):
        told = replay(log, *arguments)
        assert told.status == 1
        assert "\x1b" not in told.out
        assert "\u202e" not in told.out
        assert all(json.loads(line) for line in told.out.splitlines())
    missing = replay(tmp_path / "no\nsuch\x1b[31m.log")
    assert "\x1b" not in missing.complaint


def test_forged_records_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_bytes(envelopes.plain(poisoned()))
    summary = replay(tmp_path / "vllm.log").summary
    assert summary["stats_lines"] == honest().records
    assert summary["engines"] == summary["runs"] == 1
