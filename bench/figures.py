"""Sums the scores of many streams up: recall, false pages per engine-week, delay, loss, cost; and the bars for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.intervals import median_bounds, proportion, quantile, rate
from bench.scoring import WEEK_S, Question, Score
from bench.traces.labels import TraceClass

OURS, SIGHTED = "kvlogd", "kvlogd with /metrics"
"""What the shipped rules are called among the rules: on the log alone, and where the engine's /metrics is read too."""


class Judged(NamedTuple):
    """One stream, and what each rule is worth on it."""

    name: str
    trace_class: TraceClass
    profile: str
    prints_idle: bool
    up_s: float
    lines: int
    replay_cpu_s: float
    """For reading, storing and all rules together."""
    scores: Mapping[Question, Mapping[str, Score]]
    """By the name of the rule; ours is missing where no such rule is shipped."""
    rule_cpu_s: Mapping[str, float]
    bare_cpu_s: float | None = None
    """For the same replay without any rule; None on the streams where that was not measured."""


class Figures(NamedTuple):
    """What one rule is worth on some streams."""

    streams: int
    positives: int
    found: int
    false_pages: int
    clean_weeks: float
    delays_h: Sequence[float]
    losses: Sequence[float]
    cpu_s_per_week: float

    @property
    def recall(self) -> float | None:
        """Return the share of the positives that were found; None where there is none."""
        return self.found / self.positives if self.positives else None

    @property
    def false_per_week(self) -> float | None:
        """Return the false pages per clean engine-week."""
        return self.false_pages / self.clean_weeks if self.clean_weeks else None


def figures(judged: Iterable[Judged], question: Question, rule: str) -> Figures:
    """Sum up one rule over some streams, without those that count neither way."""
    pairs = [(one, one.scores[question][rule]) for one in judged if rule in one.scores[question]]
    counted = [(one, score) for one, score in pairs if score.positive is not None]
    scores = [score for _, score in counted]
    weeks = sum(one.up_s for one, _ in pairs) / WEEK_S
    spent_s = sum(one.replay_cpu_s if rule == OURS else one.rule_cpu_s[rule] for one, _ in pairs)
    return Figures(
        streams=len(scores),
        positives=sum(score.positive is True for score in scores),
        found=sum(score.hit_s is not None for score in scores),
        false_pages=sum(len(score.false_at_s) for score in scores),
        clean_weeks=sum(score.clean_s for score in scores) / WEEK_S,
        delays_h=[score.delay_s / 3600 for score in scores if score.delay_s is not None],
        losses=[score.loss for score in scores if score.loss is not None],
        cpu_s_per_week=spent_s / weeks if weeks else 0.0,
    )


def cost(judged: Sequence[Judged]) -> tuple[float, float] | None:
    """Return the CPU-seconds that an engine-week took, with all rules and without any; None: not measured."""
    both = [(one.up_s, one.replay_cpu_s, one.bare_cpu_s) for one in judged if one.bare_cpu_s is not None]
    weeks = sum(up_s for up_s, _, _ in both) / WEEK_S
    return (sum(full for _, full, _ in both) / weeks, sum(bare for _, _, bare in both) / weeks) if weeks else None


class Group(NamedTuple):
    """Some of the streams, under a name."""

    name: str
    takes: Callable[[Judged], bool]


ALL = Group("all", lambda _: True)
IDLE = Group("idle lines", lambda one: one.prints_idle)
NEVER_IDLE = Group("never idle", lambda one: not one.prints_idle)

GROUPS = {
    Question.LEAK: (ALL, IDLE, NEVER_IDLE),
    Question.RESTART_RECOVERY: (ALL,),
    Question.LATENCY_CREEP: (ALL,),
    Question.ENGINE_STALL: (ALL,),
}


class Bar(NamedTuple):
    """What a verdict must reach."""

    question: Question
    group: Group
    what: str
    value_of: Callable[[Figures], float | None]
    interval_of: Callable[[Figures], tuple[float, float]]
    """95 %."""
    limit: float
    at_least: bool = False
    rule: str = OURS

    def kept(self, value: float | None) -> bool:
        """Tell whether a figure is good enough; one that is not known is not."""
        return value is not None and (value >= self.limit if self.at_least else value <= self.limit)


def _recall(got: Figures) -> float | None:
    return got.recall


def _recall_interval(got: Figures) -> tuple[float, float]:
    return proportion(got.found, got.positives)


def _false(got: Figures) -> float | None:
    return got.false_per_week


def _false_interval(got: Figures) -> tuple[float, float]:
    return rate(got.false_pages, got.clean_weeks)


def _loss(got: Figures) -> float | None:
    return quantile(got.losses, 0.5)


def _loss_interval(got: Figures) -> tuple[float, float]:
    return median_bounds(got.losses)


def _false_of_streams(got: Figures) -> float | None:
    return got.false_pages / got.streams if got.streams else None


def _false_of_streams_interval(got: Figures) -> tuple[float, float]:
    return rate(got.false_pages, got.streams)


def _recall_bar(question: Question, group: Group, limit: float, rule: str = OURS) -> Bar:
    return Bar(question, group, "recall", _recall, _recall_interval, limit, at_least=True, rule=rule)


def _false_bar(question: Question, limit: float, rule: str = OURS) -> Bar:
    return Bar(question, ALL, "false pages per engine-week", _false, _false_interval, limit, rule=rule)


