"""The words of a finding: the subject that wakes somebody, the evidence, what to do.

Pure. Every number comes from the finding's evidence; the only text from outside is the engine's label, cleaned.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from kvlogd.model import AlertEvent, AlertState
from kvlogd.quantity import about_text, count_text, duration_text, share_text

EVIDENCE = {
    "shift": ("usage above its own past at the same load", "share"),
    "shift_error": ("standard error of that", "share"),
    "lost_per_h": ("lost an hour", "points"),
    "usage_now": ("pool in use now", "share"),
    "idle_usage": ("pool in use with nothing running", "share"),
    "lowest_idle_usage": ("lowest idle usage of this run", "share"),
    "busy_usage": ("lowest usage at work, before", "share"),
    "running_low": ("compared at running, from", "count"),
    "running_high": ("compared at running, to", "count"),
    "compared_s": ("seen over", "duration"),
    "lasted_s": ("seen over", "duration"),
    "spells": ("idle spells in a row that stayed above", "count"),
    "turnovers": ("times that the requests were replaced meanwhile", "count"),
    "tokens_lost": ("tokens lost", "count"),
    "blocks_lost": ("blocks lost", "count"),
    "tokens_held": ("tokens held by nobody", "count"),
    "blocks_held": ("blocks held by nobody", "count"),
    "requests_ended": ("requests that ended meanwhile", "count"),
    "requests_given_up": ("of them given up by their clients", "count"),
    "blocks_per_request": ("blocks lost for each request that ended", "each"),
    "tokens_per_request": ("tokens lost for each request that ended", "each"),
    "blocks_per_given_up": ("blocks lost for each that was given up", "each"),
    "tokens_per_given_up": ("tokens lost for each that was given up", "each"),
    "given_up_error": ("give or take", "share"),
    "token_s": ("a token of one request takes", "time"),
    "token_before_s": ("and took at no less load before", "time"),
    "slower": ("longer by", "share"),
    "running": ("requests running", "count"),
    "waiting": ("requests waiting", "count"),
    "lives": ("lives that went the same way", "count"),
    "life_s": ("a life lasts about", "duration"),
    "lost": ("pool in use at its end, above its beginning", "share"),
    "next_in_s": ("until the next restart is due", "duration"),
    "silent_s": ("time since the last stats record", "duration"),
    "generation_tps": ("tokens generated a second", "count"),
    "gpu_work": ("share of that time in which its GPU computed", "share"),
    "frozen_for": ("records repeat bit by bit since", "duration"),
    "blind_for": ("no stats record for", "duration"),
    "log_stopped_for": ("/metrics counts tokens, the log has no record of them for", "duration"),
    "metrics_frozen_for": ("the log tells of tokens, /metrics counts none for", "duration"),
    "unread_share": ("stats-like lines that could not be read", "share"),
    "standstill_for": ("no throughput for", "duration"),
    "events": ("events in the span", "count"),
    "queued": ("requests in the queue, of late", "count"),
    "beside": ("requests running beside it", "count"),
    "queue_per_h": ("queue grows an hour by", "count"),
    "wait_s": ("wait that the queue means", "duration"),
    "full_for": ("time spent full, of late", "duration"),
    "pool_tokens": ("tokens that the pool holds", "count"),
    "longest_tokens": ("tokens that one request may have", "count"),
    "tokens_each": ("KV tokens of each request", "count"),
    "evictions": ("requests evicted", "count"),
    "evictions_per_min": ("evicted a minute", "count"),
    "evictions_seen": ("requests seen to go back to the queue", "count"),
    "lost_work": ("share of the work that is lost", "share"),
    "usual_tps": ("usual at this load", "count"),
    "hit_rate": ("prefix-cache hit rate now", "share"),
    "usual_hit_rate": ("usual hit rate", "share"),
    "usual_running": ("usual requests running", "count"),
    "prompts_each": ("prompt tokens for each generated one", "number"),
    "usual_prompts_each": ("usual prompt tokens for each generated one", "number"),
    "own_pace": ("tokens a second for each request", "number"),
    "siblings_pace": ("the same on its siblings", "number"),
    "own_held": ("share of the pool for each request", "share"),
    "siblings_held": ("the same on its siblings", "share"),
    "siblings": ("siblings compared with", "count"),
    "siblings_running": ("requests running on its siblings", "count"),
    "moved": ("moved over the span", "number"),
    "grown_mib": ("grown by, MiB", "count"),
    "grown_mib_per_h": ("grows an hour by, MiB", "count"),
    "used_mib": ("memory now, MiB", "count"),
    "total_mib": ("memory of the device, MiB", "count"),
    "limit_mib": ("memory that it may have, MiB", "count"),
    "others_grown_mib": ("of that, other processes than the engines', MiB", "count"),
    "other_pid": ("largest of them, process", "plain"),
    "oom_kills": ("processes killed for want of memory", "count"),
    "lost_for": ("cannot be read since", "duration"),
    "own_clock_mhz": ("its clock, MHz", "count"),
    "siblings_clock_mhz": ("clock of its siblings, MHz", "count"),
    "util": ("share of the time that kernels run", "share"),
    "temperature_c": ("its temperature, Celsius", "count"),
    "siblings_temperature_c": ("temperature of its siblings, Celsius", "count"),
    "held_back": ("share of the time that heat or power held it back", "share"),
}
"""Evidence that is shown, in this order: its words and its unit."""


NO_WORK, MUCH_WORK = 0.05, 0.5
MINUS = "\N{MINUS SIGN}"
FEW_RUNNING = 2.0
"""Below so many running on average it is luck whether a record sees any."""


def when_text(at_s: float) -> str:
    """Return a time as RFC 3339 with its offset, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


