"""The doctor on real logs, a real config and a real daemon: each link has its item, each trouble its mend."""

import json
import os
from pathlib import Path

import pytest

from kvlogd import gpucheck, logcheck
from kvlogd.checkup import Item, Mark, as_json, text_lines, worst
from kvlogd.doctor import examine
from kvlogd.logcheck import LAST_BYTES, look
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.stamp import zone
from kvlogd.status import GpuStatus, Mode, Status
from tests.command import Told, kvlogd
from tests.daemon import Running
from tests.lines import START_S, line_of, record
from tests.nvml.driver import Driver
from tests.nvml.host import running

REAL = Path(__file__).parent / "data" / "real"
UTC = zone("UTC")
RULES = load_rules([shipped_folder()])


def log_of(
    path: Path, count: int = 50, *, last_s: float = START_S, step_s: float = 10, line: bytes | None = None
) -> Path:
    """A log whose last record is of `last_s`, and which was written then."""
    records = (record(last_s - START_S - step_s * n, running=1, generation_tps=9.0) for n in reversed(range(count)))
    path.write_bytes(b"".join((line or line_of(one)) + b"\n" for one in records))
    os.utime(path, (START_S, START_S))
    return path


def links(items: list[Item]) -> dict[str, Mark]:
    return {item.link: item.mark for item in items}


def told(items: list[Item], link: str) -> str:
    [item] = [item for item in items if item.link == link]
    return f"{item.what}; {item.mend}"


def test_a_log_in_order(tmp_path: Path) -> None:
    log = log_of(tmp_path / "vllm.log")
    items, verdict = look("chat", log, RULES, UTC, START_S + 5, configs=())
    # the folder of the tests lies where the service has one of its own
    assert {link: mark for link, mark in links(items).items() if link != "chat: rights"} == {
        f"chat: {what}": Mark.OK for what in ("file", "records", "dialect", "interval", "clock", "rotation")
    }  # fmt: skip
    assert "50 records in the last 2 MiB, 1 engine" in told(items, "chat: records")
    assert "every 10 s" in told(items, "chat: interval")
    assert verdict[-1].startswith("chat: nothing found; 50 records of 8 min 10 s judged; too little to judge ")


def test_what_stands_at_the_end_of_a_log_is_the_verdict() -> None:
    _, verdict = look("chat", REAL / "slow-leak-with-idle-spells.log", RULES, UTC, START_S)
    assert any(line.startswith("CRITICAL chat: kv-leak ") for line in verdict)


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = log_of(tmp_path / "vllm.log", 60_000)
    assert log.stat().st_size > 2 * LAST_BYTES
    items, _ = look("chat", log, RULES, UTC, START_S)
    seen = int(told(items, "chat: records").split()[0].replace(",", ""))
    assert LAST_BYTES * 0.99 < seen * len(line_of(record())) < LAST_BYTES * 1.1


@pytest.mark.parametrize(
    ("line", "link", "words"),
    [
        (b"INFO 11-29 14:00:00 [x.py:1] Engine stats logging is disabled", "chat: records", ""),
        (b"hello", "chat: file", "has no line that vLLM wrote"),
        (
            b"(APIServer pid=1) INFO 11-29 14:00:00 [loggers.py:9] Engine 000: Avg prompt throughput: 1 apples/s, "
            b"GPU KV cache usage: 1%",
            "chat: dialect", "shape that kvlogd does not know; see whether a newer kvlogd",
        ),
    ],
)  # fmt: skip
def test_a_log_without_records(tmp_path: Path, line: bytes, link: str, words: str) -> None:
    items, _ = look("chat", log_of(tmp_path / "vllm.log", line=line), RULES, UTC, START_S)
    assert links(items)[link] is Mark.FAIL
    assert words in "".join(f"{item.what}; {item.mend}" for item in items if item.link == link)


def test_a_log_that_nobody_writes_any_more_and_one_that_is_empty(tmp_path: Path) -> None:
    log = log_of(tmp_path / "vllm.log")
    items, _ = look("chat", log, RULES, UTC, START_S + 7200)
    assert "written 2 h ago; does vLLM still run" in told(items, "chat: file")
    log.write_bytes(b"")
    assert "empty; wait for vLLM" in told(look("chat", log, RULES, UTC, START_S).items, "chat: file")
    items, _ = look("chat", tmp_path / "none.log", RULES, UTC, START_S)
    assert links(items) == {"chat: file": Mark.FAIL}


