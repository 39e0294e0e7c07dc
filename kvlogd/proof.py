"""The SQL behind a finding: one query for each kind of evidence, that computes its main numbers from the store again.

Pure. Promises a single SELECT that `kvlogd sql` takes, short enough to paste from a phone, about the very life of the
engine and the very time that the evidence is about. Where a number comes out of a robust fit or of blocks of records
(a leak's shift, the usual pace), the query shows the plain means and medians that it rests on: near it, not equal.
Tells of an alert as it was when it fired: what is repeated or over has newer evidence than its beginning.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import ceil, floor

from kvlogd.model import AlertEvent
from kvlogd.notice import FEW_RUNNING, finite
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE
from kvlogd.rules import Rule

SPELLS_SHOWN, RECORDS_SHOWN = 40, 12
V0_STEP = 50
"""V0 warns of every fiftieth preemption only."""

_LAST_S = 253_402_214_400.0
"""The last day that a calendar of four digits knows."""

Facts = Mapping[str, float]


def sql_for(event: AlertEvent, rule: Rule | None = None) -> str:
    """Return the query behind a finding: that of its rule if it asks one of its own, else that of its evidence.

    Evidence without a query of its own shows the records from half an hour before it began.
    """
    own = rule.query if rule is not None else None
    if own is not None:
        return one_line(own.at(event.at_s)) or _records(event)
    facts = finite(event.evidence)
    if event.source in (GPU_SOURCE, HOST_SOURCE):
        return _beside(event, facts)
    # a rule about a life asks for its records; one about an engine or a source has no life to ask for
    for needed, words in _OF_A_LIFE if event.key.run is not None else _OF_MORE:
        if needed <= facts.keys():
            return words(event, facts)
    return _records(event)


def one_line(query: str) -> str | None:
    """Return a query in one line; None where a comment behind one of its lines would swallow the rest."""
    lines = [line for line in query.splitlines() if not line.lstrip().startswith("--")]
    return None if "--" in "".join(lines) else " ".join(" ".join(lines).split()).rstrip("; ")


def stamp(at_s: float, *, up: bool = False) -> str:
    """Return a time as a literal of SQL, to the millisecond where it has some; rounded down, or up for an end."""
    whole_ms = (ceil if up else floor)(round(min(max(at_s, 0.0), _LAST_S) * 1000, 3))
    when = datetime.fromtimestamp(whole_ms / 1000, UTC)
    return f"'{when:%Y-%m-%d %H:%M:%S}{f'.{whole_ms % 1000:03}' if whole_ms % 1000 else ''}Z'"


def text(label: str) -> str:
    """Return a label as a literal of SQL. One that cannot be printed matches nothing, and steers nothing either."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in label)
    return "'" + clean.replace("'", "''") + "'"


def _between(start_s: float, end_s: float) -> str:
    return f"ts BETWEEN {stamp(start_s)} AND {stamp(end_s, up=True)}"


def _life(event: AlertEvent) -> str:
    return f"samples WHERE run_id = {event.key.run}"


def _since(event: AlertEvent) -> str:
    # a record of the very moment was not read yet when it was judged
    return f"{_life(event)} AND ts >= {stamp(event.since_s)} AND ts < {stamp(event.at_s, up=True)}"


def _records(event: AlertEvent) -> str:
    span = _between(event.since_s - 1800, event.at_s + 1800)
    whose = f"run_id = {event.key.run}" if event.key.run is not None else f"engine = {text(event.key.scope)}"
    return f"SELECT ts, running, waiting, generation_tps, kv_usage FROM kv WHERE {whose} AND {span} ORDER BY ts"


def _beside(event: AlertEvent, facts: Facts) -> str:
    """Return the query about what is read beside the log: of a GPU, or of the memory of a server."""
    span = f"ts >= {stamp(event.since_s)} AND ts <= {stamp(event.at_s, up=True)}"
    if event.source == HOST_SOURCE:
        name, place = "rss_mib", f"host_samples WHERE coalesce(source, 'host') = {text(event.key.scope)} AND {span}"
    else:
        name, place = (
            "memory_used_mib",
            f"gpu_samples WHERE gpu = {text(event.key.scope.removeprefix('gpu/'))} AND {span}",
        )
    if "grown_mib" in facts:
        return (
            f"SELECT arg_max({name}, ts) AS used_mib, used_mib - arg_min({name}, ts) AS grown_mib, "
            f"3600 * regr_slope({name}, epoch(ts)) AS grown_mib_per_h, count(*) AS n FROM {place}"
        )
    if "own_clock_mhz" in facts:
        return (
            "SELECT gpu, median(sm_clock_mhz) AS clock_mhz, avg(util_share) AS util, "
            f"median(temperature_c) AS temperature_c, count(*) AS n FROM gpu_samples WHERE {span} "
            "GROUP BY gpu ORDER BY gpu"
        )
    return f"SELECT * FROM {place} ORDER BY ts DESC LIMIT {RECORDS_SHOWN}"


