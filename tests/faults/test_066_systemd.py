"""66. The package and its unit under a real systemd: start, trouble, reload, end, and what the unit may touch."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.lines import line_of, record
from tests.rig.machine import CONFIG, SHARED, UNIT, Machine, booted

LOG = "/var/log/vllm/chat.log"
BACKLOG = 50_000
SOURCES = f"sources: [{{name: chat, files: [{LOG}], timezone: UTC}}]\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with booted(tmp_path_factory.mktemp("shared")) as found:
        yield found


def lines(start: int, count: int) -> str:
    records = (record(10 * n, running=2, generation_tps=50.0) for n in range(start, start + count))
    return "".join(line_of(one).decode() + "\n" for one in records)


def log(machine: Machine, start: int, count: int) -> None:
    """Append records to a log that only root and the group adm may read."""
    (machine.shared / "lines").write_text(lines(start, count))
    machine.shell(f"cat {SHARED}/lines >> {LOG}; chown root:adm {LOG}; chmod 640 {LOG}")


def pid(machine: Machine) -> int:
    return int(machine.has("MainPID"))


def test_a_bad_reload_keeps_the_old_config(machine: Machine) -> None:
    """66 a, c."""
    machine.fresh(SOURCES)
    log(machine, 0, 5)
    machine.run("systemctl", "start", UNIT)
    before = pid(machine)
    for wrong, told in (
        ("nonsense: 1\n", "unknown key nonsense"),
        ("rules: {disable: [kv-laek]}\n", "did you mean kv-leak"),
        ("sources: [\n", f"{CONFIG}:"),
    ):
        machine.write(CONFIG, SOURCES + wrong)
        machine.run("timeout", "5", "systemctl", "reload", UNIT)
        machine.until(lambda told=told: told in machine.journal())  # type: ignore[misc]
        machine.until(lambda: "reload failed" in machine.has("StatusText"))
    assert f"{CONFIG}:2: unknown key nonsense" in machine.journal()
    log(machine, 5, 1)
    machine.until(lambda: machine.count() == 6)
    assert pid(machine) == before


def test_a_good_reload_takes_effect_and_loses_nothing(machine: Machine) -> None:
    """66 b, c."""
    machine.fresh(SOURCES)
    log(machine, 0, 5)
    machine.run("systemctl", "start", UNIT)
    before = pid(machine)
    machine.write("/var/log/vllm/more.log", lines(0, 3))
    machine.write(CONFIG, SOURCES.replace("}]", "}, {name: more, files: [/var/log/vllm/more.log], timezone: UTC}]"))
    machine.run("timeout", "5", "systemctl", "reload", UNIT)
    machine.until(lambda: machine.count() == 8)
    machine.shell(f"for n in $(seq 100); do kill -HUP {before}; done")
    machine.run("systemctl", "reload", UNIT)
    log(machine, 5, 5)
    machine.until(lambda: machine.count() == 13)
    assert pid(machine) == before
    assert machine.journal().count("reloaded") < 20


def test_ready_means_looked_at_and_a_backlog_does_not_delay_it(machine: Machine) -> None:
    """66 d."""
    machine.fresh(SOURCES, "TimeoutStartSec=10s\n")
    log(machine, 0, BACKLOG)
    machine.run("systemctl", "start", UNIT)
    assert machine.has("SubState") == "running"
    assert machine.count() > 0
    machine.until(lambda: machine.count() == BACKLOG)
    machine.until(lambda: "1 log" in machine.has("StatusText"))
    assert machine.run("kvlogd", "status").out.startswith("kvlogd")


def test_it_goes_on_after_a_kill(machine: Machine) -> None:
    """66 e: the resumption."""
    machine.fresh(SOURCES)
    log(machine, 0, 500)
    machine.run("systemctl", "start", UNIT)
    machine.until(lambda: machine.count() == 500)
    machine.shell(f"kill -9 {pid(machine)}")
    log(machine, 500, 50)
    machine.until(lambda: machine.has("NRestarts") == "1" and machine.has("SubState") == "running")
    machine.until(lambda: machine.count() == 550)


def test_a_hang_is_ended_with_its_stacks_in_the_journal(machine: Machine) -> None:
    """66 e."""
    machine.fresh(SOURCES, "WatchdogSec=3s\n")
    log(machine, 0, 50)
    machine.run("systemctl", "start", UNIT)
    machine.until(lambda: machine.count() == 50)
    machine.shell(f"kill -STOP {pid(machine)}")
    machine.until(lambda: machine.has("NRestarts") == "1" and machine.has("SubState") == "running")
    said = machine.journal()
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said
    assert re.search(r'File ".*kvlogd/(daemon|clock)\.py", line', said)
    machine.until(lambda: machine.count() == 50)


def test_it_lives_longer_than_its_watchdog(machine: Machine) -> None:
    """66 e: the signs of life are frequent enough, with a backlog and with nothing to do."""
    machine.fresh(SOURCES, "WatchdogSec=10s\n")
    log(machine, 0, BACKLOG)
    machine.run("systemctl", "start", UNIT)
    machine.until(lambda: machine.count() == BACKLOG)
    machine.run("sleep", "12")
    assert machine.has("NRestarts") == "0"


def test_it_ends_in_time_under_load(machine: Machine) -> None:
    """66 f."""
    machine.fresh(SOURCES, "TimeoutStopSec=10s\n")
    log(machine, 0, BACKLOG)
    machine.run("systemctl", "start", UNIT)
    machine.run("systemctl", "stop", UNIT)
    assert machine.has("Result") == "success"
    assert machine.has("ExecMainStatus") == "0"
    machine.run("systemctl", "start", UNIT)
    machine.until(lambda: machine.count() == BACKLOG)


def test_a_wrong_config_is_not_tried_again(machine: Machine) -> None:
    """66 g."""
    machine.fresh("sources: [{name: chat, file: [x]}]\n")
    assert machine.run("systemctl", "start", UNIT, fails=True).status != 0
    assert machine.has("ExecMainStatus") == "78"
    assert machine.has("ActiveState") == "failed"
    assert machine.has("NRestarts") == "0"
    assert "unknown key file: did you mean files?" in machine.journal()


def test_what_fails_again_and_again_is_given_up(machine: Machine) -> None:
    """66 g."""
    machine.fresh(SOURCES, "[Unit]\nStartLimitBurst=3\n")
    machine.shell("mkdir -p /var/lib/private/kvlogd; echo no store > /var/lib/private/kvlogd/kvlogd.duckdb")
    machine.run("systemctl", "start", UNIT, fails=True)
    machine.until(lambda: machine.has("ActiveState") == "failed")
    assert "Start request repeated too quickly" in machine.journal()
    assert "is no DuckDB file" in machine.journal()
    assert machine.shell("cat /var/lib/private/kvlogd/kvlogd.duckdb").out == "no store\n"


def test_the_unit_is_understood_and_closed(machine: Machine) -> None:
    """66 h."""
    verified = machine.run("systemd-analyze", "verify", "--man=no", f"/lib/systemd/system/{UNIT}")
    assert verified.err == ""
    machine.run(
        "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", f"/lib/systemd/system/{UNIT}"
    )


PROBE = f"""#!/bin/sh
for place in /etc /usr /opt/kvlogd /var/log /var/log/vllm /var/lib /home /root /boot /run /; do
    if touch $place/probe 2>/dev/null; then echo "PROBE wrote $place"; fi
