import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.kin import Kin, Owner, Writer
from kvlogd.procfs import Cgroup, Memory, Process, ProcFs, clean

CHILD = "import sys; print('up', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}, 'VLLM::EngineCore_DP1'])"


class Host:
    """A /proc and a cgroup tree of a test's own making."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cgroups = folder / "proc", folder / "cgroup"
        self.root.mkdir()
        self.cgroups.mkdir()
        self.procfs = ProcFs(self.root, self.cgroups)
        (self.root / "meminfo").write_text("MemTotal:       65536000 kB\nMemFree: 1 kB\n")

    def add(
        self, pid: int, parent: int, cmdline: str = "", comm: str = "python3", anon_kib: int = 1024, shmem_kib: int = 0,
        inside: int | None = None, cgroup: str = "0::/vllm.service",
    ) -> None:  # fmt: skip
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({comm}) S {parent} 1 1 0 -1 4194560 100")
        (folder / "cmdline").write_bytes(cmdline.replace(" ", "\0").encode() + b"\0")
        nested = f"{pid}" if inside is None else f"{pid}\t{inside}"
        lines = [f"Name:\t{comm}", f"NSpid:\t{nested}", f"RssAnon:\t  {anon_kib} kB", "RssFile:\t 999999 kB"]
        (folder / "status").write_text("\n".join([*lines, f"RssShmem:\t {shmem_kib} kB"]) + "\n")
        (folder / "cgroup").write_text(cgroup + "\n")

    def limit(self, path: str, **files: str) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"memory.{name}").write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def served(host: Host) -> Kin:
    """Return the kin of a server with two engines and a stranger beside it."""
    host.add(10, 1, "/usr/bin/bash", "bash")
    host.add(100, 10, "/opt/venv/bin/python3 /opt/venv/bin/vllm serve some/model", "vllm", anon_kib=2048 * 1024)
    host.add(110, 100, "VLLM::EngineCore_DP0", "VLLM::EngineCor", anon_kib=1024 * 1024, shmem_kib=512 * 1024)
    host.add(120, 100, "VLLM::EngineCore_DP1", "VLLM::EngineCor", anon_kib=1024 * 1024, shmem_kib=512 * 1024)
    host.add(121, 120, "VLLM::Worker_TP0", "VLLM::Worker_TP")
    host.add(130, 100, "python3 -c from multiprocessing.resource_tracker import main")
    host.add(900, 1, "python3 train.py --secret hunter2")
    return Kin(host.procfs)


WRITER = Writer("chat", 100, {0: 7, 1: 8})


def test_this_process_is_as_its_own_numbers_say() -> None:
    found = ProcFs().process(os.getpid())
    assert found is not None
    assert found.parent == os.getppid()
    assert ProcFs().name(os.getpid()) == clean(Path(sys.executable).resolve().name)
    memory = ProcFs().memory(os.getpid())
    assert memory is not None
    assert 5 < memory.own_mib < 4000
    limit = ProcFs().cgroup(os.getpid()).limit_mib
    assert limit is not None
    assert limit <= (ProcFs().total_mib() or 0)


def test_who_is_gone_is_none(host: Host) -> None:
    assert host.procfs.process(5) is None
    assert host.procfs.name(5) is None
    assert host.procfs.memory(5) is None
    assert host.procfs.inside(5) is None
    assert host.procfs.cgroup(5) == Cgroup(64_000.0, None)
    assert not host.procfs.is_vllm(5)
    assert ProcFs(host.root / "nowhere").processes() == {}


def test_a_name_with_brackets_and_spaces_moves_no_field(host: Host) -> None:
    host.add(7, 3, comm=") S 1 (x")
    assert host.procfs.process(7) == Process(7, 3, "__S_1__x")
    assert clean("\x1b[31mred\n" + 40 * "x") == "__31mred_" + 23 * "x"


@pytest.mark.parametrize(
    ("cmdline", "is_one"),
    [
        ("/venv/bin/python /venv/bin/vllm serve m", True),
        ("vllm serve m", True),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", True),
        ("VLLM::EngineCore_DP3", True),
        ("python3 train.py", False),
        ("tail -f /var/log/vllm.log", False),
        ("grep vllmx", False),
        ("", False),
    ],
)
def test_vllm_is_known_by_its_own_words(host: Host, cmdline: str, is_one: bool) -> None:
    host.add(7, 1, cmdline)
    assert host.procfs.is_vllm(7) is is_one


def test_page_cache_is_no_memory(host: Host) -> None:
    host.add(7, 1, anon_kib=2048, shmem_kib=1024)
    assert host.procfs.memory(7) == Memory(2.0, 1.0)


def test_the_tightest_limit_above_counts_and_the_own_cgroups_kills(host: Host) -> None:
    host.add(7, 1, cgroup="0::/system.slice/vllm.service")
    host.limit("system.slice/vllm.service", max="max\n", events="low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    host.limit("system.slice", max=f"{16 << 30}\n", events="oom_kill 9\n")
    assert host.procfs.cgroup(7) == Cgroup(16_384.0, 2)


def test_version_one_of_cgroups_is_read_too(host: Host) -> None:
    host.add(7, 1, cgroup="5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/")
    host.limit(
        "memory/docker/abc", limit_in_bytes=f"{8 << 30}\n", oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"
    )
    host.limit("memory", limit_in_bytes="9223372036854771712\n")
    assert host.procfs.cgroup(7) == Cgroup(8192.0, 1)


def test_without_a_limit_the_hosts_memory_is_one(host: Host) -> None:
    host.add(7, 1)
    assert host.procfs.cgroup(7).limit_mib == 64_000.0


def test_each_process_is_told_to_its_engine(host: Host) -> None:
    kin = served(host)
    kin.look([WRITER])
    [tree] = kin.trees
    assert (tree.root, set(tree.pids)) == (100, {100, 110, 120, 121, 130})
    assert kin.owner(110) == Owner("chat", 7)
    assert kin.owner(121) == Owner("chat", 8)
    assert kin.owner(130) == Owner("chat", None)
    assert kin.owner(900) is None
    assert kin.owner(10) is None


def test_an_engine_core_that_writes_the_log_leads_to_the_whole_server(host: Host) -> None:
    kin = served(host)
    kin.look([WRITER._replace(pid=120)])
    assert kin.trees[0].root == 100


def test_the_only_engine_of_a_log_owns_all(host: Host) -> None:
    kin = served(host)
    kin.look([Writer("chat", 100, {None: 3})])
    assert kin.owner(121) == Owner("chat", 3)


def test_memory_of_a_server_counts_what_is_shared_once(host: Host) -> None:
    kin = served(host)
    host.limit("vllm.service", max=f"{32 << 30}\n", events="oom_kill 1\n")
    kin.look([WRITER])
    [sample] = kin.memory(5.0)
    assert (sample.ts_s, sample.source, sample.limit_mib, sample.oom_kills) == (5.0, "chat", 32_768.0, 1)
    assert (sample.processes, sample.pid) == (5, 100)
    assert sample.rss_mib == 2048 + 1024 + 1024 + 1 + 1 + 512


def test_a_number_that_is_somebody_elses_is_not_believed(host: Host) -> None:
    kin = served(host)
    kin.look([WRITER._replace(pid=900)])
    assert kin.trees == []
    assert kin.memory(0.0) == []


def test_a_containers_number_is_translated(host: Host) -> None:
    kin = served(host)
    host.add(5000, 1, "vllm serve m", "vllm", inside=1)
    host.add(5001, 5000, "VLLM::EngineCore", "VLLM::EngineCor", inside=44)
    kin.look([Writer("boxed", 1, {0: 9})])
    assert kin.trees[0].root == 5000
    assert kin.owner(5001) == Owner("boxed", 9)
    host.add(6000, 1, "vllm serve m", "vllm", inside=1)
    other = Kin(host.procfs)
    other.look([Writer("boxed", 1, {0: 9})])
    assert other.trees == []  # two of that number: rather none than the wrong one


def test_nothing_of_a_command_line_is_ever_returned(host: Host) -> None:
    kin = served(host)
    kin.look([WRITER])
    seen = [kin.name(900), kin.owner(900), kin.memory(0.0), kin.trees, host.procfs.processes()]
    assert "hunter2" not in repr(seen)
    assert "some/model" not in repr(seen)


@pytest.fixture
def family() -> Iterator["subprocess.Popen[bytes]"]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "vllm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield parent
    parent.communicate()


def test_real_processes_are_found(family: "subprocess.Popen[bytes]") -> None:
    assert family.stdout is not None
    assert family.stdout.readline() == b"up\n"
    kin = Kin(ProcFs())
    kin.look([Writer("chat", family.pid, {0: 1, 1: 2})])
    [tree] = kin.trees
    [child] = tree.pids - {family.pid}
    assert kin.name(child) == clean(Path(sys.executable).resolve().name)
    [sample] = kin.memory(0.0)
    assert sample.rss_mib > 5


def test_only_a_process_that_is_gone_or_another_has_ended(tmp_path: Path) -> None:
    for pid, cmdline in ((7, b"vllm\0serve\0"), (8, b"bash\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(cmdline)
    (tmp_path / "10" / "cmdline").mkdir(parents=True)  # it cannot be read
    procfs = ProcFs(tmp_path)
    assert [procfs.has_ended(pid) for pid in (7, 8, 9, 10)] == [False, True, True, False]
