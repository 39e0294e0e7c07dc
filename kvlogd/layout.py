"""One content, two looks: the parts of a message as plain text and as HTML. Pure.

Promises that text and HTML say the same, that every value is escaped in HTML and can neither steer a terminal nor break
a line, and that the text stays within a length: whole parts are left out, the last line never is.
The HTML has inline styles only and colours that can be read on white and on black; it loads nothing.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

from kvlogd.model import Severity

MOST_CHARS = 2900
"""Slack shows some 3,000 characters of a message without folding it away."""
_TONES = {Severity.CRITICAL: "#d0431b", Severity.WARNING: "#b07a00", Severity.INFO: "#3f7fb8", None: "#2a9170"}
_FONT = "font:15px/1.45 -apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_MONO = "font:13px/1.4 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere"
_QUIET = "color:#808890"
_FROM, _TO = "<!--chart-->", "<!--/chart-->"
"""Around the chart of text. No value can hold them: it is escaped."""


class Facts(NamedTuple):
    """What is known, as names and values."""

    rows: tuple[tuple[str, str], ...]


class Words(NamedTuple):
    """Some sentences, each on a line of its own."""

    lines: tuple[str, ...]


class Steps(NamedTuple):
    """What to do, in order."""

    title: str
    lines: tuple[str, ...]


class Code(NamedTuple):
    """What is to be copied, or looks right with letters of one width only."""

    title: str
    lines: tuple[str, ...]


class Chart(NamedTuple):
    """A chart of text; in HTML a picture may take its place."""

    title: str
    lines: tuple[str, ...]


Part = Facts | Words | Steps | Code | Chart


def one_line(text: str) -> str:
    """Return the text without anything that is not printed: no line break, no escape, no override."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shortened(text: str, most: int) -> str:
    """Return the text, cut at its end where it is too long."""
    return text if len(text) <= most else text[: most - 1].rstrip(" ;,:") + "…"


def as_text(title: str, parts: Sequence[Part], last: str, most: int = MOST_CHARS) -> str:
    """Return the plain text. Parts that do not fit are left out and said to be."""
    kept = [one_line(title)]
    left_out = "(more: kvlogd alerts)"
    room = most - len(kept[0]) - len(last) - len(left_out) - 6
    missing = False
    for part in parts:
        text = _text(part)
        if len(text) + 2 <= room:
            kept.append(text)
            room -= len(text) + 2
        else:
            missing = True
    return "\n\n".join([*kept, *([left_out] if missing else []), one_line(last)]) + "\n"


def _text(part: Part) -> str:
    match part:
        case Facts(rows):
            return "\n".join(f"{one_line(name)}: {one_line(value)}" for name, value in rows)
        case Words(lines):
            return "\n".join(map(one_line, lines))
        case Steps(title, lines):
            return "\n".join([f"{title}:", *(f"{i}. {one_line(line)}" for i, line in enumerate(lines, 1))])
        case Code(title, lines) | Chart(title, lines):
            return "\n".join([f"{title}:", *(f"  {one_line(line)}" for line in lines)])


def as_html(title: str, parts: Sequence[Part], last: str, severity: Severity | None) -> str:
    """Return the same as a page that mail readers show, on a phone too."""
    tone = _TONES[severity]
    body = "".join(_html(part) for part in parts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escaped(title)}</title></head><body style="margin:0;padding:12px">'
        f'<div style="max-width:640px;border-left:5px solid {tone};padding:0 0 0 14px;{_FONT}">'
        f'<p style="margin:0 0 14px;font-size:17px;font-weight:600;overflow-wrap:anywhere">{escaped(title)}</p>'
        f'{body}<p style="margin:16px 0 0;font-size:13px;{_QUIET}">{escaped(last)}</p></div></body></html>\n'
    )


def escaped(text: str) -> str:
    """Return a text as HTML, also fit for an attribute."""
    return html.escape(one_line(text), quote=True)


def _html(part: Part) -> str:
    match part:
        case Facts(rows):
            body = "".join(_row(name, value) for name, value in rows)
            return f'<table style="border-collapse:collapse;margin:0 0 14px;{_FONT}">{body}</table>'
        case Words(lines):
            return "".join(f'<p style="margin:0 0 8px;overflow-wrap:anywhere">{escaped(line)}</p>' for line in lines)
        case Steps(title, lines):
            steps = "".join(f'<li style="margin:0 0 4px">{escaped(line)}</li>' for line in lines)
            return f'{_heading(title)}<ol style="margin:0 0 14px;padding-left:22px">{steps}</ol>'
        case Code(title, lines):
            look = f"margin:0 0 14px;padding:8px 10px;background:rgba(127,127,127,.14);border-radius:5px;{_MONO}"
            return f'{_heading(title)}<pre style="{look}">{chr(10).join(map(escaped, lines))}</pre>'
        case Chart(title, lines):
            return f"{_FROM}{_html(Code(title, lines))}{_TO}"


def with_picture(page: str, picture: str) -> str:
    """Return a page with an HTML picture in the place of its chart of text, or at its end where it has none."""
    before, start, rest = page.partition(_FROM)
    if start:
        return before + picture + rest.partition(_TO)[2]
    before, end, rest = page.partition("</body>")
    return f"{before}{picture}{end}{rest}"


def _heading(title: str) -> str:
    return f'<p style="margin:0 0 4px;font-weight:600">{escaped(title)}</p>'


def _row(name: str, value: str) -> str:
    # names in grey above their values where there is no room beside them would need a style sheet, which mails lack
    return (
        f'<tr><td style="padding:1px 14px 1px 0;vertical-align:top;{_QUIET}">{escaped(name)}</td>'
        f'<td style="padding:1px 0;vertical-align:top;overflow-wrap:anywhere">{escaped(value)}</td></tr>'
    )
