"""The sending child: `python -m kvlogd.sender` reads messages from its input and writes what became of each.

The only module that knows Apprise, which takes 45 MiB and a second to load. Promises: values in a message arrive as
visible text, whatever they hold; no redirect is followed, nothing is fetched from elsewhere; Apprise neither waits nor
tries again by itself; it logs nothing, so that no URL gets anywhere; when its input ends, the child ends, in the midst
of a send too. Does not promise to come back from a send: its parent ends it when it takes too long.
"""

import gc
import logging
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from typing import IO, Any

from apprise import (
    Apprise,
    AppriseAsset,
    AppriseAttachment,
    NotificationManager,
    NotifyFormat,
    NotifyType,
    OverflowMode,
    PersistentStoreMode,
)
from apprise.attachment.memory import AttachMemory

from kvlogd.layout import with_picture
from kvlogd.model import Fault, Letter, Outcome, Panel, Severity
from kvlogd.parcel import Flaw, Parcel, Warm, Word, pack_flaws, pack_word, unpack
from kvlogd.reply import Ear, listen

CONNECT_S, READ_S = 5.0, 10.0
"""How long a connection and each read may take where the channel's URL does not say (?cto=, ?rto=)."""
LONGEST_S = 15.0
"""What a URL may ask for at most; it must be well below the parent's patience."""
MAX_TEXT, MAX_SUBJECT = 30_000, 250
MAX_SLACK, MAX_BLOCK, MAX_HEADER = 8000, 3000, 150
"""Characters that Slack shows of a message, and takes of a block (?blocks=yes) and of a header."""
PICTURE = "kvlogd.png"
CUT = "\n… cut here: kvlogd alerts shows the rest"
_TYPES = {
    Severity.CRITICAL: NotifyType.FAILURE,
    Severity.WARNING: NotifyType.WARNING,
    Severity.INFO: NotifyType.INFO,
    None: NotifyType.SUCCESS,
}
_LOST_WAY = (Fault.UNREACHABLE, Fault.TIMEOUT)
"""Where one recipient of a mail meets these, the others would."""
_DRAWING = (ImportError, ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError, MemoryError)
"""A picture that cannot be drawn must not keep a message from being sent."""


def main() -> None:
    """Do as the parent says until it is gone."""
    _shield()
    out = _own_output()
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen_to_parent, args=(lines,), name="parent", daemon=True).start()
    ear = Ear()
    listen(ear)
    while True:
        answer = _answered(lines.get(), ear)
        out.write(answer)
        out.flush()
        gc.collect()  # charts are full of circles: 50 MiB of them would pile up


def _shield() -> None:
    """Keep signals to the daemon's group from ending a send halfway, secrets out of core dumps, and all logs silent."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)


def _own_output() -> IO[bytes]:
    """Take standard output for the answers alone: a library that prints must not spoil them."""
    own = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return os.fdopen(own, "wb")


def _listen_to_parent(lines: "queue.SimpleQueue[bytes]") -> None:
    """Hand on what the parent says; end the process with it, for a send that hangs never comes back to look."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _answered(line: bytes, ear: Ear) -> bytes:
    given = unpack(line)
    if isinstance(given, Parcel):
        return pack_word(send(given, ear))
    if isinstance(given, Warm):
        _prepare(given.url)
        return pack_word(Word(Outcome(None)))
    return pack_flaws({name: flaw for name, url in given.items() if (flaw := flaw_of(url)) is not None})


def _prepare(url: str) -> None:
    """Load what a message to a URL will need: on a busy host that takes longer than the sending."""
    plugin = _plugin(url)
    if plugin is not None and _takes_picture(plugin):
        with suppress(*_DRAWING):
            from kvlogd import picture

            picture.prepare()


def flaw_of(url: str) -> Flaw | None:
    """Return what is wrong with a URL; None where Apprise can make a channel of it."""
    if _plugin(url) is not None:
        return None
    schema = url.partition("://")[0].lower()
    return Flaw.URL if schema in NotificationManager().schemas() else Flaw.SCHEMA


def _plugin(url: str) -> Any:
    """Return the way to a URL, without anything that sleeps, follows, fetches or excuses."""
    asset = AppriseAsset(
        app_id="kvlogd",
        app_desc="kvlogd",
        image_url_mask="",  # Slack, Discord and others would show pictures from github.com
        async_mode=False,
        service_timeout=0,  # no worker that could be left behind: the whole process is ended
        http_redirects=False,
        storage_mode=PersistentStoreMode.MEMORY,
    )
    plugin: Any = Apprise.instantiate(url, asset=asset)
    if plugin is None:
        return None
    # the throttle measures by the host's clock: set back by an hour, it slept for an hour
    plugin.request_rate_per_sec = 0
    plugin.redirects = False
    plugin.retry = 0
    plugin.optional = False
    plugin.overflow_mode = OverflowMode.TRUNCATE
    plugin.socket_connect_timeout = _patience(plugin, "socket_connect_timeout", CONNECT_S)
    plugin.socket_read_timeout = _patience(plugin, "socket_read_timeout", READ_S)
    if _is(plugin, "mailto"):
        plugin.inline = True  # the chart is seen without a click
    else:
        plugin.notify_format = _safest(plugin.notify_format)
    if _is(plugin, "slack"):
        plugin.include_footer = plugin.include_image = False
    return plugin


