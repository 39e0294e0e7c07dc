"""The commands that a running daemon answers, and a file where none runs: sql, status and snapshot."""

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from kvlogd.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from kvlogd.ask import AbsentError
    from kvlogd.config import StoreConfig
    from kvlogd.rows import Answer

_FORMATS = ("table", "csv", "json")


class _Copied(Protocol):
    def snapshot(self, target: Path) -> object: ...


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three to the parser."""
    status = commands.add_parser(
        "status",
        help="what the running daemon sees, and how it is",
        description="Shows what the running daemon sees, and how it is. Where the config or a rule was changed since "
        "and is wrong now, the daemon lives on with the old one: it is shown, and what is wrong is told beside it.",
        epilog="exit status: 0 it was shown, 1 no daemon runs, 2 wrong usage, config or rule, also where it was shown",
    )
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.set_defaults(run=_status)
    sql = commands.add_parser(
        "sql",
        help="ask the history in SQL, read-only, also while the daemon runs",
        description="Runs one SELECT over the tables and views of docs/schema.md: through the daemon's socket while it "
        "runs, else on the file itself. Times are in UTC; NULL is shown as NULL in a table, as nothing in CSV.",
    )
    sql.add_argument("query", nargs="?", metavar="SELECT", help="the query; - or nothing reads it from standard input")
    sql.add_argument("--format", choices=_FORMATS, default="table", help="table (default), csv (RFC 4180) or json")
    sql.set_defaults(run=_sql)
    snapshot = commands.add_parser(
        "snapshot",
        help="copy the store to a file that any DuckDB client opens, also while the daemon runs",
        description="Copies the store, consistent and without stopping the daemon. Takes no file's place.",
    )
    snapshot.add_argument("file", type=Path, metavar="FILE")
    snapshot.set_defaults(run=_snapshot)
    for command in (sql, status, snapshot):
        command.add_argument("--db", type=Path, metavar="FILE", help="the store, where it is not the config's")
        command.add_argument("--config", type=Path, metavar="FILE")


def places_of(arguments: argparse.Namespace) -> tuple[Path, list[Path]]:
    """Return the store that is meant, and where its daemon may listen.

    What is wrong with the config is told on stderr: who is called at night must get an answer while somebody edits it.
    Raises ConfigError where it does not say which store is meant.
    """
    places, faults = _placed_anyhow(arguments)
    for fault in faults:
        print(f"kvlogd: {fault}", file=sys.stderr)
    if faults:
        print(f"kvlogd: the config is wrong now; {places[0]} is asked all the same", file=sys.stderr)
    return places


def _placed(arguments: argparse.Namespace, config: "StoreConfig") -> tuple[Path, list[Path]]:
    from kvlogd import wire

    store = arguments.db or config.path
    return store, wire.places(store, config.socket)


def _placed_anyhow(arguments: argparse.Namespace) -> tuple[tuple[Path, list[Path]], list[ConfigError]]:
    """Return what `places_of` does, with the faults of the config. Raises ConfigError."""
    from kvlogd import wire
    from kvlogd.config import load_config, load_store

    if arguments.db is not None and arguments.config is None:
        return (arguments.db, wire.places(arguments.db, None)), []
    try:
        return _placed(arguments, load_config(arguments.config).store), []
    except ConfigError as fault:
        try:
            return _placed(arguments, load_store(arguments.config)), _each(fault)
        except ConfigError:
            raise fault from None


def _query(arguments: argparse.Namespace) -> str:
    if arguments.query not in (None, "-"):
        return str(arguments.query)
    if arguments.query is None and sys.stdin.isatty():
        raise ConfigError("no query", where="sql", mend="give it in quotes, or - to type it and end with ^D")
    from kvlogd.sqlgate import MAX_SQL_CHARS

    most = 4 * MAX_SQL_CHARS + 1  # bytes
    return sys.stdin.buffer.read(most).decode("utf-8", "surrogateescape")  # what is no UTF-8 is refused as such


def _sql(arguments: argparse.Namespace) -> int:
    from kvlogd import sheet
    from kvlogd.sqlgate import is_plan

    form, query = sheet.Format(arguments.format), _query(arguments)
    with _answered(arguments, query, sheet.MAX_ROWS[form]) as found:
        sheet.write(found, form, sys.stdout, plan=is_plan(query))
    return 0


@contextlib.contextmanager
def _answered(arguments: argparse.Namespace, query: str, max_rows: int) -> "Iterator[Answer]":
    """Yield the daemon's answer, or that of the file where no daemon has it."""
    from kvlogd import ask

    store, places = places_of(arguments)
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(ask.sql(places, store, query, max_rows))
        except ask.AbsentError as absent:
            found = stack.enter_context(_answered_by_file(store, query, absent))
        yield found