def test_stamps_of_another_zone_and_of_the_future(tmp_path: Path) -> None:
    log = log_of(tmp_path / "vllm.log")
    items, _ = look("chat", log, RULES, zone("-02:00"), START_S)
    assert "2 h ahead of the file's own time; write `timezone:`" in told(items, "chat: clock")
    items, _ = look("chat", log, RULES, zone("+05:30"), START_S)
    assert "5 h 30 min behind" in told(items, "chat: clock")
    os.utime(log, (START_S - 1000, START_S - 1000))
    items, _ = look("chat", log, RULES, UTC, START_S - 1000)
    assert "16 min 40 s in the future" in told(items, "chat: clock")


def test_records_that_come_too_seldom(tmp_path: Path) -> None:
    items, _ = look("chat", log_of(tmp_path / "vllm.log", step_s=120), RULES, UTC, START_S)
    assert "every 2 min; set VLLM_LOG_STATS_INTERVAL to 10" in told(items, "chat: interval")


def test_a_rotation_that_loses_lines(tmp_path: Path) -> None:
    log, config = log_of(tmp_path / "vllm.log"), tmp_path / "logrotate"
    for word, mark, words in (
        ("copytruncate", Mark.WARN, "loses lines"), ("compress", Mark.WARN, "delaycompress"), ("daily", Mark.OK, "")
    ):  # fmt: skip
        config.write_text(f"{log} {{\n {word}\n}}\n")
        items, _ = look("chat", log, RULES, UTC, START_S, configs=(config,))
        assert links(items)["chat: rotation"] is mark
        assert words in told(items, "chat: rotation")
    (tmp_path / "vllm.log.1").touch()
    assert "older files beside it" in told(look("chat", log, RULES, UTC, START_S, configs=()).items, "chat: rotation")


def test_a_log_that_the_service_could_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logcheck, "HIDDEN", ())
    log = log_of(tmp_path / "vllm.log")
    log.chmod(0o640)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o1 == 0 and os.access(folder, os.W_OK):
            folder.chmod(folder.stat().st_mode | 0o1)
    nobody, ours = frozenset[int](), frozenset([log.stat().st_gid])
    assert "the service's user cannot read it; chgrp adm" in told(
        look("chat", log, RULES, UTC, START_S, groups=nobody).items, "chat: rights"
    )
    assert "chat: rights" not in links(look("chat", log, RULES, UTC, START_S, groups=ours).items)


# --- the whole chain


def config_of(folder: Path, more: str = "") -> Path:
    path = folder / "kvlogd.yaml"
    sources = f"sources: [{{name: chat, files: ['{folder}/*.log'], timezone: UTC}}]\n"
    path.write_text(f"{sources}store: {{path: {folder}/kvlogd.duckdb}}\n{more}")
    return path


def test_a_config_that_is_wrong_is_told_and_nothing_else(tmp_path: Path) -> None:
    items, verdict = examine(config_of(tmp_path, "nonsense: 1\n"), [], START_S)
    assert links(items) == {"config": Mark.FAIL}
    assert "unknown key nonsense" in items[0].what
    assert verdict == ["the config is wrong: nothing else was looked at"]


def test_without_daemon_and_logs(tmp_path: Path) -> None:
    items, _ = examine(config_of(tmp_path), [], START_S)
    found = links(items)
    assert (found["config"], found["store"]) == (Mark.OK, Mark.OK)
    assert (found["chat: file"], found["daemon"]) == (Mark.FAIL, Mark.FAIL)
    assert "systemctl start kvlogd" in told(items, "daemon")


def test_of_a_pattern_the_live_files_are_read(tmp_path: Path) -> None:
    log_of(tmp_path / "a.log")
    log_of(tmp_path / "b.log")
    (tmp_path / "b.log.1").write_bytes(b"old\n")
    items, verdict = examine(config_of(tmp_path).rename(tmp_path / "c.yaml"), [], START_S)
    assert {"chat/a.log: records", "chat/b.log: records"} <= set(links(items))
    assert len(verdict) == 2


