"""The commands for the host: doctor, install, completion and man."""

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TypeAlias

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_host(commands: _Commands, parser: argparse.ArgumentParser) -> None:
    """Add what looks at the host and puts kvlogd on it; `parser` makes the page and the completion that it installs."""
    _add_install(commands, parser)
    _add_doctor(commands)


def add_pages(commands: _Commands, parser: argparse.ArgumentParser) -> None:
    """Add what prints the page and the completion of `parser`."""
    script = commands.add_parser("completion", help="print the script that completes commands in a shell")
    script.add_argument("shell", choices=("bash", "zsh", "fish"), help="e.g. source <(kvlogd completion bash)")
    script.set_defaults(run=partial(_completion, parser))
    page = commands.add_parser("man", help="print the man page")
    page.set_defaults(run=partial(_man, parser))


def _add_doctor(commands: _Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="is every link of the chain there? each with its mend, then the verdict on the logs as they are",
        description="Looks at config, logs, vLLM's options, rotation, store, daemon, GPU driver and channels, and "
        "judges the last megabytes of each log. Changes nothing. With LOG it looks at these logs alone.",
        epilog="exit status: 0 each link is in order, whatever the verdict, 1 one is not, 2 wrong usage",
    )
    doctor.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    doctor.add_argument("--config", type=Path, metavar="FILE")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(run=_doctor)


def _add_install(commands: _Commands, parser: argparse.ArgumentParser) -> None:
    install = commands.add_parser(
        "install",
        help="put the daemon on this host: unit, config with the vLLM servers that run, command; --uninstall undoes",
        description="Writes the systemd unit, a config that names the vLLM servers it finds running, the command, man "
        "page and completion, and starts the daemon. A config that is there is not changed: what it lacks is printed.",
    )
    install.add_argument("--dry-run", action="store_true", help="only say what would be done")
    install.add_argument("--uninstall", action="store_true", help="undo it; the history stays")
    install.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="write below this folder and start nothing"
    )
    install.set_defaults(run=partial(_install, parser))


def _install(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from kvlogd import __version__, install, manual

    if arguments.uninstall:
        install.uninstall(arguments.root, print, dry_run=arguments.dry_run)
        return 0
    texts = {install.PAGE: manual.page(parser, __version__), install.COMPLETION: manual.completion(parser, "bash")}
    install.install(arguments.root, texts, print, dry_run=arguments.dry_run)
    return 0


def _completion(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from kvlogd.manual import completion

    print(completion(parser, arguments.shell))
    return 0


def _man(parser: argparse.ArgumentParser, _arguments: argparse.Namespace) -> int:
    from kvlogd import __version__
    from kvlogd.manual import page

    print(page(parser, __version__), end="")
    return 0


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