@contextlib.contextmanager
def _answered_by_file(path: Path, query: str, absent: "AbsentError") -> "Iterator[Answer]":
    from kvlogd import sqlgate
    from kvlogd.store import Store

    with unheld(absent), Store.open(path, read_only=True) as store, _interrupted() as started:
        sqlgate.check(query, store)
        with store.query(query, limit_s=sqlgate.LIMIT_S, started=started) as found:
            yield found


@contextlib.contextmanager
def _interrupted() -> "Iterator[Callable[[Callable[[], None]], None]]":
    """Let ^C end a query at once: the main thread is inside DuckDB and would not notice before the end.

    Raises KeyboardInterrupt at the end only: in the midst of the store it would leave locks behind.
    """
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stops: list[Callable[[], None]] = []
    hits: list[int] = []

    def watch() -> None:
        select.select([read_fd], [], [])
        for stop in stops:
            stop()

    thread = threading.Thread(target=watch, name="interrupts", daemon=True)
    thread.start()
    old_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    old = signal.signal(signal.SIGINT, lambda number, _frame: hits.append(number))
    try:
        yield stops.append
    except StoreError:
        if not hits:
            raise
    finally:
        signal.signal(signal.SIGINT, old)
        signal.set_wakeup_fd(old_fd)
        stops.clear()
        os.write(write_fd, b"\0")
        thread.join()
        os.close(read_fd)
        os.close(write_fd)
    if hits:
        raise KeyboardInterrupt


@contextlib.contextmanager
def unheld(absent: "AbsentError") -> Iterator[None]:
    """Say more of a store that is held by a process which does not answer us."""
    from kvlogd.lock import HeldError

    try:
        yield
    except HeldError as held:
        what, mend = f"{held.what} and offers no socket", "wait for it to end, or stop it"
        if absent.refusing:
            what, mend = f"{held.what}, and its socket {absent.where} is not for you", absent.mend
        raise StoreError(what, where=held.where, mend=mend) from held
    except StoreError as error:
        if absent.refusing:  # there is a daemon: what is wrong with its files for this user is no news
            raise StoreError(absent.what, where=absent.where, mend=absent.mend) from error
        raise


def _status(arguments: argparse.Namespace) -> int:
    from kvlogd import ask
    from kvlogd.status import status_text, to_json

    (store, places), faults = _placed_anyhow(arguments)
    faults = faults or _rule_faults(arguments)
    told = {"config_faults": [{"where": one.where, "what": one.what, "mend": one.mend} for one in faults]}
    try:
        status = ask.status(places, store)
    except ask.AbsentError as absent:
        if arguments.json:
            print(json.dumps({"running": False, "store": str(store), **told}, ensure_ascii=False))
        elif absent.refusing or not faults:  # else there is none because of them, or it is elsewhere
            print(f"kvlogd: {absent}")
        _refuse(faults)
        return 1
    if arguments.json:
        print(json.dumps({"running": True, **to_json(status), **told}, ensure_ascii=False))
    else:
        print(status_text(status, colour=_colour(), sparks=_sparks()))
    mend = "mend it, then `kvlogd check` and `sudo systemctl reload kvlogd`"
    _refuse(
        faults, ConfigError("the daemon lives on with what it read before, and could not start with this", mend=mend)
    )
    return 0


def _rule_faults(arguments: argparse.Namespace) -> list[ConfigError]:
    """Return what is wrong with the rules of a config that is right by itself: they are not in force."""
    from kvlogd.setup import read_setup

    if arguments.db is not None and arguments.config is None:
        return []
    try:
        read_setup(arguments.config)
    except ConfigError as fault:
        return _each(fault)
    return []


def _each(fault: ConfigError) -> list[ConfigError]:
    from kvlogd.yamlfile import FaultsError

    return list(fault.all) if isinstance(fault, FaultsError) else [fault]


def _refuse(faults: list[ConfigError], *more: ConfigError) -> None:
    """Raise FaultsError where there are faults, after what was shown."""
    if faults:
        from kvlogd.yamlfile import FaultsError

        sys.stdout.flush()
        raise FaultsError([*faults, *more])


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _sparks() -> bool:
    return sys.stdout.isatty() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _snapshot(arguments: argparse.Namespace) -> int:
    from kvlogd import ask
    from kvlogd.progress import bar

    store, places = places_of(arguments)
    target: Path = arguments.file.absolute()
    if target.exists() or target.is_symlink():
        raise StoreError("is there already", where=str(arguments.file), mend="name a new file")
    try:
        with bar("copying") as progress:
            ask.snapshot(places, store, target, progress)
    except ask.AbsentError as absent:
        _copy_of_file(store, target, absent)
    print(target)
    return 0


def _copy_of_file(path: Path, target: Path, absent: "AbsentError") -> None:
    from kvlogd import disk
    from kvlogd.store import Store

    with unheld(absent):
        disk.refuse_absent(path)
        with Store.open(path) as store:
            cast(_Copied, store).snapshot(target)
