"""sql, status and snapshot as people type them: with a daemon, without one, and where one is but may not be asked."""

import contextlib
import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kvlogd.ask import AbsentError
from kvlogd.endpoint import Endpoint
from kvlogd.errors import StoreError
from kvlogd.live import unheld
from kvlogd.store import Store
from tests import host, waiting
from tests.command import INSTALLED, kvlogd
from tests.daemon import ready

until = partial(waiting.until, deadline_s=20)
SLOW = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1"
QUERYING_S = 0.3
"""CPU that nothing takes, once the store is open, but a query that runs."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that nobody has open."""
    with Store.open(tmp_path / "kv.duckdb") as store:
        store.commit(host.first_batch(3))
    return tmp_path / "kv.duckdb"


@pytest.fixture
def served(path: Path) -> Iterator[Path]:
    """The same, with its daemon, which is this process: no other can open the file."""
    with Store.open(path) as store, Endpoint(path.parent / "kvlogd.sock", host.hands(store)):
        yield path


# --- sql


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("sql", ["SELECT ts, running, NULL AS n FROM samples", "EXPLAIN FROM samples", "FROM gaps"])
def test_an_answer_looks_the_same_with_and_without_a_daemon(path: Path, sql: str, form: str) -> None:
    alone = kvlogd("sql", "--db", path, "--format", form, sql)
    with Store.open(path) as store, Endpoint(path.parent / "kvlogd.sock", host.hands(store)):
        asked = kvlogd("sql", "--db", path, "--format", form, sql)
    assert asked == alone
    assert asked.status == 0
    assert asked.out


def test_another_process_asks_the_daemon(served: Path) -> None:
    code = (
        "import sys\nfrom kvlogd.cli import main\nstatus = main(sys.argv[1:])\n"
        "print('duckdb' in sys.modules, file=sys.stderr)\nsys.exit(status)"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "sql",
        "--db",
        str(served),
        "--format",
        "csv",
        "SELECT count(*) AS n FROM kv",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "n\n3\n")
    assert run.stderr == "False\n"


def test_null_is_told_apart(served: Path) -> None:
    sql = "SELECT NULL AS n, '' AS e, 'NULL' AS t"
    assert kvlogd("sql", "--db", served, sql).out.splitlines()[2] == "NULL     NULL"
    assert list(csv.reader(io.StringIO(kvlogd("sql", "--db", served, "--format", "csv", sql).out)))[1] == [
        "",
        "",
        "NULL",
    ]
    told = json.loads(kvlogd("sql", "--db", served, "--format", "json", sql).out)
    assert told == [{"n": None, "e": "", "t": "NULL"}]


@pytest.mark.parametrize("arguments", [["-"], []], ids=["dash", "nothing"])
def test_a_query_comes_from_standard_input(served: Path, arguments: list[str]) -> None:
    command = [str(INSTALLED), "sql", "--db", str(served), "--format", "json", *arguments]
    run = subprocess.run(command, input=b"SELECT '\xc3\xa9' AS a;\n", capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
    assert json.loads(run.stdout) == [{"a": "é"}]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "no statement"),
        (b"\xff\xfe", "no UTF-8 text"),
        (b"SELECT 1; SELECT 2", "more than one statement"),
        (b"SELECT '" + b"x" * 100_000 + b"'", "more than 65536 characters"),
    ],
    ids=["empty", "bytes", "two", "long"],
)
def test_what_is_no_query_is_one_line_and_status_2(served: Path, sent: bytes, words: str) -> None:
    run = subprocess.run([INSTALLED, "sql", "--db", served, "-"], input=sent, capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.count(b"\n") == 1
    assert words in run.stderr.decode()


@pytest.mark.parametrize("with_daemon", [True, False])
@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DROP TABLE samples", "DROP is no reading statement"),
        ("SELECT nothing FROM samples", "nothing"),
        ("SELECT error(chr(27) || '[2J' || chr(10))", "?[2J"),
        ("SELECT CAST('x' || chr(27) AS INTEGER)", "x?"),
        ("FROM range(100001)", "more than 100000 rows: add a LIMIT"),
    ],
)
def test_an_error_is_one_harmless_line(path: Path, sql: str, words: str, with_daemon: bool) -> None:
    if with_daemon:
        with Store.open(path) as store, Endpoint(path.parent / "kvlogd.sock", host.hands(store)):
            told = kvlogd("sql", "--db", path, sql)
    else:
        told = kvlogd("sql", "--db", path, sql)
    assert told.status == 2
    assert told.out == ""
    assert words in told.complaint
    assert "\x1b" not in told.complaint


