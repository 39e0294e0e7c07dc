"""The commands. Each is a thin call into the library; what is heavy is imported by the command that needs it."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvlogd import __version__, alertcli, gpucli, hostcli, live, notifycli, storecli
from kvlogd.errors import ConfigError, KvlogdError

if TYPE_CHECKING:
    from kvlogd.model import AlertEvent
    from kvlogd.outcome import Outcome
    from kvlogd.rehearsal import Addresses
    from kvlogd.rules import Rule
    from kvlogd.store import Store

FINE, FOUND, WRONG = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 fine, 1 found something or failed, 2 wrong usage, config or input."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if "run" not in arguments:
        parser.print_help()
        return FINE
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except KvlogdError as error:
        _complain(error)
        return WRONG
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # whoever read us has seen enough; python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None:  # what is written to has no name: this is a file that nobody thought of
            _complain(
                KvlogdError(str(error.strerror), where=str(error.filename), mend="may you read it? Else run as root")
            )
            return WRONG
        _complain(KvlogdError(f"cannot write ({error.strerror})", where="standard output", mend="free disk space"))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG
    return status


def _complain(error: KvlogdError) -> None:
    for line in str(error).splitlines():
        print(f"kvlogd: {line}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="kvlogd",
        description="Tells which vLLM engine leaks KV cache, stalls or degrades, from the log it already writes.",
        epilog="Begin with `kvlogd replay LOG`, which needs nothing else, or with `sudo kvlogd install` and "
        "`sudo kvlogd doctor`, which leave it running here. "
        "Exit status: 0 fine, 1 something was found or failed, 2 wrong usage, config or input.",
    )
    parser.add_argument("--version", action="version", version=f"kvlogd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_replay(commands)
    hostcli.add_host(commands, parser)
    live.add_commands(commands)
    alertcli.add_commands(commands)
    _add_check(commands)
    _add_rules(commands)
    notifycli.add(commands)
    gpucli.add(commands)
    storecli.add(commands)
    _add_run(commands)
    hostcli.add_pages(commands, parser)
    return parser


def _add_replay(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    replay = commands.add_parser(
        "replay",
        help="read logs that are there and tell what is wrong",
        description="Reads vLLM logs (plain, .gz, .zst, docker json-file, CRI, journal), oldest rotation first, and "
        "tells what the rules find. Nothing is sent, unless --notify asks for it.",
    )
    replay.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    replay.add_argument("--db", type=Path, metavar="FILE", help="keep the history in this DuckDB file")
    replay.add_argument("--rules", type=Path, metavar="DIR", help="rules of this folder beside the shipped ones")
    replay.add_argument("--json", action="store_true", help="one JSON object a line: alerts, then a summary")
    replay.add_argument("--year", type=_year, metavar="Y", help="year of the first stamp (vLLM prints none)")
    replay.add_argument("--timezone", metavar="TZ", help="zone of the stamps, e.g. UTC, Europe/Berlin, +02:00")
    replay.add_argument("--gpu-csv", type=Path, metavar="F", help="output of nvidia-smi --query-gpu=… --format=csv")
    replay.add_argument("--host-csv", type=Path, metavar="F", help="CSV with the columns ts,rss_mib")
    replay.add_argument("--report", type=Path, metavar="F.html", help="write a page with charts")
    replay.add_argument(
        "--notify", action="store_true", help="send what a daemon would have sent then, marked as a replay"
    )
    replay.add_argument("--config", type=Path, metavar="FILE", help="with --notify: whose channels are sent to")
    replay.set_defaults(run=_replay)


def _year(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1970 <= int(text) <= 2999):
        raise argparse.ArgumentTypeError(f"{text} is no year like 2026")
    return int(text)


def _replay(arguments: argparse.Namespace) -> int:
    from kvlogd import replay as replaying
    from kvlogd.progress import bar
    from kvlogd.rules import load_rules, shipped_folder
    from kvlogd.stamp import HOST_ZONE, zone
    from kvlogd.tell import json_lines, status_of, text_blocks

    to = _addresses(arguments.config) if arguments.notify else None
    if arguments.report is not None:
        _refuse_to_overwrite(arguments.report)
    folders = [shipped_folder(), *([arguments.rules] if arguments.rules else [])]
    rules = load_rules(folders)
    options = replaying.Options(
        zone(arguments.timezone) if arguments.timezone is not None else HOST_ZONE,
        arguments.year,
        arguments.db,
        arguments.gpu_csv,
        arguments.host_csv,
    )
    with replaying.opened_store(arguments.db) as store:
        known = [] if to is None else store.alert_events()
        with bar("reading") as progress:
            outcome = replaying.replay(arguments.logs, rules, store, options, progress)
        if arguments.report:
            from kvlogd.report import write_report

            try:
                write_report(arguments.report, outcome, store, rules)
            except KvlogdError as unwritten:
                # what was found is told all the same
                outcome = outcome._replace(errors=[*outcome.errors, unwritten])
        if to is not None:
            outcome = _notified(outcome, known, store, rules, to)
    told = json_lines(outcome) if arguments.json else text_blocks(outcome, rules, arguments.db, _colour())
    for line in told:
        print(line)
    for error in outcome.errors:
        _complain(error)
    return status_of(outcome)


def _addresses(config: Path | None) -> "Addresses":
    from kvlogd.rehearsal import addresses

    return addresses(config)


def _notified(
    outcome: "Outcome", known: "Sequence[AlertEvent]", store: "Store", rules: "Sequence[Rule]", to: "Addresses"
) -> "Outcome":
    """Send what was found; return it with what could not be sent among the errors."""
    from kvlogd.advice import advice, told
    from kvlogd.rehearsal import rehearsed

    errors = list(outcome.errors)
    for sent in rehearsed(outcome, known, store, rules, to):
        print(f"kvlogd: channel {sent.channel}: {told(sent.fate)}: {sent.subject}", file=sys.stderr)
        if sent.fate.fault is not None:
            mend = advice(sent.fate)
            errors.append(KvlogdError("did not take it: it gets no more", where=f"channel {sent.channel}", mend=mend))
    return outcome._replace(errors=errors)


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="follow the logs of the config: the daemon",
        description="Follows logs, stores what they say and judges it, until SIGTERM; a second one ends it at once. "
        "SIGHUP reads the config again, SIGUSR1 writes the stacks of all threads. Without a config file it watches "
        "/var/log/vllm/*.log. Exit status 78 where the config is wrong.",
    )
    run.add_argument("--config", type=Path, metavar="FILE")
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from kvlogd.service import serve

    return serve(arguments.config)


def _refuse_to_overwrite(page: Path) -> None:
    """Raise ConfigError where the page would take the place of something else: `--report *.log` names a log."""
    if page.is_file() and page.stat().st_size:
        with page.open("rb") as file:
            is_page = file.read(15).lower() == b"<!doctype html>"
        if not is_page:
            raise ConfigError("is there already and is no page", where=str(page), mend="name another file")


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser("check", help="validate config and rules; every error with file:line")
    check.add_argument("--config", type=Path, metavar="FILE")
    check.add_argument("--rules", type=Path, metavar="DIR")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from kvlogd.quantity import count_text
    from kvlogd.setup import load_setup, routes

    setup = load_setup(arguments.config, [arguments.rules] if arguments.rules else [], by_hand=True)
    if not setup.is_asked:
        raise ConfigError("Apprise did not come to look at the URLs in time", where="channels", mend="try again")
    if any(rule.query is not None for rule in setup.rules):
        from kvlogd.inquiry import faults
        from kvlogd.replay import opened_store
        from kvlogd.yamlfile import FaultsError

        with opened_store(None) as store:
            found = list(faults(setup.rules, store))
        if found:
            raise FaultsError(found)
    unseen = len(setup.config.channels) - len(setup.urls)
    aside = f" ({unseen} of them by credentials, which only the service can read)" if unseen else ""
    channels = len(setup.config.channels)
    told = f", {count_text(channels, 'channel')}{aside}" if channels else ""
    print(f"fine: {count_text(len(setup.rules), 'rule')}{told}")
    unheard = [rule for rule, names in routes(setup.config.channels, setup.rules).items() if channels and not names]
    if unheard:
        print(f"told to no channel, by their tags: {', '.join(unheard)}")
    return FINE


def _add_rules(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    rules = commands.add_parser("rules", help="list the rules, or show one")
    verbs = rules.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", help="shipped rules and those of --rules DIR")
    show = verbs.add_parser("show", help="what a rule looks at, why, and what to do")
    show.add_argument("rule", metavar="RULE")
    for verb in (listing, show):
        verb.add_argument("--rules", type=Path, metavar="DIR")
    listing.add_argument("--json", action="store_true")
    test = verbs.add_parser("test", help="run the tests of the shipped rules and of --rules DIR, or of some files")
    test.add_argument("files", nargs="*", type=Path, metavar="FILE")
    test.add_argument("--rules", type=Path, metavar="DIR")
    test.set_defaults(run=_rules_test)
    listing.set_defaults(run=_rules_list)
    show.set_defaults(run=_rules_show)


def _rules_list(arguments: argparse.Namespace) -> int:
    from kvlogd.rules import load_rules, shipped_folder

    rules = load_rules([shipped_folder(), *([arguments.rules] if arguments.rules else [])])
    if arguments.json:
        for rule in rules:
            told = {"id": rule.id, "verdict": rule.verdict, "severity": rule.severity, "per": rule.per}
            print(json.dumps({**told, "tags": rule.tags}))
        return FINE
    width = max(len(rule.id) for rule in rules)
    for rule in rules:
        print(f"{rule.id:<{width}}  {rule.severity:<8}  {rule.per:<6}  {', '.join(rule.tags):<12}  {rule.path}")
    return FINE


def _rules_show(arguments: argparse.Namespace) -> int:
    from kvlogd.kinds import about
    from kvlogd.quantity import nearest
    from kvlogd.rules import load_rules, shipped_folder

    rules = load_rules([shipped_folder(), *([arguments.rules] if arguments.rules else [])])
    rule = next((rule for rule in rules if rule.id == arguments.rule), None)
    if rule is None:
        names = [rule.id for rule in rules]
        raise ConfigError("no rule of that name", where=arguments.rule, mend=nearest(arguments.rule, names))
    print(f"{rule.id}: {rule.verdict}, {rule.severity}, per {rule.per}\n\n{rule.why}\n")
    for step in rule.do:
        print(f"- {step}")
    for kind in rule.kinds():
        print(f"\n{about(kind)}")
    if rule.query is not None:
        print(f"\n{rule.query.query.strip()}")
    return FINE


def _rules_test(arguments: argparse.Namespace) -> int:
    from kvlogd.progress import bar
    from kvlogd.rules import load_rules, shipped_folder
    from kvlogd.ruletest import Result, run_file

    folders = [shipped_folder(), *([arguments.rules] if arguments.rules else [])]
    rules = {rule.id: rule for rule in load_rules(folders)}
    places = [place for folder in folders for place in (folder, folder / "tests")]
    files = arguments.files or sorted(path for place in places for path in place.glob("*.test.yaml"))
    results: list[Result] = []
    with bar("testing rules", unit=" files") as advance:
        for number, path in enumerate(files, 1):
            results += run_file(path, rules)
            if advance is not None:
                advance(number, len(files))
    for result in results:
        if result.faults or result.skipped:
            print(f"{'FAILED' if result.faults else 'skipped'}  {result.rule}: {result.case}")
        for line in [*result.faults, *([result.skipped] if result.skipped else [])]:
            print(f"    {line}")
        if result.chart:
            print(result.chart)
    failed, skipped = sum(bool(one.faults) for one in results), sum(bool(one.skipped) for one in results)
    passed = len(results) - sum(bool(one.faults or one.skipped) for one in results)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return FOUND if failed else FINE