def _safest(formats: Any) -> tuple[NotifyFormat, ...]:
    """Return the one format to use, whatever the URL says: as Markdown, Slack got `<!channel` with its bracket."""
    offered = formats if isinstance(formats, tuple | list) else (formats,)
    return next(((one,) for one in (NotifyFormat.TEXT, NotifyFormat.HTML) if one in offered), tuple(offered))


def _patience(plugin: Any, name: str, ours_s: float) -> float:
    """Return what the URL asked for, within limits; ours where it asked for nothing."""
    asked = getattr(plugin, name)
    if not isinstance(asked, int | float) or asked == getattr(type(plugin), name):
        return ours_s
    return min(max(float(asked), 0.1), LONGEST_S)


def _is(plugin: Any, schema: str) -> bool:
    return schema in plugin.schemas()


def send(parcel: Parcel, ear: Ear) -> Word:
    """Send one message and return what became of it."""
    plugin = _plugin(parcel.url)
    if plugin is None:
        return Word(Outcome(Fault.UNUSABLE))
    way = Apprise()
    way.add(plugin)
    picture = _picture(plugin, parcel.panel)
    given = {**_content(plugin, parcel.letter, has_picture=picture is not None), "attach": picture}
    outcomes: list[Outcome] = []
    reached = set(parcel.reached)
    for number in _recipients(plugin, parcel.reached):
        ear.begin()
        outcomes.append(ear.outcome(taken=bool(way.notify(**given))))
        if outcomes[-1].fault is None:
            reached.add(number)
        elif outcomes[-1].fault in _LOST_WAY:
            break
    return Word(_worst(outcomes), tuple(sorted(reached)))


def _recipients(plugin: Any, reached: Sequence[int]) -> Iterator[int]:
    """Turn to one recipient of a mail after the other; where there are none to choose from, to all at once.

    Apprise tells only whether all were reached: who was, would get the mail again because of who was not.
    """
    everybody = list(plugin.targets) if _is(plugin, "mailto") else []
    if len(everybody) < 2:
        yield 0
        return
    for number, one in enumerate(everybody):
        if number not in reached:
            plugin.targets = [one]
            yield number


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that is worth another try, else any that failed, else the last."""
    failed = sorted((one for one in outcomes if one.fault is not None), key=lambda one: one.fault is Fault.REFUSED)
    return (failed or outcomes or [Outcome(None)])[0 if failed else -1]


def _content(plugin: Any, letter: Letter, *, has_picture: bool) -> dict[str, Any]:
    """Return what Apprise is given: always text, which it makes safe for the service, but for mail."""
    title = _subject(letter.subject, MAX_HEADER if _is(plugin, "slack") else MAX_SUBJECT)
    most = min(plugin.body_maxlen, MAX_TEXT)
    content = {"title": title, "notify_type": _TYPES[letter.severity]}
    text, html = _clean(letter.text).strip("\n"), _html(letter, has_picture=has_picture)
    if _takes_html(plugin) and len(html) <= most:
        _put_beside_html(plugin, text)
        return {**content, "body": html, "body_format": NotifyFormat.HTML}
    if _is(plugin, "slack"):
        most = MAX_BLOCK if plugin.use_blocks else MAX_SLACK
    return {**content, "body": _cut(text, most) or title, "body_format": NotifyFormat.TEXT}


def _subject(text: str, most: int) -> str:
    """Return one line."""
    line = " ".join(_clean(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _html(letter: Letter, *, has_picture: bool) -> str:
    """Return the HTML of a mail, with the chart in its place: Apprise would put it behind the page."""
    page = _clean(letter.html)
    shown = f'<p><img src="cid:{PICTURE}" alt="chart" style="max-width:100%"></p>'
    return with_picture(page, shown) if has_picture else page


def _clean(text: str) -> str:
    """Return a text without characters that command a terminal or turn the writing round."""
    return "".join(char if char == "\n" or char.isprintable() else " " for char in text)


def _takes_html(plugin: Any) -> bool:
    return _is(plugin, "mailto") and plugin.resolve_format(NotifyFormat.HTML) is NotifyFormat.HTML


def _put_beside_html(plugin: Any, text: str) -> None:
    """Let the plain part of a mail be our own text: Apprise makes one out of the HTML, with a line for each cell."""
    vars(sys.modules[type(plugin).__module__])["convert_between"] = lambda *_given: text


def _cut(text: str, most: int) -> str:
    """Return as much of a text as a service takes, once < > & have become longer."""
    most -= len(escape(text, quote=False)) - len(text)
    return text if len(text) <= most else text[: max(0, most - len(CUT))] + CUT


def _takes_picture(plugin: Any) -> bool:
    return bool(plugin.attachment_support) and not (_is(plugin, "slack") and plugin.mode != "bot")


def _picture(plugin: Any, panel: Panel | None) -> AppriseAttachment | None:
    """Return the chart where the channel delivers it: a Slack webhook takes it, and drops it in silence."""
    if panel is None or not _takes_picture(plugin):
        return None
    try:
        from kvlogd.picture import png  # matplotlib takes a second: only where there is something to draw

        drawn = png(panel)
    except _DRAWING:
        return None
    if drawn is None:
        return None
    attachment = AppriseAttachment()
    attachment.add(AttachMemory(content=drawn, name=PICTURE, mimetype="image/png"))
    return attachment


if __name__ == "__main__":
    main()