def _leak(event: AlertEvent, facts: Facts) -> str:
    last_s, length_s, apart_s = facts["last_s"], facts["stretch_s"], facts["apart_s"]
    span_h = min(apart_s, facts["compared_s"] / 0.75) / 3600
    then_s, now_s = last_s - apart_s, last_s - length_s
    before, after = f"ts <= {stamp(then_s, up=True)}", f"ts >= {stamp(now_s)}"
    return (
        f"SELECT running, count(*) AS n, median(kv_usage) FILTER ({before}) AS usage_then, "
        f"median(kv_usage) FILTER ({after}) AS usage_now, usage_now - usage_then AS shift, "
        f"shift / {span_h:.4g} AS lost_per_h FROM {_life(event)} AND running > 0 AND "
        f"{_between(then_s - length_s, last_s)} AND ({before} OR {after}) "
        f"GROUP BY running HAVING n > 3 AND shift IS NOT NULL ORDER BY running"
    )


def _idle(event: AlertEvent, facts: Facts) -> str:
    # /metrics says exactly what the log rounds
    columns = f"ts, kv_usage, running + waiting AS busy FROM {{}} WHERE run_id = {event.key.run}"
    at_work, until = "", f"ts <= {stamp(event.at_s, up=True)}"
    if "busy_usage" in facts:
        busy = f"run_id = {event.key.run} AND running + waiting > 0 AND {until}"
        at_work = f", (SELECT min(kv_usage) FROM samples WHERE {busy}) AS busy_usage"
    both = f"SELECT NULL AS exact, {columns.format('samples')} UNION ALL SELECT kv_usage, {columns.format('scrapes')}"
    return (
        "SELECT min(ts) AS since, count(*) AS records, coalesce(min(exact), min(kv_usage)) AS idle_usage, "
        f"min(coalesce(min(exact), min(kv_usage))) OVER () AS lowest_idle_usage{at_work} "
        f"FROM (SELECT *, sum((busy > 0)::INT) OVER (ORDER BY ts) AS spell FROM ({both}) "
        f"WHERE {until}) WHERE busy = 0 GROUP BY spell ORDER BY since DESC LIMIT {SPELLS_SHOWN}"
    )


def _stall(event: AlertEvent, _facts: Facts) -> str:
    at = stamp(event.at_s, up=True)
    return (
        f"SELECT ts, running, waiting, kv_usage AS usage_now, generation_tps, epoch(TIMESTAMPTZ {at}) - epoch(ts) "
        f"AS silent_s FROM {_life(event)} AND ts < {at} ORDER BY ts DESC LIMIT {RECORDS_SHOWN}"
    )


def _crash(event: AlertEvent, _facts: Facts) -> str:
    span = _between(event.since_s - 600, event.at_s)
    return f"SELECT ts, kind FROM events WHERE run_id = {event.key.run} AND {span} ORDER BY ts"


def _creep(event: AlertEvent, facts: Facts) -> str:
    last_s = facts["last_s"]
    now = _between(last_s - facts["lasted_s"], last_s)
    least = 0.95 * (facts["running"] - facts.get("running_spread", 0.0)) - 0.5
    # of few that run, a record sees none or some by luck: those that saw some are no fair sample
    least = least if facts["running"] >= FEW_RUNNING else 0.0
    # where requests come at a rate of their own, a slow engine has more of them: there it is the work that compares
    work = 0.95 * facts["running"] / max(1e-9, facts["token_s"])
    own = f"{_life(event)} AND ts <= {stamp(last_s, up=True)}"
    return (
        f"SELECT {now} AS now, sum(running) / sum(generation_tps) AS token_s, avg(running) AS running, count(*) AS n "
        f"FROM {own} AND generation_tps > 0 AND kv_usage < 0.9 AND (running >= {max(0.0, least):.3g} OR "
        f"generation_tps >= {work:.3g}) AND ({now} OR "
        f"ts < (SELECT min(ts) + (max(ts) - min(ts)) / 3 FROM {own})) GROUP BY ALL ORDER BY now"
    )


