"""The outbox at work with real children and servers of this host: on a clock of the test, or in a daemon."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from kvlogd.alerts import Standing
from kvlogd.channel import Secret
from kvlogd.config import ChannelConfig, Config, SourceConfig, StoreConfig
from kvlogd.dispatch import Dispatch
from kvlogd.model import AlertEvent, AlertState, Judgement
from kvlogd.outbox import Notice
from kvlogd.postman import Postman
from kvlogd.rows import Batch
from kvlogd.rules import Rule
from kvlogd.setup import Setup
from kvlogd.voice import Voice
from tests.daemon import Running
from tests.lines import START_S, line_of, record
from tests.live import Live
from tests.outboxes import BEGIN_S
from tests.waiting import until

RULE = """id: full
verdict: kv-capacity
severity: critical
per: engine
when: {threshold: {signal: kv_usage, above: 50%}}
for: 0s
keep_firing_for: 0s
why: it is full
do: [give it room]
"""
STEP_S = 10.0


def standing_of(event: AlertEvent) -> Standing:
    """Return the alert that an event has made fire."""
    return Standing(
        event.key, AlertState.FIRING, event.at_s, event.since_s, event.at_s, 0.0, None, event.verdict, event.severity,
        event.source, event.engine_index, event.value, event.evidence,
    )  # fmt: skip


class Beside:
    """Who looks at GPUs and hosts: rules at work with their last word, and rules without anything to look at."""

    def __init__(
        self, words: Iterable[tuple[Rule, str, Judgement]] = (), lacking: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.words, self.lacking = list(words), list(lacking)

    def at_work(self) -> Iterator[tuple[Rule, str, Judgement, Standing | None]]:
        return ((*word, None) for word in self.words)

    def without_evidence(self) -> list[tuple[str, str]]:
        return self.lacking


class Desk:
    """A dispatch on a real store; the test moves its clock, and waits for its children."""

    def __init__(
        self,
        folder: Path,
        urls: Mapping[str, str],
        *,
        rules: tuple[Rule, ...] = (),
        beside: Beside | None = None,
        **more: object,
    ) -> None:
        log = folder / "vllm.log"
        log.touch()
        self.live = Live(log, folder / "desk.duckdb", rules=rules, wall_s=BEGIN_S)
        channels = tuple(ChannelConfig.model_validate({"name": n, "url_env": "X", **more}) for n in urls)
        sources = (SourceConfig(name="chat", files=(str(log),)),)
        config = Config(sources=sources, store=StoreConfig(path=self.live.db), channels=channels)
        self.setup = Setup(config, rules, {name: Secret(url) for name, url in urls.items()})
        self.said = io.StringIO()
        self.voice = Voice(self.said, for_journal=False)
        self.beside = beside
        self.dispatch = self._begun()

    def _begun(self) -> Dispatch:
        # children do not end of idleness: hours of the test's clock pass in no time
        postman = Postman(lambda: None, idle_s=float("inf"))
        found = Dispatch(postman, self.voice, "node-7", self.beside)
        found.take_up(self.setup, self.live.store, self.live.clock.wall_s())
        return found

    def see(self, *events: AlertEvent) -> None:
        """Let alerts change, as a batch of the daemon."""
        firing = [event for event in events if event.state is AlertState.FIRING]
        batch = Batch(
            alert_events=events,
            standings=[standing_of(event) for event in firing],
            over=[event.key for event in events if event.state is AlertState.RESOLVED],
        )
        self.live.store.commit(self.dispatch.planned(batch, self.live.clock.monotonic_s(), self.live.clock.wall_s()))

    def turn(self, seconds: float = 0.0) -> None:
        clock = self.live.clock
        clock.pass_s(seconds)
        self.dispatch.turn(self.live.intake, clock.monotonic_s(), clock.wall_s())

    def go(self, seconds: float, step_s: float = 5.0) -> None:
        """Let time pass; whatever is begun ends before it goes on, as servers here answer at once."""
        end_s = self.live.clock.now_s + seconds
        while self.live.clock.now_s < end_s:
            self.turn(step_s)
            self.settle()

    def settle(self) -> None:
        """Wait until nothing is on its way, and no child gets ready for something."""
        postman = self.dispatch._postman

        def landed() -> bool:
            self.turn()
            return not self.dispatch.is_flying() and all(map(postman.is_free, postman._children))

        until(landed)

    def kill(self) -> None:
        """Forget everything that is not stored, and begin again."""
        self.dispatch.close()
        self.dispatch = self._begun()

    def notices(self) -> list[Notice]:
        return self.live.store.notices()

    def close(self) -> None:
        self.dispatch.close()
        self.live.kill()


class Paged(Running):
    """A daemon whose one rule finds a pool that is more than half full; its log is written up to now."""

    def __init__(self, folder: Path, urls: Mapping[str, str], more: str = "") -> None:
        (folder / "rules").mkdir()
        (folder / "rules" / "full.yaml").write_text(RULE)
        places = []
        for name, url in urls.items():
            path = folder / f"{name}.url"
            path.write_text(url)
            path.chmod(0o600)
            places.append(f"{{name: {name}, url_file: {path}}}")
        channels = f"rules: {{folders: [{folder / 'rules'}]}}\nchannels: [{', '.join(places)}]\n"
        super().__init__(folder, channels + more)
        self.log.touch()

    def write(self, usage: float, count: int = 6, *, until_s: float = 0.0) -> None:
        """Write the records of the time up to now, or to a moment before it."""
        at_s = time.time() - until_s - START_S - count * STEP_S
        with self.log.open("ab") as log:
            for number in range(1, count + 1):
                at = record(at_s + number * STEP_S, running=4, prompt_tps=100.0, generation_tps=90.0, kv_usage=usage)
                log.write(line_of(at) + b"\n")

    def fire(self) -> None:
        """Let the rule find a full pool, and wait until that is stored."""
        before = self.said.read_text().count("critical: full")
        self.write(0.1, 6, until_s=70.0)
        self.write(0.8, 6)
        # a query has what was read stored at once
        self.waits(lambda: self.rows("SELECT 1 AS one") and self.said.read_text().count("critical: full") > before)

    def waits(self, condition: Callable[[], object], patience_s: float = 30.0) -> None:
        """Wait for something; what the daemon said is told where it does not come."""
        try:
            until(condition, patience_s)
        except AssertionError as error:
            raise AssertionError(self.said.read_text()) from error
