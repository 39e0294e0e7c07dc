"""What came of one source since the last time, ready to be committed together. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from kvlogd.alerts import Standing
from kvlogd.model import AlertEvent, AlertKey, Engine, Event, Run, Scrape, Stats


class Harvest(NamedTuple):
    """What came in since the last harvest, ready to be committed together."""

    engines: Sequence[Engine]
    runs: Sequence[Run]
    samples: Sequence[Stats]
    sample_runs: Sequence[int]
    events: Sequence[tuple[int | None, int | None, Event]]
    alert_events: Sequence[AlertEvent]
    standings: Sequence[Standing]
    """Alerts that began or changed."""
    over: Sequence[AlertKey]
    """Alerts that are neither pending nor firing any more."""
    scrapes: Sequence[tuple[int, int, Scrape]] = ()
    """(engine_id, run_id, scrape)"""
