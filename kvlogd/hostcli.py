"""The commands for the host: doctor."""

import argparse
import json
import os
import sys
from pathlib import Path


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="is every link of the chain there? each with its mend, then the verdict on the logs as they are",
        description="Looks at config, logs, vLLM's options, rotation, store, daemon, GPU driver and channels, and "
        "judges the last megabytes of each log. Changes nothing. With LOG it looks at these logs alone.",
        epilog="exit status: 0 all in order, 1 something is not, 2 wrong usage",
    )
    doctor.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    doctor.add_argument("--config", type=Path, metavar="FILE")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from kvlogd.checkup import Mark, as_json, text_lines, worst
    from kvlogd.clock import Clock
    from kvlogd.doctor import examine

    items, verdict = examine(arguments.config, arguments.logs, Clock().wall_s())
    if arguments.json:
        print(json.dumps(as_json(items, verdict), ensure_ascii=False))
    else:
        for line in text_lines(items, verdict, colour=_colour()):
            print(line)
    return 0 if worst(items) is Mark.OK else 1


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
