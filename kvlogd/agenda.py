"""When the rules that have a query of their own ask it: at each border of a grid of record time. Pure."""

from collections.abc import Iterable, Iterator

from kvlogd.rules import Rule

LONGEST_S = 31 * 86_400.0
"""Of a longer time without questions, which a log that was silent leaves, only the last month is asked about."""


class Agenda:
    """The rules with a query, each with the last time that it asked about."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [rule for rule in rules if rule.query is not None]
        self._asked_s: dict[str, float] = {}

    def due(self, first_s: float, now_s: float) -> Iterator[tuple[Rule, float]]:
        """Yield what is to be asked now, of a log that begins at `first_s`: each rule with the time it asks about."""
        for rule in self._rules:
            every_s = rule.query.every if rule.query is not None else LONGEST_S
            last_s = max(self._asked_s.get(rule.id, first_s), now_s - LONGEST_S)
            while (due_s := last_s - last_s % every_s + every_s) <= now_s:
                self._asked_s[rule.id] = last_s = due_s
                yield rule, due_s

    def go_on_from(self, at_s: float) -> None:
        """Ask only about what comes later."""
        self._asked_s = {rule.id: at_s for rule in self._rules}
