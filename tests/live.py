"""A daemon that a test drives turn by turn, on real files and a real store, with a clock that the test sets."""

from pathlib import Path
from typing import NamedTuple

from kvlogd.clock import Clock
from kvlogd.config import Config, SourceConfig, StoreConfig
from kvlogd.intake import Intake
from kvlogd.model import AlertEvent
from kvlogd.replay import Options, replay
from kvlogd.rules import Rule, load_rules, shipped_folder
from kvlogd.setup import Setup
from kvlogd.stamp import zone
from kvlogd.store import Store


class Wristwatch(Clock):
    """A clock that stands until it is moved."""

    def __init__(self, wall_s: float) -> None:
        self.now_s = 1000.0
        self.wall = wall_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.wall

    def pass_s(self, seconds: float) -> None:
        """Let both clocks run on."""
        self.now_s += seconds
        self.wall += seconds


class Told(NamedTuple):
    """What of an alert event is the same in a replay and live: not the name of the source."""

    rule: str
    state: str
    at_s: float
    since_s: float
    value: float | None
    reason: str


def told(events: list[AlertEvent]) -> list[Told]:
    return [Told(e.key.rule, e.state.value, e.at_s, e.since_s, e.value, e.reason) for e in events]


class Live:
    """Reads `log` into the store at `db`, as the daemon does; may be killed or restarted at any moment."""

    def __init__(
        self,
        log: Path,
        db: Path,
        *,
        rules: tuple[Rule, ...] | None = None,
        wall_s: float = 1.8e9,
        metrics: str | None = None,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self.db = db
        self.clock = Wristwatch(wall_s)
        self.rules = load_rules([shipped_folder()]) if rules is None else rules
        self.store = Store.open(db)
        self.intake = self._begun()

    def _begun(self) -> Intake:
        name = "chat" if self.log.name == "vllm.log" else "other"
        sources = (SourceConfig(name=name, files=(str(self.log),), timezone="UTC", metrics=self.metrics),)
        setup = Setup(Config(sources=sources, store=StoreConfig(path=self.db)), self.rules)
        return Intake(setup, self.store, self.clock.monotonic_s(), Clock())

    def turn(self, seconds: float = 0.5) -> bool:
        """Let time pass and read what is new."""
        self.clock.pass_s(seconds)
        return self.intake.poll(self.clock.monotonic_s(), self.clock.wall_s()) > 0

    def read_all(self) -> None:
        """Read until nothing is left."""
        while self.turn():
            pass

    def commit(self, *, is_last: bool = False) -> None:
        self.store.commit(self.intake.batch(self.clock.monotonic_s(), is_last=is_last))
        while not is_last and self.intake.inquire(self.store):
            self.store.commit(self.intake.batch(self.clock.monotonic_s()))

    def stop(self) -> None:
        """End as on SIGTERM."""
        self.commit(is_last=True)
        self.kill()

    def kill(self) -> None:
        """Forget everything that was not committed."""
        self.intake.close()
        self.store.close()

    def start(self) -> None:
        """Begin again from what the store holds."""
        self.store = Store.open(self.db)
        self.intake = self._begun()

    def restart(self) -> None:
        self.stop()
        self.start()

    def told(self) -> list[Told]:
        return told(self.store.alert_events())

    def count(self) -> int:
        with self.store.query("SELECT count(*) FROM samples", limit_s=30) as answer:
            return int(next(iter(answer.rows))[0])


def replayed(log: Path, db: Path, rules: tuple[Rule, ...] | None = None, year: int = 2026) -> list[Told]:
    """Return what a replay of the log tells."""
    found = load_rules([shipped_folder()]) if rules is None else rules
    with Store.open(db) as store:
        return told(list(replay([log], found, store, Options(zone("UTC"), year)).alerts))
