"""Measure how right kvlogd's verdicts are, on labelled traces of a simulated vLLM, beside the rules of today.

Run it as `python bench/verdicts.py`, in an environment that has kvlogd. Exit status 1 means that a bar was missed.
Deterministic in its seed but for the CPU times.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC
from functools import cache
from pathlib import Path

from bench.figures import OURS, SIGHTED, Judged, tables, verdict_on_bars
from bench.rightness import Made, as_text, page, wrong
from bench.rivals import RIVALS
from bench.scoring import IDLE_LINES_SHARE, VERDICTS, Page, Question, idle_share, score, truth_of
from bench.scraped import watched
from bench.traces.classes import draw
from bench.traces.labels import TICK_S, Stream, TraceId, mixed
from bench.traces.logline import START, START_S, lines
from bench.traces.server import run
from kvlogd import __version__
from kvlogd.model import AlertEvent, Severity
from kvlogd.outcome import episodes_in
from kvlogd.replay import Options, opened_store, replay
from kvlogd.rules import Rule, load_rules, shipped_folder

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "rightness.md"
TRACES = 320
SEED = 2026
WATCHED = {0, 3, 4, 7}
"""Of each eight traces of a class those that are read with /metrics too: odd and even ones, for the classes vary so."""
BARE = {0, 3}
"""Of each eight traces of a class those that are replayed without rules too, for what these cost."""
PAGES = {Severity.WARNING, Severity.CRITICAL}


@cache
def rules_in(folder: Path | None) -> tuple[Rule, ...]:
    """Return the shipped rules, or those of another folder in their place."""
    return load_rules([folder or shipped_folder()])


def replayed(stream: Stream, rules: Sequence[Rule]) -> tuple[dict[Question, list[Page]], float]:
    """Return the pages of `kvlogd replay` on a stream, for each question, and the CPU-seconds that it took."""
    with tempfile.TemporaryDirectory(prefix="kvlogd-bench-") as folder:
        log = Path(folder) / "vllm.log"
        with log.open("w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in lines(stream))
        began_s = time.process_time()
        with opened_store(None) as store:
            outcome = replay([log], rules, store, Options(UTC, START.year))
        spent_s = time.process_time() - began_s
    if outcome.errors:
        raise outcome.errors[0]
    return pages_in(outcome.alerts, stream.ticks[-1].at_s), spent_s


def pages_in(events: Sequence[AlertEvent], end_s: float) -> dict[Question, list[Page]]:
    """Return the pages among alert events, for each question, on a stream that ends at a time of the trace."""
    pages: dict[Question, list[Page]] = {question: [] for question in Question}
    for fired, over in episodes_in(events):
        for question, verdicts in VERDICTS.items():
            if fired.severity in PAGES and fired.verdict in verdicts:
                pages[question].append(Page(fired.at_s - START_S, over.at_s - START_S if over else end_s))
    return pages


def judge(trace: TraceId, folder: Path | None) -> list[Judged]:
    """Make a trace and return what each rule is worth on each of its engines."""
    return [judged(stream, rules_in(folder)) for stream in run(draw(trace))]


def judged(stream: Stream, rules: Sequence[Rule]) -> Judged:
    """Return what each rule is worth on a stream."""
    ours, replay_s = replayed(stream, rules)
    told = {OURS: ours}
    scores, spent_s = {}, {}
    if stream.trace.number % 8 in WATCHED:
        events, spent_s[SIGHTED] = watched(stream, rules)
        told[SIGHTED] = pages_in(events, stream.ticks[-1].at_s)
    shipped = {rule.verdict for rule in rules}
    for question in Question:
        truth = truth_of(question, stream)
        by_ours = {name: score(truth, pages[question]) for name, pages in told.items()}
        scores[question] = by_ours if VERDICTS[question] & shipped else {}
        for name, rival in RIVALS[question].items():
            began_s = time.process_time()
            pages = rival(stream)
            spent_s[name] = time.process_time() - began_s
            scores[question][name] = score(truth, pages)
    return Judged(
        name=stream.name,
        trace_class=stream.trace.trace_class,
        profile=stream.profile,
        prints_idle=idle_share(stream) >= IDLE_LINES_SHARE,
        up_s=float(TICK_S * sum(tick.up for tick in stream.ticks)),
        lines=sum(tick.printed for tick in stream.ticks),
        replay_cpu_s=replay_s,
        scores=scores,
        rule_cpu_s=spent_s,
        bare_cpu_s=replayed(stream, ())[1] if stream.trace.number % 8 in BARE else None,
    )


def judge_all(traces: Sequence[TraceId], folder: Path | None, jobs: int) -> list[Judged]:
    """Judge all traces, several at a time; the order is that of the traces, whoever is ready first."""
    began_s, done = time.monotonic(), 0
    found: dict[int, list[Judged]] = {}
    with ProcessPoolExecutor(jobs) as executor:
        waiting = {executor.submit(judge, trace, folder): number for number, trace in enumerate(traces)}
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            done += 1
            left_min = (time.monotonic() - began_s) / done * (len(traces) - done) / 60
            say(f"\r{done}/{len(traces)} traces, {left_min:.0f} min left ", end="")
    say("")
    return [one for number in sorted(found) for one in found[number]]


def as_json(judged: Sequence[Judged], made: Made) -> str:
    """Return everything as one JSON object: how it was made, the bars, the tables and each stream's scores."""
    return json.dumps(
        {
            "made": made._asdict(),
            "bars": [
                {"verdict": held.bar.question, "engines": held.bar.group.name, "figure": held.bar.what}
                | {"bar": held.bar.limit, "got": held.value, "interval": held.interval, "result": held.word}
                for held in verdict_on_bars(judged)
            ],
            "tables": [table._asdict() for table in tables(judged)],
            "wrong": list(wrong(judged)),
            "streams": [dict(plain(one)) for one in judged],
        }
    )