done
touch /var/lib/kvlogd/probe && rm /var/lib/kvlogd/probe && echo "PROBE state ok"
touch /run/kvlogd/probe && rm /run/kvlogd/probe && echo "PROBE run ok"
test -r {LOG} && echo "PROBE log ok"
journalctl -q -n 1 -u probe-marker.service -o cat | grep -q marker && echo "PROBE journal ok"
test -r /etc/shadow && echo "PROBE read shadow"
test -r /etc/kvlogd/oncall.url && echo "PROBE read the secret's file"
test "$(cat $CREDENTIALS_DIRECTORY/oncall)" = "https://hooks.example.org/x" && echo "PROBE credential ok"
test -r /proc/1/status && echo "PROBE processes ok"
cat /dev/kmsg >/dev/null 2>&1 && echo "PROBE read kmsg"
head -c1 /dev/urandom >/dev/null && echo "PROBE random ok"
mount -t tmpfs x /mnt 2>/dev/null && echo "PROBE mounted"
unshare -r true 2>/dev/null && echo "PROBE made a namespace"
date -s @1 2>/dev/null && echo "PROBE set the clock"
echo "PROBE core $(ulimit -c) uid $(id -u)"
exit 0
"""


def test_it_can_read_what_it_must_and_write_its_state_only(machine: Machine) -> None:
    """66 h: by trying, in the same sandbox."""
    unit = "LoadCredential=oncall:/etc/kvlogd/oncall.url\nExecStartPre=/opt/probe\n"
    machine.fresh(SOURCES, unit)
    machine.write("/opt/probe", PROBE, "755")
    machine.write("/etc/kvlogd/oncall.url", "https://hooks.example.org/x", "600")
    machine.run("systemd-run", "--unit", "probe-marker", "--wait", "-q", "echo", "marker")
    log(machine, 0, 3)
    machine.run("systemctl", "start", UNIT)
    probes = [line.removeprefix("PROBE ") for line in machine.journal().splitlines() if line.startswith("PROBE")]
    user = re.fullmatch(r"core 0 uid (\d+)", probes.pop())
    assert user
    assert 61184 <= int(user[1]) <= 65519
    good = ["state ok", "run ok", "log ok", "journal ok", "credential ok", "processes ok", "random ok"]
    assert probes == good
    machine.until(lambda: machine.count() == 3)


DRAW = """
from kvlogd.model import Panel
from kvlogd.picture import png

