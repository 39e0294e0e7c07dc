import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import quantity
from kvlogd.quantity import Unit, about_text, duration_text, in_unit, nearest, share_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("5min", 300), ("2h", 7200), ("1h30m", 5400), ("1h 30m", 5400), ("30d", 2_592_000),
     ("1w", 604_800), ("0s", 0), ("1.5h", 5400), (" 5m ", 300), ("5 m", 300)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert quantity.seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "m",
        "5x",
        "-5m",
        "5m3",
        "1e3s",
        "5 minutes",
        "nan",
        "h5",
        "\N{ARABIC-INDIC DIGIT FIVE}m",
        "9" * 400 + "s",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        quantity.seconds(text)


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("3 points", 0.03), ("1 point", 0.01), ("0.5 %", 0.005), ("100%", 1)]
)
def test_shares(text: str, share: float) -> None:
    assert quantity.share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["10", "10 %%", "%", "ten %", "10percent", "0.1", "101%", "-1%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError):
        quantity.share(text)


@pytest.mark.parametrize(("text", "rate"), [("5/min", 5 / 60), ("2/h", 2 / 3600), ("1 / s", 1), ("7/d", 7 / 86_400)])
def test_rates(text: str, rate: float) -> None:
    assert quantity.per_second(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["5", "5/", "/min", "5/year", "5m", "0.5 points/h"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):
        quantity.per_second(text)


@pytest.mark.parametrize(
    ("unit", "good", "value"),
    [
        (Unit.SECONDS, "3m", 180),
        (Unit.SHARE, "10%", 0.1),
        (Unit.COUNT, "8", 8),
        (Unit.TOKENS_PER_SECOND, "5 tokens/s", 5),
    ],
)
def test_a_number_must_be_in_its_unit(unit: Unit, good: str, value: float) -> None:
    assert in_unit(good, unit) == pytest.approx(value)
    for other in {"3m", "10%", "8", "5 tokens/s"} - {good}:
        with pytest.raises(ValueError, match="write it like"):
            in_unit(other, unit)


@given(st.text(max_size=20), st.sampled_from([*Unit]))
def test_any_text_is_a_number_or_a_value_error(text: str, unit: Unit) -> None:
    try:
        value = in_unit(text, unit)
    except ValueError:
        return
    assert 0 <= value < float("inf")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.4, "0 s"), (45, "45 s"), (60, "1 min"), (90, "1 min 30 s"), (3599.6, "1 h"), (4800, "1 h 20 min"),
     (4805, "1 h 20 min"), (3605, "1 h"), (86_400, "1 d"), (86_400 + 300, "1 d"), (3 * 86_400 + 4 * 3600, "3 d 4 h")],
)  # fmt: skip
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.integers(0, 10**8))
def test_a_duration_for_people_is_right_to_its_second_unit(seconds: int) -> None:
    said = quantity.seconds(duration_text(seconds).replace(" ", ""))
    assert 0 <= seconds - said <= max(60, seconds / 20) or said == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "seconds"), (30, "seconds"), (31, "1 min"), (452, "8 min"), (599, "10 min"), (13 * 60, "15 min"),
     (91 * 60, "90 min"), (2 * 3600, "2 h"), (36 * 3600, "36 h"), (50 * 3600, "2 d")],
)  # fmt: skip
def test_estimates_for_people(seconds: float, text: str) -> None:
    assert about_text(seconds) == text


@given(st.integers(150, 10**8))
def test_an_estimate_for_people_is_a_fifth_off_at_most(seconds: int) -> None:
    assert quantity.seconds(about_text(seconds).replace(" ", "")) == pytest.approx(seconds, rel=0.21)


def test_shares_for_people() -> None:
    assert [share_text(value) for value in (0.0, 0.068, 0.9996, 1.0)] == ["0.0 %", "6.8 %", "100.0 %", "100.0 %"]


def test_the_nearest_name_or_all_of_them() -> None:
    assert nearest("treshold", ["threshold", "trend"]) == "did you mean threshold?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (12_345, "12,345 runs")])
def test_one_and_many(number: int, text: str) -> None:
    assert quantity.count_text(number, "run") == text