def test_channels_and_gpus_and_units_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "open.url").write_text("x")
    (tmp_path / "open.url").chmod(0o644)
    (tmp_path / "good.url").write_text("json://localhost/hook")
    (tmp_path / "good.url").chmod(0o600)
    channels = "".join(
        f"  - {{name: {name}, url_file: {tmp_path}/{name}.url}}\n" for name in ("open", "good", "none")
    )  # fmt: skip
    config = tmp_path / "kvlogd.yaml"
    config.write_text(
        f"sources: [{{name: chat, journal: kvlogd-test-none.service}}, {{name: box, docker: kvlogd-test-none}}]\n"
        f"store: {{path: {tmp_path}/kvlogd.duckdb}}\ngpu: {{enabled: yes}}\nchannels:\n{channels}"
        "  - {name: env, url_env: KVLOGD_TEST_URL}\n  - {name: unit, credential: oncall}\n"
    )
    items, _ = examine(config, [], START_S)
    found = links(items)
    assert found["channel open"] is Mark.FAIL
    assert found["channel none"] is Mark.FAIL
    assert {found[f"channel {name}"] for name in ("good", "env", "unit")} == {Mark.OK}
    assert (found["chat: journal"], found["box: file"]) == (Mark.FAIL, Mark.FAIL)
    assert found["GPU"] is (Mark.OK if any(path.exists() for path in gpucheck.NVIDIA) else Mark.FAIL)


def test_a_daemon_that_runs_and_what_it_cannot_read(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.config.write_text(
        running.config.read_text().replace("}]", f"}}, {{name: odd, files: [{tmp_path}/odd.log]}}]", 1)
    )
    try:
        log_of(running.log)
        os.mkfifo(tmp_path / "odd.log")
        running.up()
        items, _ = examine(running.config, [], START_S)
    finally:
        running.close()
    assert "process" in told(items, "daemon")
    assert links(items)["daemon"] is Mark.OK
    assert "not a regular file" in told(items, f"daemon: {tmp_path}/odd.log")
    assert links(items)[f"daemon: {tmp_path}/odd.log"] is Mark.FAIL


def test_gpus_that_the_daemon_cannot_read() -> None:
    gpus = (GpuStatus("GPU-a", "ok", 0), GpuStatus("GPU-b", "lost", 1), GpuStatus("GPU-c", "absent"))
    status = Status("1", 1, 0.0, 0.0, Mode.EVENTS, "s", gpus=gpus, gpus_note="the driver does not answer")
    assert links(list(gpucheck.devices(status, has_driver=True))) == {
        "GPU 1": Mark.FAIL, "GPU GPU-c": Mark.FAIL, "GPU": Mark.WARN
    }  # fmt: skip
    assert list(gpucheck.devices(status._replace(gpus=()), has_driver=False)) == []


@pytest.mark.parametrize(("has_driver", "mark"), [(False, Mark.OK), (True, Mark.WARN)])
def test_a_host_without_gpus_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_driver: bool, mark: Mark
) -> None:
    driver = Driver(tmp_path, 1)
    driver.remove()
    nodes = (tmp_path,) if has_driver else (tmp_path / "none",)
    monkeypatch.setattr(gpucheck, "NVIDIA", nodes)
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT 1 AS one", lambda _: bool(daemon.status()["gpus_note"]))
        items, _ = examine(daemon.config, [], START_S)
    found = [item for item in items if "GPU" in item.link or "gpu" in item.link]
    assert worst(found) is mark, found
    assert "no NVIDIA driver" in found[0].what


# --- the command


def ran(*arguments: str | Path) -> Told:
    found = kvlogd("doctor", *arguments)
    assert found.err == ""
    return found


def test_text_and_json_say_the_same(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a b.log")
    text, found = ran(log), json.loads(ran("--json", log).out)
    assert text.status == 1
    assert found["worst"] in ("warn", "fail")
    assert found["items"][0]["link"] in ("a_b.log: rights", "a_b.log: file")
    assert all(item["what"] in text.out for item in found["items"] if item["link"].endswith("records"))


def test_marks_have_an_order_and_colours_are_for_terminals() -> None:
    items = [Item("a", Mark.OK, "fine"), Item("b", Mark.FAIL, "b\x1b[0mroken", "mend it"), Item("c", Mark.WARN, "so")]
    assert worst(items) is Mark.FAIL
    assert worst([]) is Mark.OK
    assert list(text_lines(items, ["v"], colour=False)) == [
        "OK    a: fine", "FAIL  b: b?[0mroken", "      mend it", "WARN  c: so", "", "v"
    ]  # fmt: skip
    assert "\x1b[1;31mFAIL\x1b[0m" in "\n".join(text_lines(items, [], colour=True))
    assert as_json(items, [])["worst"] == "fail"


def test_no_text_of_a_log_is_said(tmp_path: Path) -> None:
    canary = b"INFO 11-29 14:00:00 [x.py:1] canary-4711\nERROR canary-4711\n"
    log = log_of(tmp_path / "vllm.log")
    log.write_bytes(canary + log.read_bytes() + canary)
    assert "canary" not in ran(log).out + ran("--json", log).out