def clock_text(at_s: float) -> str:
    """Return a time for people: date, time, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def label_text(label: str) -> str:
    """Return a label fit for a terminal and a chat: a log may be called anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in label)[:120]


def finite(evidence: Mapping[str, float]) -> dict[str, float]:
    """Return the evidence without what is no number; nothing can be said of it."""
    return {name: value for name, value in evidence.items() if math.isfinite(value)}


def subject(event: AlertEvent) -> str:
    """Return the one line that says which engine, how fast and until when."""
    return f"{event.key.rule} {label_text(event.key.scope)}: {_headline(event)}"


def _headline(event: AlertEvent) -> str:
    if event.state is AlertState.RESOLVED:
        return f"over after {duration_text(event.at_s - event.since_s)} ({event.reason})"
    evidence = finite(event.evidence)
    for needed, words in _HEADLINES:
        if needed <= evidence.keys():
            return words(event, evidence)
    named = [name for name in evidence if name != "bound"]
    return ", ".join(f"{name} {evidence[name]:.4g}" for name in named[:3]) or "found"


def _one_number(name: str) -> Callable[[AlertEvent, Mapping[str, float]], str]:
    words, unit = EVIDENCE[name]
    return lambda _event, evidence: f"{words} {_number(evidence[name], unit)}"


def _leak(event: AlertEvent, evidence: Mapping[str, float]) -> str:
    low, high = evidence["running_low"], evidence["running_high"]
    load = f"{low:.0f}" if high - low < 1 else f"{low:.0f} to {high:.0f}"
    rate = points_per_hour(-evidence["lost_per_h"])
    return (
        f"free blocks {rate} at {load} running for {duration_text(event.at_s - event.since_s)}{_until_full(evidence)}"
    )