times = tuple(1.8e9 + 60 * n for n in range(60))
shares = tuple(0.9 - 0.01 * n for n in range(60))
print("PROBE picture", png(Panel("chat/0", times, shares, shares, shares, times[0], times[9]))[:4])
"""


def test_the_package_draws_pictures_in_its_sandbox(machine: Machine) -> None:
    machine.fresh(SOURCES, "ExecStartPre=/opt/kvlogd/bin/python3 /opt/draw\n")
    machine.write("/opt/draw", DRAW)
    machine.run("systemctl", "start", UNIT)
    assert "PROBE picture b'\\x89PNG'" in machine.journal()


HOG = """
import os, sys

where = f"/sys/fs/cgroup/memory{sys.argv[1]}"
where = where if os.path.isdir(where) else f"/sys/fs/cgroup{sys.argv[1]}"
open(f"{where}/cgroup.procs", "w").write(str(os.getpid()))
taken = []
while os.path.isdir(f"/proc/{sys.argv[2]}"):
    taken.append(b"x" * (1 << 20))
"""


def test_what_the_oom_killer_ends_goes_on_and_stores_each_line_once(machine: Machine) -> None:
    """68 c."""
    machine.fresh(SOURCES, "MemoryMax=400M\nOOMScoreAdjust=1000\n")  # it goes before what takes its memory
    machine.write("/opt/hog", HOG)
    log(machine, 0, BACKLOG)
    machine.run("systemctl", "start", UNIT)
    killed = pid(machine)
    # systemd ends it with the unit, if it has not seen by itself that the daemon is gone
    machine.run("python3", "/opt/hog", machine.has("ControlGroup"), str(killed), fails=True)
    machine.until(lambda: machine.has("NRestarts") == "1" and machine.has("SubState") == "running")
    assert pid(machine) != killed
    assert re.search(r"9/KILL|oom-kill", machine.journal())
    machine.until(lambda: machine.count() == BACKLOG)


def test_a_link_that_was_planted_in_its_state_leads_nowhere(machine: Machine) -> None:
    """67 f."""
    machine.fresh(SOURCES, "[Unit]\nStartLimitBurst=2\n")
    machine.shell("mkdir -p /var/lib/private/kvlogd; ln -s /etc/planted /var/lib/private/kvlogd/kvlogd.duckdb")
    machine.run("systemctl", "start", UNIT, fails=True)
    machine.until(lambda: machine.has("ActiveState") == "failed")
    assert machine.shell("ls /etc/planted*", fails=True).out == ""


def test_stamps_are_in_the_hosts_zone(machine: Machine) -> None:
    machine.fresh(SOURCES.replace(", timezone: UTC", ""))
    machine.shell("ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime")
    try:
        log(machine, 0, 1)
        machine.run("systemctl", "start", UNIT)
        machine.until(lambda: machine.count() == 1)
        told = machine.run("kvlogd", "sql", "--format", "csv", "SELECT hour(ts AT TIME ZONE 'UTC') AS h FROM samples")
        assert told.out.split() == ["h", "5"]  # the line says 14:00
    finally:
        machine.shell("ln -sf /usr/share/zoneinfo/UTC /etc/localtime")


def test_it_reads_the_journal_of_a_unit(machine: Machine) -> None:
    """66 h."""
    machine.fresh("sources: [{name: served, journal: vllm-chat.service, timezone: UTC}]\n")
    machine.run("systemctl", "start", UNIT)
    (machine.shared / "lines").write_text(lines(0, 20))
    machine.run("systemd-run", "--unit", "vllm-chat", "--wait", "-q", "cat", f"{SHARED}/lines")
    machine.until(lambda: machine.count() == 20)


def test_install_finds_the_server_that_runs_and_starts_the_daemon(machine: Machine) -> None:
    machine.fresh(SOURCES)
    machine.run("rm", CONFIG)
    machine.write("/opt/served/vllm", f"#!/bin/bash\ncat {SHARED}/lines\nread -r _ < <(sleep 600)\n", "755")
    (machine.shared / "lines").write_text(lines(0, 20))
    # a script's command line begins with its interpreter, as vllm's own does
    machine.run("systemd-run", "--unit", "vllm-chat", "-q", "/opt/served/vllm", "serve", "model", "--port", "8123")
    try:
        machine.until(lambda: "vllm-chat" in machine.run("kvlogd", "install", "--dry-run").out)
        machine.run("kvlogd", "install")
        assert machine.has("UnitFileState") == "enabled"
        config = machine.run("cat", CONFIG).out
        assert 'journal: "vllm-chat.service"' in config
        assert "127.0.0.1:8123/metrics" in config
        machine.until(lambda: machine.count() == 20)
        assert "everything was in place" in machine.run("kvlogd", "install").out
        found = machine.run("kvlogd", "doctor", "--json", fails=True)
        marks = {item["link"]: item["mark"] for item in json.loads(found.out)["items"]}
        links = ("config", "vllm-chat: journal", "daemon", "store", "vLLM")
        assert {link: marks[link] for link in links} == dict.fromkeys(links, "ok")
        assert "removed" in machine.run("kvlogd", "install", "--uninstall").out
        assert machine.shell(f"ls {CONFIG}", fails=True).status != 0
        assert machine.has("ActiveState") == "inactive"
    finally:
        machine.run("systemctl", "stop", "vllm-chat", fails=True)


def test_a_package_that_goes_leaves_nothing_but_what_it_knew(machine: Machine) -> None:
    machine.fresh(SOURCES)
    machine.run("systemctl", "start", UNIT)
    machine.run("dpkg", "--remove", "--force-depends", "kvlogd")
    assert machine.shell("ls -d /opt/kvlogd /usr/bin/kvlogd /lib/systemd/system/kvlogd.service", fails=True).out == ""
    assert machine.shell("pgrep -f 'kvlogd run'", fails=True).out == ""
    assert machine.shell("ls /var/lib/private/kvlogd").out.startswith("kvlogd.duckdb")
    machine.run("dpkg", "--purge", "--force-depends", "kvlogd")
    assert machine.shell("ls -d /var/lib/private/kvlogd /etc/kvlogd", fails=True).out == ""
