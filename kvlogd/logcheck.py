"""Looks at one log as `kvlogd doctor` does: can it be read, is it fresh, are its records there, how is it rotated.

Reads the last megabytes only, through the same pipeline as a replay, into a store that is gone afterwards.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from kvlogd.checkup import Item, Mark
from kvlogd.errors import KvlogdError
from kvlogd.model import Severity
from kvlogd.notice import clock_text, label_text, subject
from kvlogd.outcome import Outcome, SourceReport, episodes_in
from kvlogd.quantity import count_text, duration_text, size_text
from kvlogd.replay import Options, opened_store, replay
from kvlogd.rights import closed_at
from kvlogd.rotation import CONFIGS, rotating
from kvlogd.rules import Rule
from kvlogd.source import rotation_of, shown

LAST_BYTES = 2 << 20
STALE_S = 900.0
"""A log that was not written for so long is worth a look; an idle engine may be as silent."""
LONG_INTERVAL_S = 60.0
AHEAD_S = 120.0
ZONE_STEP_S, ZONE_SLACK_S = 1800.0, 120.0
"""Zones differ by half-hours: a log whose last stamp misses its file's own time by such a step has another zone."""
HIDDEN = ("/tmp/", "/var/tmp/")  # noqa: S108 - read, not written
"""Folders of which the unit has its own."""


class Looked(NamedTuple):
    """What was seen of one log."""

    items: list[Item]
    verdict: list[str]


def look(
    name: str,
    log: Path,
    rules: Sequence[Rule],
    zone: tzinfo,
    wall_s: float,
    *,
    groups: frozenset[int] | None = None,
    configs: tuple[Path, ...] = CONFIGS,
) -> Looked:
    """Return how a log fares; `groups` are those of the service's user, None where it need not be asked for."""
    try:
        status = log.stat()
    except OSError as error:
        why = error.strerror or "no possible path"
        return Looked([Item(f"{name}: file", Mark.FAIL, f"{shown(str(log))}: {why}", "check the path")], [])
    items = [*_rights(name, log, groups), *_fresh(name, log, status, wall_s)]
    if any(item.mark is Mark.FAIL for item in items) or not stat.S_ISREG(status.st_mode) or not status.st_size:
        return Looked(items, [])
    looked = judged(name, log, rules, zone, wall_s, written_s=status.st_mtime)
    return Looked([*items, *looked.items, *_rotation(name, log, configs)], looked.verdict)


def judged(
    name: str,
    log: Path,
    rules: Sequence[Rule],
    zone: tzinfo,
    wall_s: float,
    *,
    written_s: float | None = None,
    last_bytes: int | None = LAST_BYTES,
    within: str = size_text(LAST_BYTES),
    where: str = "",
) -> Looked:
    """Return what the end of a log says, and the rules of it.

    `written_s` is when it was written last, where its stamps could miss that; `where` is how it is called where that
    is not its path.
    """
    options = Options(zone, last_bytes=last_bytes)
    with opened_store(None) as store:
        outcome = replay([log], rules, store, options)
        times = [row[0] for row in store.read("SELECT epoch(ts) FROM samples ORDER BY run_id, ts")]
    items: list[Item] = []
    for report in outcome.sources:
        items += [*_records(name, report, outcome, within), *_interval(name, times)]
        items += _clock(name, report, written_s, wall_s)
    link = f"{name}: {'journal' if where else 'file'}"
    items += [Item(link, Mark.FAIL, _told(error, where), error.mend) for error in outcome.errors]
    return Looked(items, list(_verdict(name, outcome)))


def _told(error: KvlogdError, where: str) -> str:
    place = where or error.where
    return f"{place}: {error.what}" if place else error.what


def _rights(name: str, log: Path, groups: frozenset[int] | None) -> Iterator[Item]:
    """Tell whether the service's user can open a log: as root one can oneself."""
    if str(log).startswith(HIDDEN):
        mend = "move it, or give the unit BindReadOnlyPaths= for it: systemctl edit kvlogd"
        yield Item(f"{name}: rights", Mark.WARN, f"{shown(str(log))}: the service has a /tmp of its own", mend)
    elif groups is not None:
        closed = closed_at(log, groups)
        if closed is not None:
            needed = "rx" if closed.is_dir() else "r"
            mend = f"chgrp adm {closed} && chmod g+{needed} {closed}, in logrotate's `create` too"
            yield Item(f"{name}: rights", Mark.FAIL, f"{shown(str(closed))}: the service's user cannot read it", mend)
    elif not os.access(log, os.R_OK):
        yield Item(f"{name}: rights", Mark.FAIL, f"{shown(str(log))}: you cannot read it", "run this as root")


