"""What reads all sources: how logs are called, and that a restart takes each up where it stood."""

from pathlib import Path

import pytest

from kvlogd.config import Config, SourceConfig, StoreConfig
from kvlogd.intake import Intake
from kvlogd.setup import Setup
from kvlogd.store import Store
from tests.lines import line_of, record


def lines(count: int, pid: int) -> bytes:
    return b"".join(line_of(record(10.0 * n, running=1, generation_tps=5.0, pid=pid)) + b"\n" for n in range(count))


def read(store: Store, files: tuple[str, ...]) -> list[str]:
    """Read all that is new; return the reasons of what was lost."""
    source = SourceConfig(name="chat", files=files, timezone="UTC")
    intake = Intake(Setup(Config(sources=(source,), store=StoreConfig(path=store.path)), ()), store, 0.0)
    for turn in range(8):
        intake.poll(3.0 * turn, 1.8e9)
    batch = intake.batch(30.0, is_last=True)
    store.commit(batch)
    intake.close()
    return [gap.reason for gap in batch.gaps]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("{0}/a/vllm.log",), ["chat"]),
        (("{0}/*/vllm.log",), ["chat/a/vllm.log", "chat/b/vllm.log"]),
        (("{0}/a/vllm.log", "{0}/b/vllm.log"), ["chat/a/vllm.log", "chat/b/vllm.log"]),
        (("{0}/a/*.log",), ["chat/vllm.log"]),
    ],
    ids=["a path", "a wildcard folder", "two paths", "a wildcard"],
)
def test_no_two_logs_have_one_name_and_a_restart_reads_nothing_again(
    tmp_path: Path, files: tuple[str, ...], names: list[str]
) -> None:
    for pid, folder in enumerate(("a", "b"), 1):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vllm.log").write_bytes(lines(100 * pid, pid))
    named = tuple(pattern.format(tmp_path) for pattern in files)
    with Store.open(tmp_path / "s.duckdb") as store:
        for _ in range(3):
            assert read(store, named) == []
            found = store.read(
                "SELECT source, count(*) FROM samples JOIN engines USING (engine_id) GROUP BY 1 ORDER BY 1"
            )
            assert [source for source, _ in found] == names
            assert [count for _, count in found] == [100, 200][: len(names)]
