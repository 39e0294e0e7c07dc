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
        Column("reason", "VARCHAR", "why it resolved: cleared, restart, rule removed"),
    ),
)
