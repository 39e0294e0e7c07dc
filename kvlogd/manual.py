"""The man page and the shells' completions, made from the commands' own parser. Pure, but for shtab.

Promises that each command and each option stands in both, because nothing is written twice.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
_FILES = (
    ("/etc/kvlogd/kvlogd.yaml", "the config; without it all logs in /var/log/vllm are watched"),
    ("/var/lib/kvlogd/kvlogd.duckdb", "the store"),
    ("/var/lib/kvlogd/export/", "a Parquet file for each day and table"),
    ("/run/kvlogd/kvlogd.sock", "where the daemon answers"),
)
_Parser = argparse.ArgumentParser


def completion(parser: _Parser, shell: str) -> str:
    """Return the script that completes the commands in a shell."""
    import shtab

    for one in _all(parser):
        for action in one._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told
    text: str = shtab.complete(parser, shell)
    return text


def page(parser: _Parser, version: str) -> str:
    """Return the man page as roff."""
    lines = [
        f'.TH KVLOGD 1 "" "kvlogd {version}" "User Commands"',
        ".SH NAME", rf"kvlogd \- {_escaped(_lowered(parser.description or ''))}",
        ".SH SYNOPSIS", r".B kvlogd", r"[\fB\-\-version\fR] \fICOMMAND\fR ...",
        ".SH COMMANDS",
    ]  # fmt: skip
    for one in _all(parser):
        if one is not parser and not _below(one):
            lines += _command(one)
    lines.append(".SH FILES")
    for path, what in _FILES:
        lines += [".TP", rf"\fI{_escaped(path)}\fR", _escaped(what)]
    lines += [".SH EXIT STATUS", _escaped((parser.epilog or "").removeprefix("exit status: ")), ".SH SEE ALSO"]
    lines.append(r"\fBsystemctl\fR(1), \fBjournalctl\fR(1), \fBlogrotate\fR(8)")
    return "\n".join(lines) + "\n"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _all(parser: _Parser) -> Iterator[_Parser]:
    """Yield a parser and all below it, in their order."""
    yield parser
    for one in _below(parser):
        yield from _all(one)


def _below(parser: _Parser) -> list[_Parser]:
    choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [one for each in choices for one in each.values()]


def _command(one: _Parser) -> Iterator[str]:
    actions = [action for action in one._actions if action.dest != "help"]
    words = " ".join(_word(action) for action in actions)
    yield ".SS " + _escaped(one.prog)
    yield rf"\fB{_escaped(one.prog)}\fR {words}".rstrip()
    if one.description:
        yield ".PP"
        yield _escaped(one.description)
    for action in actions:
        if action.help:
            yield ".TP"
            yield _named(action)
            yield _escaped(action.help)
    if one.epilog:
        yield ".PP"
        yield _escaped(one.epilog[:1].upper() + one.epilog[1:]) + "."


def _word(action: argparse.Action) -> str:
    """Return how an option or argument stands in the synopsis."""
    if not action.option_strings:
        many = action.nargs in ("*", "+")
        word = _value(action) + (" ..." if many else "")
        return f"[{word}]" if action.nargs in ("?", "*") else word
    return f"[{_named(action)}]"


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    name = rf"\fB{_escaped(action.option_strings[-1])}\fR"
    return name if action.nargs == 0 else f"{name} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(rf"\fB{_escaped(str(choice))}\fR" for choice in action.choices) + "}"
    return rf"\fI{_escaped(str(action.metavar or action.dest.upper()))}\fR"


def _escaped(text: str) -> str:
    """Return text that roff prints as it is, on one line."""
    plain = " ".join((text or "").replace("%%", "%").split())
    safe = plain.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{safe}" if safe.startswith((".", "'")) else safe