def _fresh(name: str, log: Path, status: os.stat_result, wall_s: float) -> Iterator[Item]:
    age_s, link = wall_s - status.st_mtime, f"{name}: file"
    what = f"{shown(str(log))}: {size_text(status.st_size)}, written {duration_text(max(age_s, 0))} ago"
    if not status.st_size:
        yield Item(link, Mark.WARN, f"{shown(str(log))}: empty", "wait for vLLM, or see where it writes to")
    elif age_s > STALE_S:
        yield Item(link, Mark.WARN, what, "does vLLM still run, and write there? an idle one writes nothing either")
    else:
        yield Item(link, Mark.OK, what)


def _records(name: str, report: SourceReport, outcome: Outcome, within: str) -> Iterator[Item]:
    link = f"{name}: records"
    if report.stats_lines:
        versions = sorted({run.vllm_version for run in outcome.runs if run.vllm_version})
        engines = count_text(report.engines, "engine")
        by = f"{engines}, vLLM {', '.join(versions)}" if versions else engines
        yield Item(link, Mark.OK, f"{count_text(report.stats_lines, 'record')} in the last {within}, {by}")
    elif report.blind:
        yield Item(link, Mark.FAIL, "no stats record", report.blind)
    if report.unparsed_stats_lines:
        what = f"{count_text(report.unparsed_stats_lines, 'stats line')} of a shape that kvlogd does not know"
        yield Item(
            f"{name}: dialect", Mark.FAIL, what, "see whether a newer kvlogd reads this vLLM; else report the line"
        )
    elif report.stats_lines:
        yield Item(f"{name}: dialect", Mark.OK, "every stats line was understood")


def _interval(name: str, times: Sequence[float]) -> Iterator[Item]:
    steps = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    if len(steps) >= 3:
        interval_s = median(steps)
        mark = Mark.WARN if interval_s > LONG_INTERVAL_S else Mark.OK
        mend = "set VLLM_LOG_STATS_INTERVAL to 10" if mark is Mark.WARN else ""
        yield Item(f"{name}: interval", mark, f"a record every {duration_text(interval_s)}", mend)


def _clock(name: str, report: SourceReport, written_s: float | None, wall_s: float) -> Iterator[Item]:
    """Tell of a zone or a clock that is wrong: by the last stamp and the time of the file."""
    if report.last_s is None or not report.stats_lines:
        return
    written_s = report.last_s if written_s is None else written_s
    link, off_s = f"{name}: clock", report.last_s - written_s
    steps = round(off_s / ZONE_STEP_S)
    is_zone = steps and abs(off_s - steps * ZONE_STEP_S) <= ZONE_SLACK_S and abs(steps) <= 28
    if is_zone and (report.last_s > wall_s + AHEAD_S or (off_s < 0 and wall_s - written_s < STALE_S)):
        way = "ahead of" if off_s > 0 else "behind"
        what = f"its stamps are {duration_text(abs(off_s))} {way} the file's own time"
        yield Item(link, Mark.WARN, what, "write `timezone:` for this source")
    elif report.last_s > wall_s + AHEAD_S:
        what = f"its newest record lies {duration_text(report.last_s - wall_s)} in the future"
        yield Item(link, Mark.FAIL, what, "set this host's clock, or write `timezone:` for this source")
    else:
        age = duration_text(max(wall_s - report.last_s, 0))
        yield Item(link, Mark.OK, f"its newest record is of {clock_text(report.last_s)}, {age} ago")


def _rotation(name: str, log: Path, configs: tuple[Path, ...]) -> Iterator[Item]:
    link, how = f"{name}: rotation", rotating(log, configs)
    if how is None:
        older = any(rotation_of(path)[0] == log and path != log for path in log.parent.iterdir())
        what = "by a program that keeps older files beside it" if older else "none that can be seen"
        yield Item(link, Mark.OK, what)
    elif how.copytruncate:
        mend = "vLLM cannot reopen its log: write through a program that can, or to the journal"
        yield Item(link, Mark.WARN, f"{how.config}: copytruncate loses lines at each rotation", mend)
    elif how.packs_at_once:
        mend = "add delaycompress, so that kvlogd has read a file before it is packed"
        yield Item(link, Mark.WARN, f"{how.config}: compresses at once", mend)
    else:
        yield Item(link, Mark.OK, f"{how.config}: by renaming, nothing is lost")


def _verdict(name: str, outcome: Outcome) -> Iterator[str]:
    """Yield what the rules say of the end of a log; that nothing was found is no clean bill."""
    standing = [one.fired for one in episodes_in(outcome.alerts) if one.over is None]
    for event in standing:
        yield f"{event.severity.upper()} {name}: {subject(event)}"
    for report in outcome.sources:
        if report.stats_lines and report.first_s is not None and report.last_s is not None:
            span = duration_text(report.last_s - report.first_s)
            loud = [event for event in standing if event.severity is not Severity.INFO]
            missing = sorted({rule for rule, _, _ in report.abstained})
            unsure = f"; too little to judge {', '.join(missing)}" if missing else ""
            found = "" if loud else "nothing found; "
            yield f"{label_text(name)}: {found}{count_text(report.stats_lines, 'record')} of {span} judged{unsure}"
