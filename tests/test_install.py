"""Installs below a folder, from a /proc with a real server and from one that is laid out: twice, and off again."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd import install, proposal
from kvlogd.config import SourceConfig, load_config
from kvlogd.errors import ConfigError
from kvlogd.install import (
    COMMAND,
    COMPLETION,
    CONFIG,
    OWN_UNIT,
    PACKAGED,
    PAGE,
    STEPS,
    apply,
    plan,
    remove,
    told_of_servers,
)  # fmt: skip
from kvlogd.proposal import Proposal, is_covered, is_untouched, proposals
from kvlogd.servers import Server
from tests.command import kvlogd
from tests.test_servers import fake, started

PROGRAM = Path("/opt/my venv/bin/kvlogd")
TEXTS = {PAGE: "page\n", COMPLETION: "script\n"}
ID = "3f" * 32


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    fake(tmp_path / "proc", 7, ["vllm", "serve", "m"], out="/var/log/vllm/chat.log")
    fake(tmp_path / "proc", 8, ["vllm", "serve", "m", "--port", "8001"], "0::/system.slice/vllm-batch.service\n")
    return tmp_path / "proc"


def installed(root: Path, proc: Path, version: int | None = 252) -> list[str]:
    return list(apply(root, plan(root, PROGRAM, version, TEXTS, proc).changes))


def test_a_config_that_is_written_is_read_back_as_it_was_meant(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "root"
    installed(root, proc)
    assert load_config(root / CONFIG).sources == (
        SourceConfig(name="chat", files=("/var/log/vllm/chat.log",), metrics="http://127.0.0.1:8000/metrics"),
        SourceConfig(name="vllm-batch", journal="vllm-batch.service", metrics="http://127.0.0.1:8001/metrics"),
    )
    assert f'ExecStart="{PROGRAM}" run' in (root / OWN_UNIT).read_text()
    assert (root / COMMAND).readlink() == PROGRAM
    assert {oct((root / path).stat().st_mode & 0o777) for path in (OWN_UNIT, CONFIG, PAGE, COMPLETION)} == {"0o644"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_finds_a_program_whose_path_has_blanks_and_signs(tmp_path: Path, proc: Path) -> None:
    program = tmp_path / "of 100%n" / "kvlogd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    list(apply(tmp_path / "root", plan(tmp_path / "root", program, None, {}, proc).changes))
    unit = tmp_path / "root" / OWN_UNIT
    unit.write_text("".join(line for line in unit.read_text().splitlines(True) if not line.startswith("Documentation")))
    run = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_twice_is_as_good_as_once_and_off_leaves_nothing(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "root"
    assert len(installed(root, proc, 257)) == 6
    assert installed(root, proc, 257) == []
    (root / OWN_UNIT).write_text("of an older version")
    assert installed(root, proc, 257) == [f"wrote {root / OWN_UNIT}"]
    assert len(list(remove(root))) == 6
    assert [path for path in root.rglob("*") if not path.is_dir()] == []
    assert not (root / CONFIG).parent.exists()
    assert list(remove(root)) == []


def test_the_delay_grows_where_systemd_can(tmp_path: Path, proc: Path) -> None:
    installed(tmp_path / "new", proc, 254)
    assert "RestartSteps=" in (tmp_path / "new" / STEPS).read_text()
    for version in (None, 253):
        installed(tmp_path / "old", proc, version)
        assert not (tmp_path / "old" / STEPS).exists()


def test_a_config_that_is_there_stays_and_what_it_lacks_is_told(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "root"
    (root / CONFIG).parent.mkdir(parents=True)
    mine = "sources: [{name: mine, files: ['/var/log/vllm/*.log']}]\n"
    (root / CONFIG).write_text(mine)
    wanted = plan(root, PROGRAM, None, TEXTS, proc)
    assert [one.source.name for one in wanted.uncovered] == ["vllm-batch"]
    assert 'journal: "vllm-batch.service"' in "\n".join(told_of_servers(root, wanted))
    list(apply(root, wanted.changes))
    assert (root / CONFIG).read_text() == mine
    assert f"left {root / CONFIG}: somebody has changed it" in list(remove(root))
    assert (root / CONFIG).read_text() == mine


def test_that_nothing_is_to_be_added_to_a_config_is_told(tmp_path: Path, proc: Path) -> None:
    root, nobody = tmp_path / "root", tmp_path / "nobody"
    nobody.mkdir()
    installed(root, proc)
    assert list(told_of_servers(root, plan(root, PROGRAM, None, TEXTS, proc))) == [
        f"{root / CONFIG} has every vLLM server that runs now"
    ]
    assert list(told_of_servers(root, plan(root, PROGRAM, None, TEXTS, nobody))) == ["no vLLM server runs here now"]


def test_a_wrong_config_ends_it_before_anything_is_written(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "root"
    (root / CONFIG).parent.mkdir(parents=True)
    (root / CONFIG).write_text("nonsense: 1\n")
    with pytest.raises(ConfigError, match="unknown key nonsense"):
        plan(root, PROGRAM, None, TEXTS, proc)


def test_the_packages_unit_is_not_doubled(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "root"
    (root / PACKAGED[0]).parent.mkdir(parents=True)
    (root / PACKAGED[0]).touch()
    assert [change.path for change in plan(root, PROGRAM, 252, TEXTS, proc).changes] == [CONFIG]


def test_a_config_that_was_changed_by_a_letter_is_known_as_such(tmp_path: Path, proc: Path) -> None:
    text = proposal.config_text([], [])
    assert is_untouched(text)
    assert not is_untouched(text + "\n")
    assert not is_untouched(text.replace("kvlogd watches", "kvlogd looks at"))
    assert not is_untouched("sources: []\n")
    assert load_config(_file(tmp_path, text)).sources[0].files == ("/var/log/vllm/*.log",)


def _file(folder: Path, text: str) -> Path:
    path = folder / "kvlogd.yaml"
    path.write_text(text)
    return path


def test_what_is_not_ours_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / COMMAND).parent.mkdir(parents=True)
    (tmp_path / COMMAND).write_text("somebody's own")
    (tmp_path / "var/lib/kvlogd").mkdir(parents=True)
    assert [line.split()[0] for line in remove(tmp_path)] == ["left", "left"]
    assert (tmp_path / COMMAND).exists()


def server(pid: int, **more: object) -> Server:
    return Server(pid, "127.0.0.1", 8000)._replace(**more)  # type: ignore[arg-type]


def test_names_are_labels_and_no_two_alike(tmp_path: Path) -> None:
    servers = [
        server(1, logs=("/a/chat.log",)), server(2, logs=("/b/chat.log.1",)), server(3, unit=r"vllm@a\x2db.service"),
        server(4, container=ID), server(5, logs=("/a/\u00e4 [1]: x.log", "/a/more.log")),
    ]  # fmt: skip
    found, missing = proposals(servers, {ID: "box"})
    assert [one.source.name for one in found] == ["chat", "chat-8000-2", "vllm-a-x2db", "box", "1---x"]
    assert missing == []
    assert found[3].source == SourceConfig(name="box", docker="box")
    config = _file(tmp_path, proposal.config_text(found, ["the one that\u2026"]))
    assert load_config(config).sources == tuple(one.source for one in found)


def test_a_server_without_a_log_is_told(tmp_path: Path) -> None:
    found, missing = proposals([server(1), server(2, has_terminal=True, unit="x.service"), server(3, container=ID)], {})
    assert found == []
    assert [text.split(": ")[1][:20] for text in missing] == [
        "where its output goe", "it writes to a termi", "its container is not"
    ]  # fmt: skip
    assert load_config(_file(tmp_path, proposal.config_text(found, missing))).sources[0].name == "vllm"


@pytest.mark.parametrize(
    ("wanted", "by", "covered"),
    [
        ({"files": ("/a/x.log",)}, {"files": ("/a/*.log",)}, True),
        ({"files": ("/a/x.log", "/b/x.log")}, {"files": ("/a/*.log",)}, False),
        ({"journal": "vllm.service"}, {"journal": "vllm"}, True),
        ({"journal": "vllm.service"}, {"journal": "other.service"}, False),
        ({"docker": "a"}, {"docker": "a"}, True),
        ({"docker": "a"}, {"files": ("/a",)}, False),
    ],
)
def test_what_a_config_watches_already(wanted: dict[str, object], by: dict[str, object], covered: bool) -> None:
    made = [SourceConfig.model_validate({"name": "n", **fields}) for fields in (wanted, by)]
    assert is_covered(made[0], [made[1]]) is covered


def test_sources_text_says_where_it_is_from() -> None:
    text = proposal.sources_text([Proposal(SourceConfig(name="chat", journal="x.service"), "process 7")])
    assert text == 'sources:\n  - name: chat  # process 7\n    journal: "x.service"\n'


# --- the command


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    log = folder / "served.log"
    with started(folder, "--port", "8765", log=log):
        yield log


def test_the_command_finds_writes_and_undoes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with serving(tmp_path) as log:
        dry = kvlogd("install", "--dry-run", "--root", root)
        assert dry.status == 0
        assert not root.exists()
        done = kvlogd("install", "--root", root)
        again = kvlogd("install", "--root", root)
    assert f"would write {root / CONFIG}" in dry.out
    assert f'files: ["{log}"]' in dry.out
    assert "nothing was changed" in dry.out
    assert f"the text of {root / CONFIG}:\n    # Written by kvlogd install" in done.out
    assert f"wrote {root / OWN_UNIT}" in done.out
    assert done.out.endswith("next: sudo kvlogd doctor\n")
    assert any(str(log) in source.files for source in load_config(root / CONFIG).sources)
    assert "everything was in place" in again.out
    assert f"ExecStart={Path(sys.executable).parent / 'kvlogd'} run" in (root / OWN_UNIT).read_text()
    dry = kvlogd("install", "--uninstall", "--dry-run", "--root", root)
    assert f"would remove {root / OWN_UNIT}" in dry.out
    assert (root / OWN_UNIT).exists()
    assert kvlogd("install", "--uninstall", "--root", root).status == 0
    assert [path for path in root.rglob("*") if not path.is_dir()] == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file")
    told = kvlogd("install", "--root", tmp_path)
    assert told.status == 2
    assert "cannot be changed" in told.complaint


def test_a_program_that_the_service_cannot_reach_is_told(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "kvlogd").touch()
    found = install.unreachable(hidden / "kvlogd")
    assert found is not None
    assert "into a venv of /usr/bin/python3 in /opt/kvlogd" in str(found)
