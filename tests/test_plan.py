"""Who is told what, when."""

import itertools
import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.model import AlertKey, NoticeKind, Severity
from kvlogd.outbox import NoticeState, Silence, alert_id
from kvlogd.plan import GROUP_S, LATE_S, TTL_S, Policy, Quiet
from kvlogd.stamp import HOST_ZONE, zone
from tests.outboxes import ALL, BEGIN_S, DOWN, FINE, REFUSED, Outbox, alert, policy
from tests.paging import standing_of

FIRING, RAISED, REPEAT = NoticeKind.FIRING, NoticeKind.RAISED, NoticeKind.REPEAT
RESOLVED, SUMMARY, CHANNEL = NoticeKind.RESOLVED, NoticeKind.SUMMARY, NoticeKind.CHANNEL
HOUR_S = 3600.0


def test_an_alert_is_told_when_it_begins_and_when_it_is_over() -> None:
    box = Outbox()
    box.see(alert(0))
    box.go(60)
    box.see(alert(60, over=True, reason="cleared"))
    box.go(60)
    assert box.kinds() == [FIRING, RESOLVED]
    assert box.taken[0].at_s <= GROUP_S + 1
    assert box.taken[1].cases[0].bouts == ((BEGIN_S, BEGIN_S + 60),)
    assert box.cases == {}
    assert {notice.state for notice in box.notices.values()} == {NoticeState.SENT}


def test_engines_of_one_rule_are_told_in_one_message_and_other_rules_apart() -> None:
    box = Outbox()
    box.see(alert(0, scope="chat/0"), alert(0, scope="chat/1"), alert(0, rule="engine-stall"))
    box.at_s = GROUP_S - 1
    box.see(alert(0, scope="chat/2"))
    box.go(10)
    assert [taken.scopes for taken in box.taken] == [["chat/0", "chat/1", "chat/2"], ["chat/0"]]


def test_a_channel_takes_only_its_severities_and_a_rule_may_name_its_channels() -> None:
    box = Outbox(
        policy("pager", severities=[Severity.CRITICAL]), policy("mail"), policy("boss"), notify={"a": ["mail", "pager"]}
    )
    box.see(alert(0, rule="a", severity=Severity.WARNING), alert(0, rule="b", severity=Severity.WARNING))
    box.go(10)
    assert sorted((taken.channel, taken.cases[0].event.key.rule) for taken in box.taken) == [
        ("boss", "b"), ("mail", "a"), ("mail", "b"),
    ]  # fmt: skip


def test_what_no_channel_takes_is_told_to_none_but_that_its_rule_fails_to_all() -> None:
    box = Outbox(policy("pager"), policy("mail"), notify={"a": [], "b": ["mail"]})
    box.see(alert(0, rule="a"), alert(0, rule="b"))
    for name in ("a", "b"):
        box.plan.report(NoticeKind.BROKEN, [alert(0, rule=name)], BEGIN_S, is_all=False)
    box.go(10)
    told = sorted((taken.channel, taken.cases[0].event.key.rule, taken.kind) for taken in box.taken)
    assert told == [
        ("mail", "a", NoticeKind.BROKEN), ("mail", "b", NoticeKind.BROKEN), ("mail", "b", FIRING),
        ("pager", "a", NoticeKind.BROKEN),
    ]  # fmt: skip


def test_that_a_rule_fails_is_told_to_all_where_its_own_channels_take_nothing_so_mild() -> None:
    box = Outbox(policy("pager", severities=[Severity.CRITICAL]), policy("mail"), notify={"a": ["pager"]})
    box.plan.report(NoticeKind.BROKEN, [alert(0, rule="a", severity=Severity.WARNING)], BEGIN_S)
    box.go(10)
    assert [(taken.channel, taken.kind) for taken in box.taken] == [("mail", NoticeKind.BROKEN)]


def test_who_was_told_hears_that_it_is_over_and_no_more_where_a_reload_took_the_rule_away() -> None:
    box = Outbox(policy("mail", repeat_every_s=HOUR_S), policy("team", repeat_every_s=HOUR_S))
    box.see(alert(0))
    box.go(10)
    box.notify = {"kv-leak": ["team"]}
    box.crash()
    box.plan.stand([standing_of(alert(0))], BEGIN_S + box.at_s)
    box.go(2 * HOUR_S, 10)
    assert (box.kinds("mail"), box.kinds("team")) == ([FIRING], [FIRING, REPEAT])
    box.see(alert(box.at_s, over=True))
    box.go(60)
    assert (box.kinds("mail")[1:], box.kinds("team")[2:]) == ([RESOLVED], [RESOLVED])
    box.see(alert(box.at_s))
    box.go(60)
    assert (len(box.kinds("mail")), box.kinds("team")[-1]) == (2, FIRING)