def test_the_config_names_store_and_socket(path: Path, tmp_path: Path) -> None:
    place, config = tmp_path / "run" / "asked.sock", tmp_path / "kvlogd.yaml"
    place.parent.mkdir()
    config.write_text(f"store: {{path: {path}, socket: {place}}}\n")
    with Store.open(path) as store, Endpoint(place, host.hands(store)):
        assert "kvlogd 0.0: 1 log" in kvlogd("status", "--config", config).out
        assert (
            kvlogd("sql", "--config", config, "--format", "csv", "SELECT count(*) FROM kv").out
            == "count_star()\r\n3\r\n"
        )
        assert kvlogd("status", "--db", path).status == 1


def test_a_held_store_without_a_socket_says_what_to_do(path: Path) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        told = kvlogd("sql", "--db", path, "SELECT 1")
        holder.communicate("")
    assert told.status == 2
    held = f"process {holder.pid} has the store open and offers no socket: wait for it to end, or stop it"
    assert told.complaint == f"kvlogd: {path}: {held}"


def test_a_dead_socket_is_no_daemon(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path.parent / "kvlogd.sock"))
    assert kvlogd("sql", "--db", path, "--format", "csv", "SELECT 1 AS a").out == "a\r\n1\r\n"
    assert kvlogd("status", "--db", path).status == 1


def answering(place: Path, *answers: bytes) -> "subprocess.Popen[str]":
    """Run something that listens, says this to whoever asks, and goes."""
    code = (
        "import socket, sys, ast\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n"
        "print('up', flush=True)\nc, _ = s.accept()\nc.recv(100000)\nc.sendall(ast.literal_eval(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(place), repr(b"".join(answers))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the daemon ended the connection"),
        (b'{"v":1,"columns":["a"],"types":["INTEGER"]}\n{"rows":[[1]]}\n', "the daemon ended the connection"),
        (b'{"v":1,"columns":["a"],"types":["INTEGER"]}\n{"rows":[[1]', "the daemon ended the connection"),
        (b'{"v":2}\n', "speaks version 2 of the protocol, not 1: restart the daemon"),
        (b"HTTP/1.1 400 Bad Request\n", "no message of kvlogd"),
        (b'{"v":1,"error":{"what":"\\u001b[2J\\n","where":"","mend":"x"}}\n', "\\x1b[2J\\n: x"),
    ],
    ids=["nothing", "half", "cut", "version", "http", "escape"],
)
def test_an_answer_that_breaks_off_is_no_answer(path: Path, answer: bytes, words: str) -> None:
    with answering(path.parent / "kvlogd.sock", answer):
        told = kvlogd("sql", "--db", path, "--format", "json", "SELECT 1")
    assert told.status == 2
    assert told.out == ""
    assert words in told.complaint


def test_ctrl_c_ends_a_query_that_the_daemon_runs(path: Path) -> None:
    begins = threading.Event()
    with Store.open(path) as store:
        hands = host.hands(store, begins.set)  # what was read is stored right before a query
        with Endpoint(path.parent / "kvlogd.sock", hands) as endpoint:
            assert interrupted(path, lambda _: until(begins.is_set)) == (130, b"", b"")
            until(lambda: not endpoint.health().callers)
            assert endpoint.health().dropped == 1


def test_ctrl_c_ends_a_query_of_the_command_itself(path: Path) -> None:
    def runs(pid: int) -> None:
        until(lambda: is_open_in(pid, path))
        opened_s = cpu_s(pid)
        until(lambda: cpu_s(pid) > opened_s + QUERYING_S)

    assert interrupted(path, runs) == (130, b"", b"")


