"""The tables of alerts and of what became of them: said once for the DDL, the comments and docs/schema.md. Pure."""

from kvlogd.table import Column, Table

ALERT_KEY = (
    Column("rule", "VARCHAR", "id of the rule", required=True),
    Column("scope", "VARCHAR", "label of the engine, name of the source, or host", required=True),
    Column("run_id", "UINTEGER", "life of the engine; NULL where the alert outlives it"),
)
_ALERT_FACTS = (
    Column("verdict", "VARCHAR", "what was found"),
    Column("severity", "VARCHAR", "info, warning or critical"),
    Column("source", "VARCHAR", "name of the source"),
    Column("engine_index", "INTEGER", "vLLM's data-parallel rank"),
    Column("since", "TIMESTAMPTZ", "when the thing that was found began"),
    Column("value", "DOUBLE", "headline number, in the unit that the rule's kind documents"),
    Column("evidence", "VARCHAR", "JSON object of numbers by name"),
)


ALERTS = Table(
    "alerts",
    "The alerts that are pending or firing, each as it stands now.",
    (
        *ALERT_KEY,
        Column("state", "VARCHAR", "pending or firing", required=True),
        Column("entered", "TIMESTAMPTZ", "when it entered this state", required=True),
        Column("since", "TIMESTAMPTZ", "when the thing that was found began", required=True),
        Column("seen", "TIMESTAMPTZ", "when it was judged last", required=True),
        Column("true_for_s", "DOUBLE", "for how long it has been found without a break, s", required=True),
        Column("clear_since", "TIMESTAMPTZ", "since when it has not been found any more; NULL while it is"),
        Column("verdict", "VARCHAR", "what was found", required=True),
        Column("severity", "VARCHAR", "info, warning or critical", required=True),
        Column("source", "VARCHAR", "name of the source", required=True),
        Column("engine_index", "INTEGER", "vLLM's data-parallel rank"),
        Column("value", "DOUBLE", "headline number, in the unit that the rule's kind documents"),
        Column("evidence", "VARCHAR", "JSON object of numbers by name"),
    ),
    key=("rule", "scope", "run_id"),
)
ALERT_EVENTS = Table(
    "alert_events",
    "One change of an alert that people may see.",
    (
        Column("ts", "TIMESTAMPTZ", "when it changed, in record time", required=True),
        *ALERT_KEY,
        Column("state", "VARCHAR", "the state that it entered: firing or resolved", required=True),
        *_ALERT_FACTS,
        Column("reason", "VARCHAR", "why it resolved: cleared, restart, server ended, rule removed, source removed, …"),
    ),
)
CASES = Table(
    "cases",
    "What each channel knows of each alert that fires or that it must still be told of.",
    (
        Column("channel", "VARCHAR", "name of the channel", required=True),
        Column(
            "topic",
            "VARCHAR",
            "firing for alerts; broken, no_data, channel for what kvlogd tells of itself",
            required=True,
        ),
        *ALERT_KEY,
        Column("state", "VARCHAR", "firing or resolved", required=True),
        Column("changed", "TIMESTAMPTZ", "when it entered this state or severity, in record time", required=True),
        *_ALERT_FACTS,
        Column("reason", "VARCHAR", "why it resolved, or what is wrong"),
        Column("seen", "TIMESTAMPTZ", "when that was learnt", required=True),
        Column(
            "bouts", "VARCHAR", "JSON list of [begin, end], Unix seconds: each time that it fired since it was told"
        ),
        Column("told", "VARCHAR", "severity at which it fires as far as the channel knows; NULL where it was not told"),
        Column("told_at", "TIMESTAMPTZ", "when the channel last took a message about it"),
        Column("tried", "BOOLEAN", "true where a message was begun since then: it may have arrived"),
    ),
    key=("channel", "topic", "rule", "scope", "run_id"),
)
NOTICES = Table(
    "notices",
    "The messages to each channel: those that wait, were sent or dropped.",
    (
        Column("notice_id", "UINTEGER", "number of the message", required=True),
        Column("channel", "VARCHAR", "name of the channel", required=True),
        Column(
            "kind", "VARCHAR", "firing, raised, repeat, resolved, summary, no_data, broken or channel", required=True
        ),
        Column("rule", "VARCHAR", "id of the rule; empty for a summary of all", required=True),
        Column("state", "VARCHAR", "waiting, sent or dropped", required=True),
        Column("planned", "TIMESTAMPTZ", "when it was planned, by the host's clock", required=True),
        Column("due", "TIMESTAMPTZ", "not to be sent before", required=True),
        Column("expires", "TIMESTAMPTZ", "not to be sent after", required=True),
        Column("attempts", "UINTEGER", "how often it was begun to be sent", required=True),
        Column(
            "fault", "VARCHAR", "why the last attempt failed: refused, busy, unreachable, timeout, unusable, failed"
        ),
        Column("status", "INTEGER", "HTTP's or SMTP's number of the last attempt that failed"),
        Column("sent", "TIMESTAMPTZ", "when the channel took it"),
        Column("why", "VARCHAR", "why it was dropped"),
        Column("alerts", "VARCHAR", "JSON list of the alerts that it told: id, rule, scope, run"),
        Column("failed", "UINTEGER", "how many attempts failed; one that ended with kvlogd itself did not"),
    ),
    key=("notice_id",),
)
SILENCES = Table(
    "silences",
    "Alerts that nobody is told of for a time.",
    (
        Column("silence_id", "UINTEGER", "number of the silence", required=True),
        Column("rule", "VARCHAR", "id of the rule; * stands for anything", required=True),
        Column("scope", "VARCHAR", "engine, source or host; * stands for anything", required=True),
        Column("since", "TIMESTAMPTZ", "when it began", required=True),
        Column("until", "TIMESTAMPTZ", "when it ends", required=True),
        Column("comment", "VARCHAR", "what whoever made it wrote"),
    ),
    key=("silence_id",),
)