def test_more_severe_is_told_and_reaches_who_did_not_hear_of_it() -> None:
    box = Outbox(policy("pager", severities=[Severity.CRITICAL]), policy("mail"))
    box.see(alert(0, severity=Severity.WARNING))
    box.go(10)
    box.see(alert(10, reason="severity changed"))
    box.go(10)
    assert (box.kinds("pager"), box.kinds("mail")) == ([FIRING], [FIRING, RAISED])
    assert box.taken[-1].cases[0].alert_id == box.taken[0].cases[0].alert_id


def test_repeats_come_while_it_fires_and_only_then() -> None:
    box = Outbox(policy(repeat_every_s=HOUR_S))
    box.see(alert(0))
    box.go(3 * HOUR_S + 60, 10)
    assert box.kinds() == [FIRING, REPEAT, REPEAT, REPEAT]
    times = [taken.at_s for taken in box.taken]
    assert all(HOUR_S <= later - earlier < HOUR_S + 60 for earlier, later in itertools.pairwise(times))
    box.see(alert(box.at_s, over=True))
    box.go(3 * HOUR_S, 10)
    assert box.kinds()[4:] == [RESOLVED]


def test_engines_of_one_rule_are_repeated_together() -> None:
    box = Outbox(policy(repeat_every_s=HOUR_S))
    box.see(alert(0, scope="chat/0"))
    box.go(600, 10)
    box.see(alert(600, scope="chat/1"))
    box.go(2 * HOUR_S + 600, 10)
    assert [(taken.kind, taken.scopes) for taken in box.taken[2:]] == [(REPEAT, ["chat/0", "chat/1"])] * 2


def test_a_flap_within_the_group_time_is_one_message() -> None:
    box = Outbox()
    box.see(alert(0))
    box.go(60)
    box.see(alert(60, over=True))
    box.go(1)
    box.see(alert(61))
    box.go(60)
    assert box.kinds() == [FIRING, FIRING]
    assert [bout[1] is None for bout in box.taken[-1].cases[0].bouts] == [False, True]