def _loss_bar(group: Group, limit: float) -> Bar:
    return Bar(Question.LEAK, group, "median share of the pool lost", _loss, _loss_interval, limit)


BARS = (
    _recall_bar(Question.LEAK, IDLE, 0.99),
    _loss_bar(IDLE, 0.04),
    _recall_bar(Question.LEAK, NEVER_IDLE, 0.85),
    _loss_bar(NEVER_IDLE, 0.10),
    _false_bar(Question.LEAK, 0.015),
    _recall_bar(Question.RESTART_RECOVERY, ALL, 0.92),
    Bar(
        *(Question.RESTART_RECOVERY, ALL, "false pages per stream"),
        *(_false_of_streams, _false_of_streams_interval, 1 / 300),
    ),
    _recall_bar(Question.LATENCY_CREEP, ALL, 0.70),
    _false_bar(Question.LATENCY_CREEP, 0.03),
    _recall_bar(Question.LATENCY_CREEP, ALL, 0.80, SIGHTED),
    _false_bar(Question.LATENCY_CREEP, 0.005, SIGHTED),
    _recall_bar(Question.ENGINE_STALL, ALL, 1.0),
    _false_bar(Question.ENGINE_STALL, 0.0),
)


class Table(NamedTuple):
    """A table of text cells with a title and a head."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


HEAD = (
    *("rule", "engines", "found", "recall [95 %]", "delay h", "lost %", "false"),
    *("weeks", "false/engine-week [95 %]", "CPU ms/day"),
)
NO_RULE = "no such rule"


def tables(judged: Sequence[Judged]) -> list[Table]:
    """Return all tables: for each question the rules side by side, then ours by class; at last the bars."""
    found = [table for question in Question for table in (_rules(judged, question), _classes(judged, question))]
    return [*found, _bars(judged)]


def rules_of(judged: Sequence[Judged], question: Question) -> list[str]:
    """Return the rules that were asked, ours first."""
    names = list(judged[0].scores[question]) if judged else []
    return sorted(names, key=lambda name: (name != OURS, name != SIGHTED))


def _rules(judged: Sequence[Judged], question: Question) -> Table:
    rows: list[list[str]] = []
    names = rules_of(judged, question)
    if OURS not in names:
        rows.append([OURS, "", NO_RULE, *[""] * (len(HEAD) - 3)])
    for name in names:
        for group in GROUPS[question]:
            got = figures(filter(group.takes, judged), question, name)
            rows.append([name, group.name, *cells(got)])
    return Table(f"{question}: the rules on the same streams", HEAD, rows)


def _classes(judged: Sequence[Judged], question: Question) -> Table:
    rows = []
    if OURS in rules_of(judged, question):
        for trace_class in TraceClass:
            of_class = [one for one in judged if one.trace_class is trace_class]
            if of_class:
                rows.append([trace_class.value, str(len(of_class)), *cells(figures(of_class, question, OURS))])
    return Table(f"{question}: {OURS} by class", ("class", "streams", *HEAD[2:]), rows)


def cells(got: Figures) -> list[str]:
    """Return figures as the cells of a row, from `found` on."""
    return [
        f"{got.found}/{got.positives}",
        _with_interval(got.recall, proportion(got.found, got.positives), 2),
        _pair(got.delays_h, 1),
        _pair([100 * loss for loss in got.losses], 1),
        str(got.false_pages),
        f"{got.clean_weeks:.1f}",
        _with_interval(got.false_per_week, rate(got.false_pages, got.clean_weeks), 3),
        f"{1000 * got.cpu_s_per_week / 7:.0f}",
    ]


def _with_interval(value: float | None, interval: tuple[float, float], digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _pair(values: Sequence[float], digits: int) -> str:
    middle, high = quantile(values, 0.5), quantile(values, 0.9)
    return "" if middle is None or high is None else f"{middle:.{digits}f} / {high:.{digits}f}"


class Held(NamedTuple):
    """A bar, and the figure that was held against it."""

    bar: Bar
    value: float | None
    interval: tuple[float, float] | None
    word: str
    """`kept`, `MISSED`, or that there is no such rule."""


def verdict_on_bars(judged: Sequence[Judged]) -> list[Held]:
    """Hold the figures of ours against each bar."""
    found: list[Held] = []
    for bar in BARS:
        if bar.rule not in rules_of(judged, bar.question):
            found.append(Held(bar, None, None, NO_RULE))
            continue
        got = figures(filter(bar.group.takes, judged), bar.question, bar.rule)
        value = bar.value_of(got)
        found.append(Held(bar, value, bar.interval_of(got), "kept" if bar.kept(value) else "MISSED"))
    return found


def _bars(judged: Sequence[Judged]) -> Table:
    rows = [
        [
            *(
                bar.question.value,
                bar.rule,
                bar.group.name,
                bar.what,
                f"{'>=' if bar.at_least else '<='} {bar.limit:.3g}",
            ),
            *("" if value is None else f"{value:.3g}", word),
            "" if interval is None else f"[{interval[0]:.3g}, {interval[1]:.3g}]",
        ]
        for bar, value, interval, word in verdict_on_bars(judged)
    ]
    return Table("The bars", ("verdict", "rules", "engines", "figure", "bar", "got", "", "95 %"), rows)