def _queue(event: AlertEvent, facts: Facts) -> str:
    return (
        "SELECT avg(q) FILTER (half = 2) AS queued, avg(running) FILTER (half = 2) AS beside, "
        f"(queued - avg(q) FILTER (half = 1)) * 7200 / {facts['lasted_s']:.6g} AS queue_per_h, "
        "arg_max(kv_usage, ts) AS usage_now FROM (SELECT ts, kv_usage, running, waiting - coalesce(deferred, 0) AS q, "
        f"ntile(2) OVER (ORDER BY ts) AS half FROM {_since(event)})"
    )


def _too_long(event: AlertEvent, _facts: Facts) -> str:
    return (
        "SELECT ts, waiting AS queued, running, kv_usage, max_model_len AS longest_tokens, kv_tokens AS pool_tokens "
        f"FROM samples JOIN runs USING (run_id) WHERE run_id = {event.key.run} AND "
        f"ts < {stamp(event.at_s, up=True)} ORDER BY ts DESC LIMIT {RECORDS_SHOWN}"
    )


def _busy(event: AlertEvent, _facts: Facts) -> str:
    return (
        "SELECT sum(step * 0.5 ** ((epoch(last) - epoch(ts)) / 900)) FILTER (kv_usage >= 0.95 AND step <= 60) "
        "AS full_for, arg_max(kv_usage, ts) AS usage_now FROM (SELECT ts, kv_usage, max(ts) OVER () AS last, "
        f"epoch(ts) - lag(epoch(ts)) OVER (ORDER BY ts) AS step FROM {_since(event)})"
    )


def _evicted(event: AlertEvent, facts: Facts) -> str:
    span_s = 60 * facts["evictions"] / facts["evictions_per_min"] if facts["evictions_per_min"] else 60.0
    span = _between(event.since_s, event.since_s + span_s)
    return (
        f"SELECT coalesce(sum(preemptions), 0) + {V0_STEP} * any_value(warned) AS evictions, "
        f"evictions / {span_s / 60:.4g} AS evictions_per_min, avg(running) AS running, avg(kv_usage) AS usage_now "
        f"FROM (SELECT count(*) AS warned FROM events WHERE run_id = {event.key.run} AND kind = 'preempt_v0' "
        f"AND {span}), {_life(event)} AND {span}"
    )


def _slowed(event: AlertEvent, facts: Facts) -> str:
    calm = f"{_life(event)} AND ts < {stamp(event.since_s)} AND waiting = 0 AND running >= {0.8 * facts['running']:.3g}"
    return (
        "SELECT sum(greatest(0, least(gone, came))) AS evictions_seen, "
        f"avg(generation_tps) FILTER (ts >= {stamp(event.at_s - 90)}) AS generation_tps, "
        "avg(running) AS running, avg(kv_usage) AS usage_now, "
        f"(SELECT median(generation_tps) FROM {calm}) AS usual_tps "
        "FROM (SELECT *, lag(running) OVER (ORDER BY ts) - running AS gone, "
        f"waiting - lag(waiting) OVER (ORDER BY ts) AS came FROM {_since(event)})"
    )


def _hit_rate(event: AlertEvent, _facts: Facts) -> str:
    now = f"ts > {stamp(event.at_s - 120)}"
    return (
        f"SELECT {now} AS now, arg_max(prefix_hit_rate, ts) AS hit_rate, median(prefix_hit_rate) AS median_hit_rate, "
        "avg(running) AS running, sum(prompt_tps) / sum(generation_tps) AS prompts_each "
        f"FROM {_life(event)} AND running > 0 AND (ts <= {stamp(event.since_s, up=True)} OR "
        f"{_between(event.at_s - 120, event.at_s)}) GROUP BY ALL ORDER BY now"
    )


def _skew(event: AlertEvent, facts: Facts) -> str:
    end_s = event.since_s + facts["lasted_s"] - 0.001
    return (
        "SELECT engine, avg(generation_tps) / avg(running) AS pace, avg(kv_usage) / avg(running) AS held, "
        "avg(running) AS running, avg(kv_usage) AS usage_now, count(*) AS n FROM kv JOIN engines USING (engine_id) "
        f"WHERE source = {text(event.source)} AND ts BETWEEN {stamp(event.since_s)} AND {stamp(end_s)} "
        "GROUP BY engine ORDER BY engine"
    )


