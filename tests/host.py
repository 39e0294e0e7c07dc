"""A daemon in small: opens a store, commits to it in a loop, and serves the endpoint. `python -m tests.host STORE`.

It prints one line when it serves; a line on its input is answered by one JSON object; the end of its input ends it.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvlogd import wire
from kvlogd.endpoint import Endpoint, Hands
from kvlogd.errors import StoreError
from kvlogd.model import Engine, Run, Severity, Stats
from kvlogd.rows import Batch
from kvlogd.status import EngineStatus, Mode, RuleState, RuleStatus, SourceState, SourceStatus, Status, to_json
from kvlogd.store import Store

T0 = 1_764_400_000.0
EVERY_S = 0.05


def first_batch(rows: int) -> Batch:
    samples = [Stats(T0 + i, 1, 0, None, 1.5, 2, 3, 0, 0.5) for i in range(rows)]
    return Batch([Engine(1, "chat", 0, "chat/0")], [Run(1, 1, 1, T0, True, blocks=100)], samples, [1] * rows)


def hands(store: Store, flush: Callable[[], None] = lambda: None) -> Hands:
    return Hands(store, flush, lambda: to_json(status(store)), lambda also_over: alerts(also_over), store.snapshot)


def status(store: Store) -> Status:
    return Status(
        "0.0", os.getpid(), T0 + 60, T0, Mode.EVENTS, str(store.path.absolute()),
        sources=(SourceStatus("chat", SourceState.FOLLOWING, 7, 1, T0 + 50, 0),),
        engines=(EngineStatus("chat/0", 1, T0 + 50, 3, 0, 0.5),),
        rules=(RuleStatus("kv-leak", "chat/0", RuleState.FIRING, Severity.CRITICAL, T0),),
    )  # fmt: skip


def alerts(also_over: bool) -> list[dict[str, object]]:
    standing: list[dict[str, object]] = [{"rule": "kv-leak", "state": "firing"}]
    return [*standing, {"rule": "engine-stall", "state": "resolved"}] if also_over else standing


class Commits(NamedTuple):
    """How the commits went."""

    commits: int
    failed: int
    """Commits that failed and were done again."""
    worst_s: float
    """The longest that rows waited to be committed."""


def main(path: Path) -> None:
    with Store.open(path) as store:
        store.commit(first_batch(3))
        with Endpoint(wire.place(path, path.parent / "kvlogd.sock", os.environ), hands(store)) as endpoint:
            print("serving", flush=True)
            done = Commits(0, 0, 0.0)
            with selectors.DefaultSelector() as waiting:
                waiting.register(sys.stdin, selectors.EVENT_READ)
                while True:
                    if waiting.select(EVERY_S):
                        if not sys.stdin.readline():
                            return
                        print(json.dumps({**done._asdict(), **endpoint.health()._asdict()}), flush=True)
                        done = done._replace(worst_s=0.0)
                    done = commit(store, done)


def commit(store: Store, done: Commits) -> Commits:
    """Commit one more sample; where that fails, look what is there and do it again, as the daemon does."""
    began = time.monotonic()
    at_s, failed = T0 + 10 + done.commits, 0
    while True:
        try:
            if any(sample.ts_s == at_s for sample in store.samples_of(1, at_s)):
                break
            store.commit(Batch(samples=[Stats(at_s, 1, 0, None, 1.5, 2, 3, 0, 0.5)], sample_runs=[1]))
        except StoreError as error:
            print(f"{time.monotonic() - began:.2f} s: {error}"[:200], file=sys.stderr, flush=True)
            failed += 1
    return Commits(done.commits + 1, done.failed + failed, max(done.worst_s, time.monotonic() - began))


@contextlib.contextmanager
def running(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the host in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "tests.host", str(path)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "serving\n"
        try:
            yield process
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0


def asked(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Ask the host how its commits went since it was asked last, and how its endpoint fares."""
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdin.write("how\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def opened_elsewhere(path: Path, *, read_only: bool) -> str:
    """Try to open the store with nothing but DuckDB in another process; return `opened` or why not."""
    code = "import duckdb, sys; duckdb.connect(sys.argv[1], read_only=sys.argv[2] == 'ro'); print('opened')"
    run = subprocess.run(
        [sys.executable, "-c", code, str(path), "ro" if read_only else "rw"],
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() or run.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