def test_a_channel_that_fails_neither_delays_nor_repeats_another() -> None:
    box = Outbox(policy("slack"), policy("mail"))
    box.answers["slack"] = DOWN
    box.see(alert(0))
    box.go(600)
    assert box.kinds("mail") == [FIRING, CHANNEL][:1]
    tries = [at_s for at_s, channel in box.tries if channel == "slack"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert 4 <= len(tries) <= 10
    assert all(later > 1.1 * earlier for earlier, later in itertools.pairwise(pauses))
    box.answers["slack"] = FINE
    box.go(700)
    assert box.kinds("slack") == [FIRING]


def test_who_asks_for_peace_is_left_alone() -> None:
    box = Outbox()
    box.answers["mail"] = DOWN._replace(retry_after_s=500.0)
    box.see(alert(0))
    box.go(480)
    assert len(box.tries) == 1
    box.answers["mail"] = FINE
    box.go(60)
    assert box.kinds() == [FIRING]


def test_a_channel_that_refuses_is_told_through_the_others_once() -> None:
    box = Outbox(policy("slack"), policy("mail", severities=[Severity.CRITICAL]))
    box.answers["slack"] = REFUSED
    box.see(alert(0))
    box.go(2 * HOUR_S, 5)
    assert box.kinds("mail") == [FIRING, CHANNEL]
    [case] = box.taken[1].cases
    assert (case.event.key.scope, case.event.evidence["status"], case.event.reason) == ("slack", 403, "refused")
    assert box.plan.lines["slack"].is_bad
    box.crash()
    assert box.plan.lines["slack"].is_bad
    box.go(2 * HOUR_S, 5)
    assert box.kinds("mail") == [FIRING, CHANNEL]
    box.answers["slack"] = FINE
    box.go(2 * HOUR_S, 5)
    assert (box.kinds("slack"), box.plan.lines["slack"].is_bad) == ([FIRING], False)


def test_a_message_that_a_channel_never_takes_does_not_stop_the_others() -> None:
    box = Outbox()
    box.answers["mail"] = DOWN
    box.see(alert(0, rule="poison"))
    box.go(10)
    box.see(alert(10, rule="sound"))
    box.answers["mail"] = FINE
    box.go(10)
    assert [taken.cases[0].event.key.rule for taken in box.taken][:1] == ["sound"]


def test_what_is_silenced_is_told_once_the_silence_ends_if_it_still_fires() -> None:
    box = Outbox()
    box.plan.silences = box.silences = [Silence(1, "kv-*", "chat/0", BEGIN_S, BEGIN_S + HOUR_S)]
    box.see(alert(0), alert(0, scope="chat/1"), alert(0, rule="engine-stall"))
    box.go(60)
    assert sorted((taken.cases[0].event.key[:2]) for taken in box.taken) == [
        ("engine-stall", "chat/0"), ("kv-leak", "chat/1"),
    ]  # fmt: skip
    box.crash()
    assert box.go(HOUR_S - 70, 5) == []
    [late] = box.go(60)
    assert (late.kind, late.scopes) == (FIRING, ["chat/0"])


def test_what_is_over_before_its_silence_ends_is_told_to_nobody_but_an_end_is() -> None:
    box = Outbox()
    box.see(alert(0, scope="known"))
    box.go(10)
    box.plan.silences = [Silence(1, "*", "*", BEGIN_S, BEGIN_S + HOUR_S)]
    box.see(alert(10, scope="new"))
    box.go(10)
    box.see(alert(20, scope="new", over=True), alert(20, scope="known", over=True))
    box.go(2 * HOUR_S, 10)
    assert [(taken.kind, taken.scopes) for taken in box.taken] == [(FIRING, ["known"]), (RESOLVED, ["known"])]


@pytest.mark.parametrize(("hour", "is_quiet"), [(21, False), (22, True), (3, True), (7, False)])
def test_quiet_hours_are_those_of_their_zone(hour: int, is_quiet: bool) -> None:
    quiet = Quiet(22 * 60, 7 * 60, zone("+02:00"), Severity.CRITICAL)
    midnight_s = BEGIN_S - BEGIN_S % 86400
    assert quiet.holds(Severity.WARNING, midnight_s + (hour - 2) * HOUR_S) is is_quiet
    assert not quiet.holds(Severity.CRITICAL, midnight_s + (hour - 2) * HOUR_S)


def test_quiet_hours_without_a_zone_are_those_of_the_host() -> None:
    clock = datetime.fromtimestamp(BEGIN_S)
    now_min = clock.hour * 60 + clock.minute
    assert Quiet(now_min, (now_min + 60) % 1440, HOST_ZONE, Severity.CRITICAL).holds(Severity.WARNING, BEGIN_S)
    assert not Quiet((now_min + 60) % 1440, now_min, HOST_ZONE, Severity.CRITICAL).holds(Severity.WARNING, BEGIN_S)


def test_what_is_quiet_waits_for_the_end_and_then_tells_the_state() -> None:
    start = int(BEGIN_S % 86400 // 60)
    quiet = Quiet(start, (start + 60) % 1440, zone("UTC"), Severity.CRITICAL)
    box = Outbox(policy()._replace(quiet=quiet))
    box.see(alert(0, severity=Severity.WARNING), alert(0, rule="b", severity=Severity.WARNING), alert(0, rule="loud"))
    box.go(10)
    box.see(alert(10, rule="b", severity=Severity.WARNING, over=True))
    box.go(HOUR_S + 60, 5)
    assert [(taken.cases[0].event.key.rule, taken.at_s >= HOUR_S - 60) for taken in box.taken] == [
        ("loud", False), ("kv-leak", True),
    ]  # fmt: skip


def test_what_is_long_past_waits_until_its_log_is_read_to_the_end() -> None:
    box = Outbox()
    box.at_s = 10 * LATE_S
    box.plan.behind = frozenset({"chat"})
    box.see(alert(0), alert(0, rule="over-soon"), alert(box.at_s, rule="fresh"), alert(0, rule="other", source="x"))
    box.go(60)
    assert sorted(taken.cases[0].event.key.rule for taken in box.taken) == ["fresh", "other"]
    box.see(alert(100, rule="over-soon", over=True))
    box.plan.behind = frozenset()
    box.go(60)
    assert sorted(taken.cases[0].event.key.rule for taken in box.taken) == ["fresh", "kv-leak", "other"]


def test_what_ended_too_long_ago_is_told_to_nobody() -> None:
    box = Outbox()
    box.answers["mail"] = DOWN
    box.see(alert(0))
    box.go(60)
    box.see(alert(60, over=True))
    box.go(TTL_S + HOUR_S, 60)
    box.answers["mail"] = FINE
    box.go(HOUR_S, 10)
    assert box.taken == []
    assert box.cases == {}


def test_what_still_fires_is_told_however_long_the_outage_was() -> None:
    box = Outbox()
    box.answers["mail"] = DOWN
    box.see(alert(0))
    box.go(3 * TTL_S, 60)
    box.answers["mail"] = FINE
    box.go(HOUR_S, 10)
    assert box.kinds() == [FIRING]


def test_a_new_channel_hears_what_fires_and_a_removed_one_nothing() -> None:
    box = Outbox()
    box.answers["mail"] = DOWN
    box.see(alert(0))
    box.go(10)
    box.policies = (policy("pager"),)
    box.crash()
    box.store()
    assert box.cases == {}
    assert [(n.state, n.why) for n in box.notices.values()] == [(NoticeState.DROPPED, "the channel was removed")]


def test_what_kvlogd_tells_of_itself_is_told_once() -> None:
    box = Outbox()
    broken = alert(0, scope="chat/0", reason="ZeroDivisionError")
    for _ in range(3):
        box.plan.report(NoticeKind.BROKEN, [broken], BEGIN_S + box.at_s)
        box.go(HOUR_S * 6, 30)
    assert box.kinds() == [NoticeKind.BROKEN]
    box.plan.report(NoticeKind.BROKEN, [], BEGIN_S + box.at_s)
    box.go(60)
    assert (box.kinds(), box.cases) == ([NoticeKind.BROKEN], {})


def test_what_kvlogd_tells_of_itself_is_never_summed_up_with_alerts() -> None:
    box = Outbox(Policy("mail", ALL, 4 * HOUR_S, burst=1))
    box.plan.report(NoticeKind.BROKEN, [alert(0, rule="odd", severity=Severity.WARNING)], BEGIN_S)
    box.see(alert(0, rule="a"), alert(0, rule="b"))
    box.go(180)
    assert box.kinds() == [SUMMARY, NoticeKind.BROKEN]
    assert [case.event.key.rule for case in box.taken[0].cases] == ["a", "b"], "that a rule fails is no alert of it"


def test_kills_make_no_channel_out_of_order() -> None:
    box = Outbox(policy("mail"), policy("pager"))
    box.answers["mail"] = REFUSED
    box.see(alert(0))
    box.go(5)
    for _ in range(5):
        box.at_s += HOUR_S
        box.plan.ready(BEGIN_S + box.at_s, lambda _: True)
        box.store()
        box.crash()
        box.store()
    assert [case for case in box.cases if case.topic is CHANNEL] == []
    box.go(120)
    assert CHANNEL in box.kinds("pager"), "the next refusal shows it"


def test_after_a_restart_nobody_hears_again_that_a_channel_is_out_of_order() -> None:
    box = Outbox(policy("mail"), policy("pager"))
    box.answers["mail"] = DOWN
    box.see(alert(0))
    box.go(HOUR_S, 5)
    assert box.kinds("pager") == [FIRING, CHANNEL]
    for _ in range(3):
        box.crash()
        box.store()
        box.go(HOUR_S, 5)
    assert box.kinds("pager") == [FIRING, CHANNEL]
    box.answers["mail"] = FINE
    box.go(HOUR_S, 5)
    assert not box.plan.lines["mail"].is_bad
    assert [key for key in box.cases if key.topic is CHANNEL] == []


def test_a_clock_that_is_set_back_while_the_daemon_is_away_delays_nothing() -> None:
    box = Outbox(policy("mail"), policy("pager"))
    box.answers["mail"] = DOWN
    box.see(alert(0))
    box.go(60)
    box.answers["mail"] = FINE
    box.at_s -= 24 * HOUR_S
    box.crash()
    box.store()
    box.go(HOUR_S, 5)
    assert box.kinds("mail") == [FIRING]
    box.go(5 * HOUR_S, 60)
    assert box.kinds("pager") == [FIRING, REPEAT]


def test_a_jump_of_the_clock_neither_repeats_nor_delays() -> None:
    box = Outbox(policy(repeat_every_s=HOUR_S))
    box.see(alert(0))
    box.go(60)
    for jump_s in (-HOUR_S, 5 * HOUR_S):
        box.at_s += jump_s
        box.plan.shift(jump_s)
        assert box.go(60) == []
        box.see(alert(box.at_s, rule=f"after {jump_s}"))
        assert len(box.go(10)) == 1
    box.go(HOUR_S, 10)
    assert REPEAT in box.kinds()


def test_the_id_of_an_alert_is_stable_and_its_own() -> None:
    key = AlertKey("kv-leak", "chat/0", 1)
    others = [key._replace(run=2), key._replace(run=None), key._replace(scope="chat/1"), key._replace(rule="x")]
    assert alert_id(key, BEGIN_S) == alert_id(key, BEGIN_S + 1e-7)
    assert len({alert_id(one, BEGIN_S) for one in [key, *others]} | {alert_id(key, BEGIN_S + 1)}) == 6


@given(st.text("ab*/.[", max_size=6), st.text("ab/.[\n", max_size=6))
def test_only_a_star_is_special_in_a_silence(pattern: str, scope: str) -> None:
    covers = Silence(1, "*", pattern, 0.0, 9.0).covers(AlertKey("r", scope, None), 1.0)
    assert covers is (re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), scope, re.DOTALL) is not None)


def test_a_silence_of_many_stars_is_judged_at_once() -> None:
    key = AlertKey("a" * 200, "a" * 200, None)
    assert not Silence(1, "*", "*a" * 149 + "*b", 0.0, 9.0).covers(key, 1.0), "it would take years by trial and error"
    assert Silence(1, "*a" * 150, "*a" * 150, 0.0, 9.0).covers(key, 1.0)
