import io

from kvlogd.voice import AGAIN_S, KEPT, SHOWN, Level, Voice


def test_a_lasting_trouble_is_said_once_an_hour_and_once_when_it_is_over() -> None:
    out = io.StringIO()
    voice = Voice(out, for_journal=False)
    for second in range(int(AGAIN_S) + 10):
        voice.complain("store", "full", float(second), 1e9 + second)
    voice.relent("store")
    voice.relent("store")
    assert out.getvalue().splitlines() == [
        "kvlogd: store: full",
        f"kvlogd: store: full ({int(AGAIN_S) + 1} times so far)",
        "kvlogd: store: in order again",
    ]


def test_another_trouble_of_the_same_place_is_said_at_once() -> None:
    out = io.StringIO()
    voice = Voice(out, for_journal=False)
    voice.complain("store", "full", 0.0, 1e9)
    voice.complain("store", "locked", 1.0, 1e9)
    assert out.getvalue().count("\n") == 2
    assert [one.what for one in voice.complaints()] == ["locked"]


def test_journald_gets_the_level_and_no_line_break_gets_through() -> None:
    out = io.StringIO()
    Voice(out, for_journal=True).say(Level.ERROR, "a\nb\x1b[31m")
    assert out.getvalue() == "<3>a b [31m\n"


def test_what_is_remembered_is_bounded() -> None:
    voice = Voice(io.StringIO(), for_journal=False)
    for number in range(KEPT + 10):
        voice.complain(f"log {number}", "gone", 0.0, 1e9)
    assert len(voice.complaints()) == SHOWN
    assert not voice.has("log 9")
    assert voice.has("log 10")


def test_each_of_many_troubles_is_said_once() -> None:
    out = io.StringIO()
    voice = Voice(out, for_journal=False)
    for second in range(10):
        for number in range(60):
            voice.complain(f"log {number}", "gone", float(second), 1e9 + second)
    assert out.getvalue().count("\n") == 60
