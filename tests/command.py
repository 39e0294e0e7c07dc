"""Runs kvlogd as a person or a script would, and reads what it says."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from kvlogd.cli import main

INSTALLED = Path(sys.executable).with_name("kvlogd")
Json = dict[str, Any]


class Told(NamedTuple):
    """What a command said."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> list[Json]:
        """Return the JSON objects of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def alerts(self) -> list[Json]:
        """Return the alerts of `--json`."""
        return [record for record in self.records if record["type"] == "alert"]

    @property
    def summary(self) -> Json:
        """Return the summary of `--json`, which must stand last."""
        assert self.records[-1]["type"] == "summary"
        return self.records[-1]

    @property
    def complaint(self) -> str:
        """Return the one line on stderr."""
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removesuffix("\n")


def kvlogd(*arguments: str | Path) -> Told:
    """Run a command in this process: as the installed one does, at a tenth of the time."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # argparse
            status = exit_.code if isinstance(exit_.code, int) else 1
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Told(status, out.getvalue(), err.getvalue())


def replay(*arguments: str | Path) -> Told:
    """Run `kvlogd replay --json` on logs of 2026 in UTC."""
    return kvlogd("replay", "--json", "--year", "2026", "--timezone", "UTC", *arguments)


def installed(*arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Told:
    """Run the command that was installed, in a process of its own."""
    run = subprocess.run(
        [INSTALLED, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )
    told = Told(run.returncode, run.stdout.decode(), run.stderr.decode())
    assert "Traceback" not in told.err, told.err
    return told


def sql(db: Path, query: str) -> list[dict[str, str]]:
    """Return the rows of a query, as `kvlogd sql --format csv` prints them."""
    told = kvlogd("sql", "--db", db, "--format", "csv", query)
    assert told.status == 0, told.err
    return list(csv.DictReader(io.StringIO(told.out)))


SAMPLES = (
    "SELECT s.ts, e.label, r.number, s.prompt_tps, s.generation_tps, s.running, s.waiting, s.kv_usage, "
    "s.prefix_hit_rate FROM samples s JOIN runs r USING (run_id) JOIN engines e ON e.engine_id = s.engine_id "
    "ORDER BY s.ts, e.label"
)
EVENTS = (
    "SELECT ev.ts, e.label, r.number, ev.kind, ev.numbers FROM events ev "
    "LEFT JOIN runs r USING (run_id) LEFT JOIN engines e ON e.engine_id = ev.engine_id ORDER BY ev.ts, ev.kind"
)