def plain(one: Judged) -> Iterator[tuple[str, object]]:
    """Yield the fields of a stream with its scores as objects of their own."""
    yield from one._asdict().items()
    yield (
        "scores",
        {
            question: {name: given._asdict() for name, given in by_rule.items()}
            for question, by_rule in one.scores.items()
        },
    )


def version() -> str:
    """Return kvlogd's version, where git knows it the date of its last change, and which Python runs it."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs", "--", "kvlogd", "rules"]
    on = f" on {platform.python_implementation()} {platform.python_version()}"
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return __version__ + on
    date = asked.stdout.strip()
    return (f"{__version__} of {date}" if date else __version__) + on


def say(text: str, end: str = "\n") -> None:
    """Tell on stderr what happens."""
    print(text, file=sys.stderr, end=end, flush=True)


def main() -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure how right kvlogd's verdicts are, on simulated traces.")
    parser.add_argument("--traces", type=int, default=TRACES, metavar="N", help=f"about so many (default: {TRACES})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help=f"of the traces (default: {SEED})")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    parser.add_argument(
        "--rules", type=Path, metavar="DIR", help="judge the rules of this folder, not the shipped ones"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--write", action="store_true", help="write docs/rightness.md")
    options = parser.parse_args()
    traces = mixed(options.seed, options.traces)
    found = judge_all(traces, options.rules, max(1, options.jobs))
    command = f"python bench/verdicts.py --traces {options.traces} --seed {options.seed}"
    made = Made(command, options.seed, len(traces), version())
    if options.write:
        PAGE.write_text(page(found, made), encoding="utf-8")
    if options.json:
        print(as_json(found, made))
    else:
        print("\n\n".join(map(as_text, tables(found))))
        print("\n".join(["", "What was wrong", *(f"  {line}" for line in wrong(found))]))
    return 1 if any(held.word == "MISSED" for held in verdict_on_bars(found)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
