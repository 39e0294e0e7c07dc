"""A log that a test writes record by record while a daemon follows it, and the rules that judge it."""

from pathlib import Path

from kvlogd.model import Stats
from kvlogd.rules import Rule, load_rule
from tests.lines import START_S, line_of, record
from tests.live import Live, Told

STEP_S = 10.0


def rule(
    folder: Path,
    *,
    id_: str = "full",
    signal: str = "kv_usage",
    above: str = "50%",
    for_: str = "5m",
    keep: str = "0s",
    more: str = "",
) -> Rule:
    """Return the rule that the pool is more than half full."""
    path = folder / f"{id_}.yaml"
    path.write_text(
        f"id: {id_}\nverdict: kv-capacity\nseverity: warning\nper: engine\n"
        f"when: {{threshold: {{signal: {signal}, above: {above}}}}}\nfor: {for_}\nkeep_firing_for: {keep}\n{more}"
        "why: it is full\ndo: [give it room]\n"
    )
    return load_rule(path)


class Course:
    """Time goes on with what is written; `at_s` is the record time since the tests' START_S."""

    def __init__(self, folder: Path, *rules: Rule) -> None:
        self.log = folder / "vllm.log"
        self.log.touch()
        self.at_s = 0.0
        self.live = Live(self.log, folder / "live.duckdb", rules=rules, wall_s=self.log.stat().st_mtime)

    def write(self, usage: float, seconds: float, *, running: int = 4, moves: bool = True) -> None:
        """Write a record each ten seconds, of a pool so full, without anybody reading it."""
        end_s = self.at_s + seconds
        with self.log.open("ab") as out:
            while self.at_s < end_s:
                out.write(line_of(self._record(usage, running, moves=moves and running > 0)) + b"\n")
                self.at_s += STEP_S

    def _record(self, usage: float, running: int, *, moves: bool) -> Stats:
        prompt_tps, generation_tps = (100.0, 90.0) if moves else (0.0, 0.0)
        return record(self.at_s, running=running, prompt_tps=prompt_tps, generation_tps=generation_tps, kv_usage=usage)

    def go(self, usage: float, seconds: float, *, running: int = 4, moves: bool = True) -> None:
        """Write records and read each as it comes."""
        end_s = self.at_s + seconds
        while self.at_s < end_s:
            self.write(usage, STEP_S, running=running, moves=moves)
            self.live.clock.wall = self.log.stat().st_mtime
            self.live.turn(STEP_S)
            self.live.read_all()

    def quiet(self, seconds: float) -> None:
        """Let time pass without a line."""
        for _ in range(round(seconds / STEP_S)):
            self.at_s += STEP_S
            self.live.turn(STEP_S)

    def told(self) -> list[Told]:
        """Commit, and return all that was told, times since the start."""
        self.live.commit()
        return [one._replace(at_s=one.at_s - START_S, since_s=one.since_s - START_S) for one in self.live.told()]

    def states(self) -> list[tuple[str, float]]:
        return [(one.state, one.at_s) for one in self.told()]
