"""The messages that are about kvlogd itself: a test, a channel that takes nothing, a rule that fails or sees nothing.

Pure. Promises as `letter` does: one line of subject, labels cleaned, the same as text and HTML.
"""

from collections.abc import Sequence

from kvlogd import notice
from kvlogd.advice import advice
from kvlogd.layout import Code, Facts, Part, Steps, Words, as_html, as_text, one_line, shortened
from kvlogd.letter import MOST_LISTED, MOST_SUBJECT, short_scope
from kvlogd.model import Fault, Letter, Outcome, Severity
from kvlogd.quantity import count_text, duration_text

_WHY = {
    Fault.REFUSED: "it refuses them",
    Fault.BUSY: "it says that there are too many",
    Fault.UNREACHABLE: "it cannot be reached",
    Fault.TIMEOUT: "it does not answer in time",
    Fault.UNUSABLE: "its URL is missing or cannot be understood",
    Fault.FAILED: "it fails",
}


def trial(channel: str, *, host: str, at_s: float) -> Letter:
    """Return the message of `kvlogd notify test`."""
    words = ("Nothing is wrong: what kvlogd finds will arrive here, and look like this.",)
    facts = (("channel", channel), ("sent", notice.clock_text(at_s)))
    title = f"test of channel {notice.label_text(channel)} by kvlogd"
    return _letter("test", title, [Words(words), Facts(facts)], None, host)


def channel_down(
    channel: str, fault: Fault, since_s: float, *, host: str, at_s: float, status: int | None = None, waiting: int = 0
) -> Letter:
    """Return the message, sent through another channel, that one takes no messages; `waiting` are kept for it."""
    name = notice.label_text(channel)
    title = f"channel {name} takes no messages: {_WHY[fault]}"
    facts = [
        ("since", f"{notice.clock_text(since_s)}, for {duration_text(max(0.0, at_s - since_s))}"),
        *([("its answer", str(status))] if status is not None else []),
        *([("kept for it", count_text(waiting, "message"))] if waiting else []),
    ]
    do = (
        advice(Outcome(fault, status)),
        f"then: kvlogd notify test {name}",
        "until then, what it would have told is told by kvlogd alerts",
    )
    return _letter("warning", title, [Facts(tuple(facts)), Steps("What to do", do)], Severity.WARNING, host)


def rule_broken(rule: str, scopes: Sequence[str], why: str, since_s: float, *, host: str, at_s: float) -> Letter:
    """Return the message that a rule fails and so can find nothing; `why` is kvlogd's own, never from a log."""
    title = f"rule {rule} fails and finds nothing{_on(scopes)}"
    facts = (
        ("since", f"{notice.clock_text(since_s)}, for {duration_text(max(0.0, at_s - since_s))}"),
        ("why", why),
        ("meanwhile", "its alerts stay as they are; all other rules go on"),
    )
    do = (
        f"kvlogd rules show {rule} says what it needs",
        "a rule of your own: kvlogd rules test tries it on written records",
        "a shipped rule: that is a fault of kvlogd, please report it",
    )
    parts = [Facts(facts), *_listed(scopes), Steps("What to do", do)]
    return _letter("warning", title, parts, Severity.WARNING, host)


def no_data(rule: str, scopes: Sequence[str], since_s: float, *, host: str, at_s: float) -> Letter:
    """Return the message that a rule has had nothing to judge for long."""
    lasted = duration_text(max(0.0, at_s - since_s))
    title = f"rule {rule} has had nothing to judge for {lasted}{_on(scopes)}"
    facts = (
        ("since", notice.clock_text(since_s)),
        ("it means", "neither that all is well nor that something is wrong"),
    )
    do: tuple[str, ...]
    if set(scopes) <= {"gpu", "host"}:
        do = (
            "kvlogd status says which GPUs and servers are read, and why none is",
            f"if there are none to watch: rules: {{disable: [{rule}]}} in the config",
        )
    else:
        do = (
            "does the engine get requests? Without any it writes nothing",
            "kvlogd status says whether its log is read",
            f"kvlogd rules show {rule} says what it looks at: that may not be in this log",
        )
    parts: list[Part] = [Facts(facts), *_listed(scopes), Steps("What to do", do), Code("More", ("kvlogd status",))]
    return _letter("no data", title, parts, Severity.WARNING, host)


def _on(scopes: Sequence[str]) -> str:
    if len(scopes) == 1:
        return f", {short_scope(scopes[0])}"
    return f" on {len(scopes):,} engines" if scopes else ""


def _listed(scopes: Sequence[str]) -> list[Part]:
    more = len(scopes) - MOST_LISTED
    if len(scopes) < 2:
        return []
    shown = (*(notice.label_text(scope) for scope in scopes[:MOST_LISTED]), *((f"and {more:,} more",) * (more > 0)))
    return [Words(shown)]


def _letter(prefix: str, title: str, parts: Sequence[Part], severity: Severity | None, host: str) -> Letter:
    place = one_line(host)
    subject = shortened(f"[{prefix}{' ' if place else ''}{place}] {title}", MOST_SUBJECT)
    last = "kvlogd" + (f" on {place}" if place else "")
    return Letter(one_line(subject), as_text(title, parts, last), as_html(title, parts, last, severity), severity)
