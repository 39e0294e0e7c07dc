"""Who is told what, when, whatever the order in which alerts, channels and crashes come."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvlogd.model import NoticeKind, Severity
from kvlogd.outbox import Silence
from tests.outboxes import BEGIN_S, DOWN, FINE, REFUSED, Outbox, alert, policy

FIRING, RESOLVED, CHANNEL = NoticeKind.FIRING, NoticeKind.RESOLVED, NoticeKind.CHANNEL
HOUR_S = 3600.0
KEYS = [(rule_, scope) for rule_ in ("leak", "stall") for scope in ("e/0", "e/1")]


class Course(RuleBasedStateMachine):
    """Alerts come and go, channels fail, the process dies; what each channel took must make sense to a reader."""

    @initialize()
    def begin(self) -> None:
        self.box = Outbox(policy("mail"), policy("pager", severities=[Severity.CRITICAL]))
        self.firing: dict[tuple[str, str], Severity] = {}
        self.deaths = 0

    @rule(at=st.sampled_from(KEYS), severity=st.sampled_from([Severity.WARNING, Severity.CRITICAL]))
    def change(self, at: tuple[str, str], severity: Severity) -> None:
        now = self.firing.get(at)
        if now is severity or now is Severity.CRITICAL:
            return
        self.firing[at] = severity
        reason = "severity changed" if now else ""
        self.box.see(alert(self.box.at_s, rule=at[0], scope=at[1], severity=severity, reason=reason))

    @rule(at=st.sampled_from(KEYS))
    def end(self, at: tuple[str, str]) -> None:
        severity = self.firing.pop(at, None)
        if severity is not None:
            self.box.see(alert(self.box.at_s, rule=at[0], scope=at[1], severity=severity, over=True))

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0, 900.0]))
    def wait(self, seconds: float) -> None:
        self.box.go(seconds, max(1.0, seconds / 60))

    @rule(channel=st.sampled_from(["mail", "pager"]), outcome=st.sampled_from([FINE, DOWN, REFUSED]))
    def answer(self, channel: str, outcome: object) -> None:
        self.box.answers[channel] = outcome  # type: ignore[assignment]

    @rule(scope=st.sampled_from(["e/0", "*"]), seconds=st.sampled_from([30.0, 1800.0]))
    def hush(self, scope: str, seconds: float) -> None:
        now_s = BEGIN_S + self.box.at_s
        self.box.silences = self.box.plan.silences = [Silence(1, "*", scope, now_s, now_s + seconds)]

    @rule()
    def die(self) -> None:
        before = len(self.box.tries)
        self.box.at_s += 1.0
        self.box.turn(dies=True)
        self.deaths += len(self.box.tries) > before
        self.box.crash()

    @invariant()
    def nothing_ends_that_did_not_begin_and_nothing_begins_twice(self) -> None:
        begun: set[tuple[str, str]] = set()
        twice = 0
        for taken in self.box.taken:
            places = {(taken.channel, case.alert_id) for case in taken.cases}
            if taken.kind is RESOLVED:
                again = {(taken.channel, case.alert_id) for case in taken.cases if len(case.bouts) > 1}
                assert places - again <= begun
            twice += taken.kind is FIRING and not places.isdisjoint(begun)
            begun |= {(taken.channel, case.alert_id) for case in taken.cases if case.is_firing}
        assert twice <= self.deaths

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        self.box.answers = {}
        self.box.go(2 * HOUR_S, 30)
        believed: dict[tuple[str, str, str], Severity] = {}
        for taken in self.box.taken:
            for case in taken.cases if taken.kind is not CHANNEL else ():
                place = (taken.channel, *case.event.key[:2])
                believed.pop(place, None)
                if case.is_firing:
                    believed[place] = case.event.severity
        mail = {("mail", *at): severity for at, severity in self.firing.items()}
        loud = {("pager", *at): one for at, one in self.firing.items() if one is Severity.CRITICAL}
        # a pager that was told that something is critical may be told that it is less so now
        quieter = {("pager", *at): one for at, one in self.firing.items() if one is not Severity.CRITICAL}
        assert (mail | loud).items() <= believed.items() <= (mail | loud | quieter).items()


Course.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestCourse = Course.TestCase