def interrupted(path: Path, runs: Callable[[int], None]) -> tuple[int, bytes, bytes]:
    """Type ^C into a query once `runs` returns; return what became of it."""
    command = [str(INSTALLED), "sql", "--db", str(path), SLOW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
        try:
            runs(asking.pid)
            asking.send_signal(signal.SIGINT)
            out, err = asking.communicate(timeout=20)
        finally:
            asking.kill()
        return asking.returncode, out, err


def is_open_in(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(fd.readlink() == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


# --- status


def test_status_says_what_the_daemon_sees(served: Path) -> None:
    told = kvlogd("status", "--db", served)
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith("kvlogd 0.0: 1 log, 1 engine, 1 alert firing\n")
    assert "\x1b" not in told.out
    (record,) = kvlogd("status", "--db", served, "--json").records
    assert record["running"] is True
    assert record["pid"] == os.getpid()
    assert record["engines"][0]["label"] == "chat/0"


START = "`sudo systemctl start kvlogd`; `sudo kvlogd install` puts it here"


def test_status_without_a_daemon_says_so(path: Path) -> None:
    told = kvlogd("status", "--db", path)
    assert (told.status, told.err) == (1, "")
    assert told.out == f"kvlogd: {path}: no daemon serves this store: {START}\n"
    (record,) = kvlogd("status", "--db", path, "--json").records
    assert record == {"running": False, "store": str(path), "config_faults": []}


@pytest.mark.parametrize(
    ("wrong", "where", "what"),
    [
        ("sauces: []", ":5", "unknown key sauces: did you mean sources?"),
        ("channels: [", ":6", "is no YAML here: check indentation and quotes"),
        ("gpu: {every: 5}", ":5", "gpu stands here a second time: keep one of them"),
    ],
    ids=["key", "yaml", "twice"],
)
def test_status_shows_a_daemon_that_lives_on_beside_a_config_that_is_wrong_now(
    tmp_path: Path, wrong: str, where: str, what: str
) -> None:
    with ready(tmp_path / "d", "host: {enabled: no}\n") as daemon:
        good = daemon.config.read_text()
        daemon.config.write_text(f"{good}{wrong}\n")
        told = daemon.ask("status")
        assert (told.status, told.out[:33]) == (2, "kvlogd 0.1.0: 1 source, 1 log, 0 ")
        first, last = told.err.splitlines()
        assert first == f"kvlogd: {daemon.config}{where}: {what}"
        assert last.startswith("kvlogd: the daemon lives on with what it read before, and could not start with this: ")
        told = daemon.ask("status", "--json")
        assert told.status == 2
        (record,) = told.records
        assert (record["running"], record["store"]) == (True, str(daemon.store))
        (fault,) = record["config_faults"]
        assert fault["where"] == f"{daemon.config}{where}"
        daemon.kill()
        told = daemon.ask("status")
        assert (told.status, told.out, told.complaint) == (2, "", first)
        daemon.config.write_text(good)
        assert daemon.ask("status", "--json").records[0]["config_faults"] == []


def test_status_finds_the_daemon_where_the_store_has_an_unknown_key_too(tmp_path: Path) -> None:
    with ready(tmp_path / "d") as daemon:
        said = daemon.config.read_text()
        daemon.config.write_text(said.replace(f"{{path: {daemon.store}}}", f"{{path: {daemon.store}, keep: 3d}}"))
        told = daemon.ask("status")
        assert (told.status, told.out[:7]) == (2, "kvlogd ")
        assert f"{daemon.config}:2: unknown key keep" in told.err


def test_status_does_not_guess_where_the_config_cannot_be_read(tmp_path: Path) -> None:
    told = kvlogd("status", "--config", tmp_path / "none.yaml")
    assert (told.status, told.out) == (2, "")
    assert "cannot be read" in told.complaint


MINE = """
id: mine
verdict: mine
severity: info
per: engine
when: {threshold: {signal: waiting, above: 5}}
why: it waits
do: [look]
"""


def test_status_tells_which_rule_is_not_in_force(tmp_path: Path) -> None:
    rules = tmp_path / ("a-folder-with-a-long-name" * 4)
    rules.mkdir()
    rule = rules / "mine.yaml"
    rule.write_text(MINE)
    fault = f"{rule}:6: signal: no signal of that name: did you mean waiting?"
    with ready(tmp_path / "d", f"rules: {{folders: [{rules}]}}\n") as daemon:
        rule.write_text(MINE.replace("waiting,", "wating,"))
        told = daemon.ask("status")
        assert (told.status, told.out[:7]) == (2, "kvlogd ")
        assert told.err.splitlines()[0] == f"kvlogd: {fault}"
        assert daemon.ask("status", "--json").records[0]["config_faults"][0]["where"] == f"{rule}:6"
        daemon.send(signal.SIGHUP)
        daemon.wait_for("reload failed")
        rule.write_text(MINE)
        told = daemon.ask("status")
        assert (told.status, told.err) == (0, "")
        lines = told.out.splitlines()
        at = next(number for number, line in enumerate(lines) if line.endswith("  1x  reload"))
        assert lines[at + 1 : at + 3] == ["  refused, so the old config and rules stay in force:", f"  {fault}"]
        daemon.send(signal.SIGHUP)
        daemon.wait_for("RELOADING=1")
        daemon.wait_for("READY=1")
        assert daemon.status()["troubles"] == []


# --- a config that somebody edits at night


def test_a_config_that_is_wrong_now_keeps_nobody_from_an_answer(tmp_path: Path) -> None:
    count: tuple[str | Path, ...] = ("sql", "--format", "csv", "SELECT count(*) AS n FROM samples")
    copy = tmp_path / "copy.duckdb"
    with ready(tmp_path / "d", "host: {enabled: no}\n") as daemon:
        daemon.config.write_text(f"{daemon.config.read_text()}sauces: []\n")
        wrong = (
            f"kvlogd: {daemon.config}:5: unknown key sauces: did you mean sources?\n"
            f"kvlogd: the config is wrong now; {daemon.store} is asked all the same\n"
        )
        assert daemon.ask(*count) == (0, "n\r\n0\r\n", wrong)
        assert daemon.ask("snapshot", copy) == (0, f"{copy}\n", wrong)
        assert daemon.ask("alerts") == (0, "no alert fires\n", wrong)
        made = daemon.ask("silence", "kv-leak@chat/*", "2h")
        assert (made.status, made.out[:40], made.err) == (0, "silenced: kv-leak on chat/*, number 1, u", wrong)
        unsure = daemon.ask("silence", "kv-leek", "2h")
        assert (unsure.status, unsure.out[:10]) == (0, "silenced: ")
        first, _, rest = unsure.err.partition("\n")
        assert first.startswith("kvlogd: kv-leek: no shipped rule has this name, and your own cannot be read now")
        assert first.endswith(": did you mean kv-leak?")
        assert rest == wrong
        daemon.kill()
        for words, out in ((count, "n\r\n0\r\n"), (("alerts",), "no alert fires\n")):
            assert daemon.ask(*words) == (0, out, wrong)
        daemon.store.unlink()
        for words in (count, ("alerts",), ("silence", "kv-leak", "2h"), ("snapshot", tmp_path / "other.duckdb")):
            told = daemon.ask(*words)
            assert (told.status, told.out, told.err[: len(wrong)]) == (2, "", wrong)


@pytest.mark.parametrize(
    "words", [("sql", "SELECT 1"), ("alerts",), ("silence", "kv-leak", "2h"), ("silence", "--list"), ("snapshot", "x")]
)
def test_a_config_that_is_named_and_not_there_is_an_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = kvlogd(*words, "--config", tmp_path / "none.yaml")
    assert (told.status, told.out) == (2, "")
    assert "none.yaml: cannot be read (No such file or directory)" in told.complaint


# --- snapshot


def test_a_snapshot_of_the_daemons_store(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    told = kvlogd("snapshot", "--db", served, "copy.duckdb")
    assert (told.status, told.err) == (0, "")
    assert told.out == f"{tmp_path / 'here' / 'copy.duckdb'}\n"
    assert kvlogd("sql", "--db", "copy.duckdb", "--format", "csv", "SELECT count(*) AS n FROM kv").out == "n\r\n3\r\n"
    assert (tmp_path / "here" / "copy.duckdb").stat().st_mode & 0o777 == 0o640
    again = kvlogd("snapshot", "--db", served, "copy.duckdb")
    assert (again.status, again.complaint) == (2, "kvlogd: copy.duckdb: is there already: name a new file")


def test_a_snapshot_without_a_daemon(path: Path, tmp_path: Path) -> None:
    assert kvlogd("snapshot", "--db", path, tmp_path / "copy.duckdb").status == 0
    told = kvlogd("sql", "--db", tmp_path / "copy.duckdb", "--format", "csv", "SELECT count(*) AS n FROM kv")
    assert told.out == "n\r\n3\r\n"


def test_a_snapshot_of_nothing(tmp_path: Path) -> None:
    told = kvlogd("snapshot", "--db", tmp_path / "no.duckdb", tmp_path / "copy.duckdb")
    assert (told.status, told.out) == (2, "")
    assert "there is no such store" in told.complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("refusing", "told"), [(True, "you may not ask the daemon"), (False, "cannot open")])
def test_who_may_not_ask_the_daemon_hears_that_and_no_advice_about_its_files(refusing: bool, told: str) -> None:
    absent = AbsentError("you may not ask the daemon", where="/run/kvlogd/sock", mend="run as root", refusing=refusing)
    with pytest.raises(StoreError, match=told), unheld(absent):
        raise StoreError("cannot open", where="kvlogd.duckdb")