def _residue(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    held = share_text(evidence["idle_usage"])
    spells = count_text(round(evidence["spells"]), "idle spell")
    return f"{held} of the pool held with nothing running, over {spells}{_until_full(evidence)}"


def _stall(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    work = f"{evidence['running']:.0f} running and {evidence['waiting']:.0f} waiting"
    moves = "hardly anything moves" if evidence.get("generation_tps") else "nothing moves"
    computed = evidence.get("gpu_work")
    gpu = "" if computed is None else f"; {_computed(computed)}"
    return f"{moves} with {work}, last record {duration_text(evidence['silent_s'])} ago{gpu}"


def _computed(share: float) -> str:
    if share >= MUCH_WORK:
        return "its GPU is busy: perhaps a very long prefill"
    return "its GPU computes nothing" if share < NO_WORK else f"its GPU computed {share_text(share)} of the time"


def _creep(event: AlertEvent, evidence: Mapping[str, float]) -> str:
    spread = round(evidence.get("running_spread", 0.0))
    # where one request or none runs, "0 running" would be a puzzle
    running = f"{evidence['running']:.{0 if evidence['running'] >= FEW_RUNNING else 1}f}"
    running += f"±{spread}" if spread else ""
    now, before = time_text(evidence["token_s"]), time_text(evidence["token_before_s"])
    lasted = duration_text(event.at_s - event.since_s)
    return f"{now} a token at {running} running, was {before}; +{100 * evidence['slower']:.0f} % for {lasted}"


def _queue(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    per_min = evidence["queue_per_h"] / 60
    growth = f"; {per_min:.1f} more a minute" if per_min >= 0.1 else "; it does not drain"
    wait = f", a wait of about {about_text(evidence['wait_s'])}" if "wait_s" in evidence else ""
    return (
        f"{evidence['queued']:.0f} waiting beside {evidence['beside']:.0f} running for "
        f"{duration_text(evidence['lasted_s'])}, pool {share_text(evidence['usage_now'])} full{wait}{growth}"
    )


def _busy(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    return f"pool full for {duration_text(evidence['full_for'])} of late, and what comes is served"


def _too_long(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    return (
        f"{evidence['queued']:.0f} waiting and none running: a request may have {evidence['longest_tokens']:,.0f} "
        f"tokens, the pool holds {evidence['pool_tokens']:,.0f}"
    )


def _evicted(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    lost = f"; {share_text(evidence['lost_work'])} of the work is done again" if "lost_work" in evidence else ""
    return f"{evidence['evictions_per_min']:.0f} requests a minute evicted with {evidence['running']:.0f} running{lost}"


def _slowed(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    return (
        f"{evidence['generation_tps']:.0f} tokens/s where {evidence['usual_tps']:.0f} are usual at this load, requests "
        f"go back to the queue, pool {share_text(evidence['usage_now'])} full"
    )


def _hit_rate(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    now, usual = share_text(evidence["hit_rate"]), share_text(evidence["usual_hit_rate"])
    return (
        f"hit rate {now} where {usual} was usual; {evidence['prompts_each']:.1f} prompt tokens computed for each "
        f"generated one, {evidence['usual_prompts_each']:.1f} before"
    )


def _slow_rank(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    siblings = count_text(round(evidence["siblings"]), "sibling")
    return (
        f"{evidence['own_pace']:.1f} tokens/s for each request, {evidence['siblings_pace']:.1f} on {siblings}, at "
        f"{evidence['running']:.0f} running beside {evidence['siblings_running']:.0f}"
    )


def _full_rank(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    siblings = count_text(round(evidence["siblings"]), "sibling")
    return (
        f"{share_text(evidence['own_held'])} of the pool for each request, {share_text(evidence['siblings_held'])} on "
        f"{siblings}, at {evidence['running']:.0f} running beside {evidence['siblings_running']:.0f}"
    )


def _recovery(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    lives = f"{count_text(round(evidence['lives']), 'life', 'lives')} of about {about_text(evidence['life_s'])} each"
    if "lost" in evidence:
        ill = f"lost {100 * evidence['lost']:.0f} % of the pool"
    elif "slower" in evidence:
        ill = f"got {100 * evidence['slower']:.0f} % slower"
    else:
        ill = "died or stood still at the end"
    following = f"; next in about {about_text(evidence['next_in_s'])}" if "next_in_s" in evidence else ""
    return f"{lives} {ill}{following}"


def _growth(event: AlertEvent, evidence: Mapping[str, float]) -> str:
    rate, now = f"+{evidence['grown_mib_per_h']:,.0f} MiB/h", f"{evidence['used_mib'] / 1024:.1f}"
    most = evidence.get("total_mib", evidence.get("limit_mib"))
    of = f"{now} GiB" if most is None else f"{now} of {most / 1024:.1f} GiB"
    whose = f", process {evidence['other_pid']:.0f} and no engine" if "other_pid" in evidence else ""
    lasted = duration_text(event.at_s - event.since_s)
    return f"memory {rate} for {lasted}{whose}; {of}{_until_full(evidence)}"


def _slow_gpu(_event: AlertEvent, evidence: Mapping[str, float]) -> str:
    siblings = count_text(round(evidence["siblings"]), "sibling")
    held = evidence.get("held_back", 0.0)
    why = f"; heat or power holds it back {share_text(held)} of the time" if held else ""
    return (
        f"runs at {evidence['own_clock_mhz']:.0f} MHz, {siblings} as busy at {evidence['siblings_clock_mhz']:.0f}{why}"
    )


def _until_full(evidence: Mapping[str, float]) -> str:
    if "full_in_s" not in evidence:
        return ""
    about = f"; full in about {about_text(evidence['full_in_s'])}"
    if not {"full_in_low_s", "full_in_high_s"} <= evidence.keys():
        return about
    low, high = about_text(evidence["full_in_low_s"]), about_text(evidence["full_in_high_s"])
    return f"{about} ({low} to {high})" if low != high else about


_ONE_NUMBER = (
    "oom_kills", "lost_for", "frozen_for", "log_stopped_for", "metrics_frozen_for", "blind_for", "unread_share",
)  # fmt: skip
_HEADLINES = (
    ({"shift", "lost_per_h", "running_low", "running_high"}, _leak),
    ({"idle_usage", "spells"}, _residue),
    ({"lives", "life_s"}, _recovery),
    ({"crashed"}, lambda _event, _evidence: "the engine core is dead"),
    ({"silent_s", "running", "waiting"}, _stall),
    ({"token_s", "token_before_s", "slower", "running"}, _creep),
    ({"queued", "beside", "queue_per_h", "lasted_s", "usage_now"}, _queue),
    ({"queued", "longest_tokens", "pool_tokens"}, _too_long),
    (
        {"full_for"},
        lambda _, facts: f"pool full for {duration_text(facts['full_for'])} of late, and what comes is served",
    ),
    ({"evictions_per_min", "running"}, _evicted),
    ({"generation_tps", "usual_tps", "usage_now"}, _slowed),
    ({"hit_rate", "usual_hit_rate", "prompts_each", "usual_prompts_each"}, _hit_rate),
    ({"own_pace", "siblings_pace", "siblings", "siblings_running", "running"}, _slow_rank),
    ({"own_held", "siblings_held", "siblings", "siblings_running", "running"}, _full_rank),
    ({"grown_mib_per_h", "used_mib"}, _growth),
    ({"own_clock_mhz", "siblings_clock_mhz", "siblings"}, _slow_gpu),
    *(({name}, _one_number(name)) for name in _ONE_NUMBER),
)
"""What is said of a finding, by the evidence that it takes to say it."""


def points_per_hour(share_per_h: float) -> str:
    """Return a speed in percentage points an hour, with its sign."""
    points = 100 * share_per_h
    digits = 0 if abs(points) >= 100 else 1
    return f"{MINUS if points < 0 else '+'}{abs(points):.{digits}f} points/h"


def time_text(time_s: float) -> str:
    """Return a short time: `24 ms`, `1.8 s`."""
    if time_s >= 1:
        return f"{time_s:.1f} s"
    return f"{1000 * time_s:.0f} ms" if time_s >= 0.01 else f"{1000 * time_s:.1f} ms"


def _number(value: float, unit: str) -> str:
    if unit == "each":
        return f"{value:.2g}" if value < 10 else f"{value:,.0f}"
    if unit == "time":
        return time_text(value)
    if unit == "share":
        return share_text(value)
    if unit == "points":
        return f"{100 * value:.1f} points"
    if unit == "duration":
        return duration_text(value)
    if unit == "plain":
        return f"{value:.0f}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def evidence_lines(evidence: Mapping[str, float]) -> list[str]:
    """Return the evidence as aligned lines."""
    known = finite(evidence)
    shown = [(words, _number(known[name], unit)) for name, (words, unit) in EVIDENCE.items() if name in known]
    width = max((len(words) for words, _ in shown), default=0)
    return [f"{words:<{width}}  {number}" for words, number in shown]


def double_quoted(text: str) -> str:
    """Return text as one word of a shell: SQL is full of single quotes, so that double ones read better."""
    return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'
