"""What a replay comes to: the records that `tell` and `report` make words and pictures of."""

from collections.abc import Sequence
from typing import NamedTuple

from kvlogd.errors import KvlogdError
from kvlogd.model import AlertEvent, Engine, Gap, Run


class SourceReport(NamedTuple):
    """What was read of one source."""

    source: str
    stats_lines: int
    lines: int
    unparsed_stats_lines: int
    duplicates: int
    engines: int
    runs: int
    first_s: float | None
    last_s: float | None
    gaps: Sequence[Gap]
    abstained: Sequence[tuple[str, str, str]]
    """(rule, engine, what was missing)"""
    blind: str | None
    """Why there is no stats record, in words; None where there are some."""
    is_vllm: bool


class Outcome(NamedTuple):
    """What a replay found."""

    alerts: Sequence[AlertEvent]
    engines: Sequence[Engine]
    runs: Sequence[Run]
    sources: Sequence[SourceReport]
    errors: Sequence[KvlogdError]
