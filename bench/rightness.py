"""Shows figures: as aligned text, and as the page `docs/rightness.md`."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from bench.figures import OURS, SIGHTED, Judged, Table, cost, rules_of, tables
from bench.scoring import Question


class Made(NamedTuple):
    """How figures came about."""

    command: str
    seed: int
    traces: int
    version: str
    """Of kvlogd, with the date of its last change."""


def as_text(table: Table) -> str:
    """Return a table with its columns aligned."""
    lines = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table.title, *(f"  {line}" for line in shown)])


def as_markdown(table: Table) -> str:
    """Return a table for a page."""
    rule = ["---"] * len(table.head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (table.head, rule, *table.rows))


def wrong(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield a line for each miss and each false page of ours, with /metrics and without."""
    for question in Question:
        for rule in (OURS, SIGHTED):
            if rule in rules_of(judged, question):
                yield from _wrong(judged, question, rule)


def _wrong(judged: Sequence[Judged], question: Question, rule: str) -> Iterator[str]:
    for one in judged:
        score = one.scores[question].get(rule)
        if score is None:
            continue
        kind = f"{one.name} ({one.profile}) by {rule}"
        if score.positive and score.hit_s is None:
            yield f"{question}: missed in {kind}"
        for at_s in score.false_at_s:
            yield f"{question}: false in {kind} at {at_s / 3600:.2f} h"


DEFINITIONS = """\
**Streams.** One stream is one engine of a simulated vLLM, from hours to nine days, written as the log that a vLLM 0.32
would print and read by `kvlogd replay`'s own code. Half of the logs give the size of the pool in their start-up lines,
half of the servers are pid 1 in each life, one in ten loses 2 to 30 % of its lines. The simulator is in `bench/traces`:
FCFS admission, chunked prefill, preemption with recompute, shared system prompts, agents whose context stays cached,
aborts, queue time-outs, late frees of prefill/decode pairs, restarts, hangs. At a day's peak 0.15 to 1.5 requests a
second come.

**Found.** A stream is a leak if 5 % of its pool was lost at some time, a creep if its steps took 15 % longer, a case of
restart-recovery if two of its lives got that bad and were ended by a restart, a stall if its engine hung with requests
in it. Streams that come near (1 to 5 % lost, 5 to 15 % slower, one bad life, a hang of an idle engine) count neither
way, nor do those that got so bad only after their log's last line.

**False.** A page is false if it begins while nothing was lost (steps are less than 5 % slower; no bad life has ended;
requests move) in this life of the process. Pages of one verdict within six hours are one. Weeks are those in which a
page would have been false.

**Delay** runs from the first lost block (5 % slower, the end of the first bad life, the hang) of that life. **Lost** is
the worst share of the pool so far, in earlier lives too (of creep: how much slower). Both as median / 90th percentile.

**With /metrics**, on each second trace of a class, each interval is followed by a page: exact usage, counters, and the
time between two tokens.

**CPU.** Of kvlogd for reading, storing and all rules together (with /metrics: without storing); of the others for
their rule alone, on numbers that lie in memory. The others see the exact usage every ten seconds, which the log does
not give.
"""


def _cost(judged: Sequence[Judged]) -> Iterator[str]:
    found = cost(judged)
    if found is not None:
        full, bare = found
        yield (
            f"A replay took {full:.1f} CPU-seconds an engine-week, {full - bare:.1f} of them for the rules "
            f"({1000 * full / 7:.0f} and {1000 * (full - bare) / 7:.0f} ms an engine-day)."
        )


def page(judged: Sequence[Judged], made: Made) -> str:
    """Return `docs/rightness.md`."""
    weeks = sum(one.up_s for one in judged) / (7 * 86400)
    *by_question, bars = tables(judged)
    mistakes = [f"- {line}" for line in wrong(judged)] or ["- none"]
    parts = [
        "# How right the verdicts are, measured",
        f"Made by `{made.command}` with kvlogd {made.version}: seed {made.seed}, {made.traces} traces, {len(judged)} "
        f"engine streams, {weeks:.0f} engine-weeks. Do not edit: run the command again. These figures rank designs "
        "and show failure modes; they are not field rates.",
        *_cost(judged),
        "## The bars",
        "A figure can keep its bar by luck: where the interval reaches across it, the traces were too few to tell.",
        as_markdown(bars),
        *(part for table in by_question if table.rows for part in (f"## {table.title}", as_markdown(table))),
        "## What was wrong",
        "`python -m bench.traces CLASS SEED NUMBER ENGINE` prints the log of a stream.",
        "\n".join(mistakes),
        "## What the words mean",
        DEFINITIONS.rstrip(),
    ]
    return "\n\n".join(parts) + "\n"