def _passed(event: AlertEvent) -> str:
    """Return how long before a finding the first of the rows was, in seconds."""
    return f"epoch(TIMESTAMPTZ {stamp(event.at_s, up=True)}) - epoch(min(ts))"


def _frozen(event: AlertEvent, _facts: Facts) -> str:
    return (
        f"SELECT {_passed(event)} AS frozen_for, count(*) AS records, "
        "count(DISTINCT (prompt_tps, generation_tps, running, waiting, kv_usage)) AS different "
        f"FROM {_since(event)}"
    )


def _unlogged(event: AlertEvent, _facts: Facts) -> str:
    at = stamp(event.at_s, up=True)
    return (
        f"SELECT {_passed(event)} AS log_stopped_for, sum(generation_tokens) AS tokens, "
        f"(SELECT max(ts) FROM {_life(event)} AND ts < {at}) AS last_record FROM scrapes "
        f"WHERE run_id = {event.key.run} AND ts >= {stamp(event.since_s)} AND ts < {at}"
    )


def _unscraped(event: AlertEvent, _facts: Facts) -> str:
    return (
        f"SELECT {_passed(event)} AS metrics_frozen_for, avg(generation_tps) AS generation_tps "
        f"FROM {_since(event)} AND generation_tps + prompt_tps > 0"
    )


def _counted(event: AlertEvent, _facts: Facts) -> str:
    span = _between(event.since_s, event.at_s)
    return f"SELECT kind, count(*) AS n FROM events WHERE run_id = {event.key.run} AND {span} GROUP BY kind ORDER BY n"


def _lives(event: AlertEvent, _facts: Facts) -> str:
    token = "sum(running) FILTER (part = {0}) / sum(generation_tps) FILTER (part = {0})"  # noqa: S105
    return (
        "SELECT any_value(started) AS began, epoch(max(ts)) - epoch(began) AS life_s, "
        "median(kv_usage) FILTER (part = 1) AS usage_first, median(kv_usage) FILTER (part = 4) AS usage_last, "
        f"{token.format(1)} AS token_s_first, {token.format(4)} AS token_s_last, any_value(end_reason) AS ended FROM "
        "(SELECT *, ntile(4) OVER (PARTITION BY run_id ORDER BY ts) AS part FROM kv JOIN runs USING (run_id) "
        f"WHERE engine = {text(event.key.scope)} AND {_between(event.since_s, event.at_s)}) "
        "GROUP BY run_id ORDER BY began"
    )


def _blind(event: AlertEvent, _facts: Facts) -> str:
    at = stamp(event.at_s, up=True)
    return (
        f"SELECT kind, max(ts) AS since, epoch(TIMESTAMPTZ {at}) - epoch(max(ts)) AS blind_for FROM events "
        f"WHERE kind IN ('args', 'stats_disabled', 'server_ready') AND ts <= {at} GROUP BY kind"
    )


def _unread(event: AlertEvent, _facts: Facts) -> str:
    return f"SELECT reason, sum(lines) AS lines FROM gaps WHERE source = {text(event.source)} GROUP BY reason"


_OF_A_LIFE: tuple[tuple[set[str], Callable[[AlertEvent, Facts], str]], ...] = (
    ({"shift", "apart_s", "last_s", "stretch_s", "compared_s"}, _leak),
    ({"shift", "last_s", "stretch_s"}, _idle),
    ({"idle_usage", "spells"}, _idle),
    ({"crashed"}, _crash),
    ({"silent_s", "running", "waiting"}, _stall),
    ({"token_s", "token_before_s", "last_s", "lasted_s", "running"}, _creep),
    ({"queued", "beside", "queue_per_h", "lasted_s"}, _queue),
    ({"queued", "longest_tokens"}, _too_long),
    ({"full_for"}, _busy),
    ({"evictions", "evictions_per_min"}, _evicted),
    ({"evictions_seen", "generation_tps", "usual_tps", "running"}, _slowed),
    ({"hit_rate", "usual_hit_rate"}, _hit_rate),
    ({"siblings", "lasted_s"}, _skew),
    ({"frozen_for"}, _frozen),
    ({"log_stopped_for"}, _unlogged),
    ({"metrics_frozen_for"}, _unscraped),
    ({"events", "per_s"}, _counted),
)
_OF_MORE: tuple[tuple[set[str], Callable[[AlertEvent, Facts], str]], ...] = (
    ({"lives", "life_s"}, _lives),
    ({"blind_for"}, _blind),
    ({"unread_share"}, _unread),
)
