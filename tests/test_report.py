"""The page of a replay: whole and well-formed, small however long the logs, gaps shown, nothing from outside."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import notice
from kvlogd.chart import (
    Axis,
    Level,
    Point,
    apart,
    clock,
    cut_off,
    escaped,
    fit_of,
    line_path,
    nice_ceiling,
    number,
    places,
    short_count,
    stretches,
    ticks,
)
from kvlogd.cli import main
from kvlogd.errors import ConfigError, SourceError
from kvlogd.model import AlertEvent, AlertKey, AlertState, Engine, Gap, Run, Severity, Stats
from kvlogd.outcome import Outcome, SourceReport
from kvlogd.proof import sql_for
from kvlogd.replay import Options, opened_store, replay
from kvlogd.report import MOST_FINDINGS, MOST_POINTS, episodes_of, read_points, write_report
from kvlogd.rows import Batch
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.store import Store

REAL = Path(__file__).parent / "data" / "real"
RULES = load_rules([shipped_folder()])
T0 = 1_764_400_000.0
HOSTILE = "<script>alert('x')</script>\"&\x1b[31m"
VOID = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Parses a page strictly: each tag that opens must close, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if self.open[-1:] != ["style"] else ""

    def styled(self, tag: str, *classes: str) -> list[dict[str, str | None]]:
        """Return the attributes of all tags that have these classes."""
        found = [attrs for name, attrs in self.tags if name == tag]
        return [attrs for attrs in found if set(classes) <= set((attrs.get("class") or "").split())]


def written(tmp_path: Path, name: str) -> tuple[Outcome, str]:
    with opened_store(None) as store:
        outcome = replay([REAL / name], RULES, store, Options(UTC, 2026))
        write_report(tmp_path / "r.html", outcome, store, RULES)
    return outcome, (tmp_path / "r.html").read_text(encoding="utf-8")


def sound(text: str) -> Page:
    """Check what holds for each page, and return it parsed."""
    page = Page(text)
    assert not re.search(r"nan|infinity|\binf\b|None", page.words, re.IGNORECASE)
    for tag, attrs in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        for name, value in attrs.items():
            assert not name.startswith("on")
            assert name not in {"href", "src"} or (value or "").startswith("#")
            if name in {"d", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy"}:
                assert not re.search(r"nan|inf|None", value or "")
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {(attrs["href"] or "")[1:] for _, attrs in page.tags if "href" in attrs}
    assert targets <= set(ids)
    return page


def steps(path: str) -> list[list[int]]:
    """Return the widths of the steps of each stretch of a path."""
    found = []
    for piece in path.split("M")[1:]:
        numbers = [int(n) for n in re.findall(r"-?\d+", piece.replace("h0", ""))]
        found.append(numbers[2::2])
    return found


@pytest.mark.parametrize(
    "name", ["leak-to-hang-and-restart.log", "slow-leak-with-idle-spells.log", "healthy-three-loads.log.gz"]
)
def test_page_of_a_real_log_is_sound(tmp_path: Path, name: str) -> None:
    outcome, text = written(tmp_path, name)
    page = sound(text)
    assert len(text) < 60_000
    fired = [event for event in outcome.alerts if event.state is AlertState.FIRING]
    for event in fired:
        assert notice.subject(event) in page.words
        assert sql_for(event) in page.words
    assert ("Nothing found." in page.words) == (not fired)
    assert len(page.styled("rect", "span")) == len(episodes_of(outcome.alerts))
    assert [event.name for event in os.scandir(tmp_path)] == ["r.html"]


def test_leak_hang_and_restart_are_marked(tmp_path: Path) -> None:
    _, text = written(tmp_path, "leak-to-hang-and-restart.log")
    page = sound(text)
    assert "run 2, restart" in page.words
    assert re.search(r"kv-leak 14:2\d", page.words)
    assert re.search(r"engine-stall 14:3\d", page.words)
    assert "at this rate full at 14:3" in page.words
    assert len(page.styled("line", "start", "critical")) == 3
    assert len(page.styled("line", "run")) == 1
    assert len(page.styled("line", "fit")) == 1


def test_no_gap_is_bridged(tmp_path: Path) -> None:
    _, text = written(tmp_path, "leak-to-hang-and-restart.log")
    for series in ("free", "running", "waiting"):
        [attrs] = Page(text).styled("path", "line", series)
        widths = steps(attrs["d"] or "")
        # 2000 units are 16 min 27 s, and a record comes each 2 s: three intervals are 12 units
        assert len(widths) >= 3
        assert max(width for stretch in widths for width in stretch) <= 13


def fired(
    at_s: float, evidence: Mapping[str, float], scope: str = "vllm.log/0", rule: str = "kv-leak", run: int | None = 1
) -> AlertEvent:
    key = AlertKey(rule, scope, run)
    state, severity = AlertState.FIRING, Severity.CRITICAL
    return AlertEvent(key, state, rule, severity, "vllm.log", 0, at_s, at_s - 600, None, evidence)


LEAK = {
    "shift": 0.2,
    "lost_per_h": 0.1,
    "running_low": 4.0,
    "running_high": 8.0,
    "usage_now": 0.5,
    "full_in_s": 16_920.0,
    "shift_error": math.nan,
}


def source_report(**more: Any) -> SourceReport:
    report = SourceReport("vllm.log", 100, 200, 0, 0, 1, 1, T0, T0 + 1000, [], [], None, True)
    return report._replace(**more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.duckdb") as opened:
        yield opened


Usage = Callable[[float], float]


def fill(store: Store, times: Sequence[float], *, engine: int = 1, runs: int = 1, usage: Usage = lambda _: 0.4) -> None:
    """Put one engine's records into a store, its runs of equal length."""
    label = f"vllm.log/{engine - 1}"
    lives = [
        Run(1000 * engine + i, engine, i + 1, times[i * len(times) // runs], True, end_reason="crash")
        for i in range(runs)
    ]
    of = [1000 * engine + i * runs // len(times) for i in range(len(times))]
    stats = [Stats(t, None, engine - 1, None, 1.0, 2.0, i % 9, i % 4, usage(t)) for i, t in enumerate(times)]
    store.commit(Batch([Engine(engine, "vllm.log", engine - 1, label)], lives, stats, of))


def result(store: Store, alerts: Sequence[AlertEvent] = (), **more: Any) -> Outcome:
    return Outcome(alerts, store.engines(), store.runs(), [source_report(**more)], [])


def page_of(path: Path, outcome: Outcome, store: Store) -> str:
    write_report(path / "r.html", outcome, store, RULES)
    return (path / "r.html").read_text(encoding="utf-8")


def test_thirty_days_of_sixteen_engines_stay_below_a_megabyte(store: Store, tmp_path: Path) -> None:
    times = [T0 + 400 * i for i in range(30 * 216)]
    for engine in range(1, 17):
        fill(store, times, engine=engine, runs=6, usage=lambda t: 0.5 + 0.45 * math.sin(t * t))
    alerts = [fired(T0 + 8000 * i, LEAK, f"vllm.log/{i % 16}", run=1000 * (i % 16 + 1) + i // 16) for i in range(300)]
    text = page_of(tmp_path, result(store, alerts), store)
    page = sound(text)
    assert 200_000 < len(text.encode()) < 1_000_000
    assert len(page.styled("svg", "chart")) == 16
    assert f"and {300 - MOST_FINDINGS} more" in page.words
    for attrs in page.styled("path", "line", "free"):
        assert sum(len(stretch) + 1 for stretch in steps(attrs["d"] or "")) <= MOST_POINTS


def test_points_stay_few_however_often_the_engine_falls_silent_or_restarts(store: Store) -> None:
    times = [T0 + 100 * i + 10 * j for i in range(3000) for j in range(3)]
    fill(store, times, runs=900)
    points = read_points(store, 1, 600)
    assert 100 < len(points) <= 600
    assert points == sorted(points, key=lambda p: p.at_s)


def test_points_keep_extremes_and_break_where_silent_or_restarted(store: Store) -> None:
    times = [T0 + 10 * i for i in range(100)] + [T0 + 5000 + 10 * i for i in range(100)]
    fill(store, times, runs=4, usage=lambda t: 0.9 if t == T0 + 500 else 0.4)
    points = read_points(store, 1, 600)
    assert [len(stretch) for stretch in stretches(points)] == [50, 50, 50, 50]
    assert min(point.free.low for point in points) == pytest.approx(0.1)
    few = read_points(store, 1, 40)
    assert len(few) <= 40
    assert min(point.free.low for point in few) == pytest.approx(0.1)
    assert len(stretches(few)) == 4


def test_engine_without_records_says_so(store: Store, tmp_path: Path) -> None:
    store.commit(Batch([Engine(1, "vllm.log", 0, "vllm.log/0")]))
    assert read_points(store, 1, 600) == []
    outcome = result(store, stats_lines=0, first_s=None, last_s=None, blind="statistics are off")
    page = sound(page_of(tmp_path, outcome, store))
    assert "No stats record of this engine was read." in page.words
    assert "Nothing to judge." in page.words
    assert "no stats record: statistics are off" in page.words


def test_one_record_is_a_dot(store: Store, tmp_path: Path) -> None:
    fill(store, [T0])
    [attrs] = sound(page_of(tmp_path, result(store), store)).styled("path", "line", "free")
    assert (attrs["d"] or "").endswith("h0")


def test_numbers_that_are_none_never_get_in(store: Store, tmp_path: Path) -> None:
    fill(store, [T0 + 10 * i for i in range(60)], usage=lambda t: math.nan if t == T0 + 100 else 0.4)
    text = page_of(tmp_path, result(store, [fired(T0 + 550, LEAK)]), store)
    page = sound(text)
    assert "lost an hour" in page.words
    assert "standard error" not in page.words


def test_hostile_labels_are_escaped(store: Store, tmp_path: Path) -> None:
    fill(store, [T0 + 10 * i for i in range(60)])
    engine = Engine(1, HOSTILE, 0, HOSTILE)
    [run] = store.runs()
    event = fired(T0 + 500, {HOSTILE: 1.0}, HOSTILE, rule=HOSTILE, run=run.run_id)._replace(source=HOSTILE)
    over = event._replace(state=AlertState.RESOLVED, at_s=T0 + 550, reason=HOSTILE)
    report = source_report(
        source=HOSTILE, gaps=[Gap(HOSTILE, T0, HOSTILE, 3)], abstained=[(HOSTILE, HOSTILE, HOSTILE)], blind=HOSTILE
    )
    runs = [run, run._replace(run_id=2, number=2, started_s=T0 + 300, model=HOSTILE, vllm_version=HOSTILE)]
    outcome = Outcome([event, over], [engine], runs, [report], [SourceError(HOSTILE, where=HOSTILE)])
    [rule, *_] = RULES
    hostile = rule._replace(id=HOSTILE, do=(HOSTILE,))
    write_report(tmp_path / "r.html", outcome, store, [hostile])
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "\x1b" not in text
    assert page.words.count("<script>alert('x')</script>\"&?[31m") >= 15


def test_gaps_abstentions_and_errors_are_told(store: Store, tmp_path: Path) -> None:
    fill(store, [T0 + 10 * i for i in range(60)])
    gaps = [Gap("vllm.log", T0, "line too long", 1234)]
    outcome = result(store, gaps=gaps, abstained=[("kv-leak", "vllm.log/0", "too young")], duplicates=7)
    outcome = outcome._replace(errors=[SourceError("cannot be read", where="b.log", mend="allow it")])
    words = sound(page_of(tmp_path, outcome, store)).words
    for told in ("line too long", "1,234", "too young", "b.log: cannot be read: allow it", "7 records stood there"):
        assert told in words


def test_source_alert_is_marked_on_its_engines_and_host_alert_only_told(store: Store, tmp_path: Path) -> None:
    fill(store, [T0 + 10 * i for i in range(100)])
    alerts = [
        fired(T0 + 700, {"blind_for": 60.0}, "vllm.log", "data-source", None),
        fired(T0 + 800, {"moved": 5.0}, "host", "host-memory-growth", None),
    ]
    page = sound(page_of(tmp_path, result(store, alerts), store))
    assert len(page.styled("rect", "span")) == 1
    assert "host-memory-growth host" in page.words


def test_folder_that_is_missing_is_told(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_report(tmp_path / "no" / "r.html", result(store), store, RULES)
    assert "its folder is missing" in str(caught.value)
    assert caught.value.where.endswith("no/r.html")
    assert caught.value.mend


def test_only_files_are_replaced_and_a_failure_leaves_the_old_page(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no file"):
        write_report(Path(os.devnull), result(store), store, RULES)
    with pytest.raises(ConfigError, match="is no file"):
        write_report(tmp_path, result(store), store, RULES)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(tmp_path / ("r" * 300), result(store), store, RULES)
    old = tmp_path / "r.html"
    old.write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to(old)
    write_report(link, result(store), store, RULES)
    assert link.is_symlink()
    assert old.read_text().startswith("<!DOCTYPE html>")
    assert not list(tmp_path.glob(".kvlogd-report-*"))


def test_command_tells_findings_also_where_the_page_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, lost = REAL / "leak-to-hang-and-restart.log", tmp_path / "no" / "r.html"
    assert main(["replay", str(log), "--timezone", "UTC", "--year", "2026", "--report", str(lost)]) == 2
    told = capsys.readouterr()
    assert "kv-leak" in told.out
    assert "its folder is missing" in told.err


def test_episodes_come_gravest_first() -> None:
    grave = fired(T0 + 500, {})
    minor = fired(T0, {}, rule="kv-capacity")._replace(severity=Severity.INFO)
    over = grave._replace(state=AlertState.RESOLVED, at_s=T0 + 900)
    again = grave._replace(at_s=T0 + 950)
    assert episodes_of([minor, grave, grave._replace(at_s=T0 + 600), over, again]) == [
        (grave, over),
        (again, None),
        (minor, None),
    ]


def point(at_s: float, free: float, stretch: int = 1) -> Point:
    nothing = Level(0.0, 0.0, 0.0)
    return Point(at_s, Level(free, free, free), nothing, nothing, stretch)


def test_fit_follows_the_finding_and_ends_with_the_run() -> None:
    event = fired(T0 + 3600, LEAK)
    fit = fit_of(event, 0.5, [], None)
    assert fit is not None
    assert fit.start_s == T0 + 3000
    assert fit.full_s == pytest.approx(T0 + 3600 + 16_920, abs=0.01)
    assert fit.start_free == pytest.approx(0.5 + 0.1 / 6)
    assert fit.end_free == pytest.approx(0.03)
    short = fit_of(event, 0.5, [], T0 + 7200)
    assert short is not None
    assert short.end_s == T0 + 7200
    assert short.end_free == pytest.approx(0.4)
    lower = fit_of(event, 0.5, [point(T0 + 3300, 0.43)], None)
    assert lower is not None
    assert lower.full_s == pytest.approx(T0 + 3300 + 0.4 / 0.1 * 3600, abs=0.01)
    at_s, free = cut_off(lower, Axis(T0, T0 + 3300))
    assert at_s == T0 + 3300
    assert free == pytest.approx(0.43)
    assert fit_of(fired(T0, {"usage_now": 0.5, "lost_per_h": math.nan, "full_in_s": 1.0}), 0.5, [], None) is None
    assert fit_of(fired(T0, {"usage_now": 0.5}), 0.5, [], None) is None


@given(st.floats(1e-3, 3e9), st.floats(0, 4e9))
def test_ticks_are_few_round_and_inside(span_s: float, start_s: float) -> None:
    axis = Axis(start_s, start_s + span_s)
    if axis.end_s > axis.start_s:
        found = ticks(axis)
        assert len(found) <= 9
        assert all(axis.start_s - 1e-6 <= at_s <= axis.end_s + 1e-6 for at_s, _ in found)


def test_texts_of_an_axis() -> None:
    assert [label for _, label in ticks(Axis(T0, T0 + 3600))][:2] == ["07:10", "07:20"]
    assert [label for _, label in ticks(Axis(T0, T0 + 2 * 86400))][-2:] == ["Dec 01", "06:00"]
    assert clock(T0, Axis(T0, T0 + 60)) == "07:06"
    assert clock(T0, Axis(T0, T0 + 86401)) == "Nov 29 07:06"
    assert [nice_ceiling(v) for v in (0, 1, 3, 7, 9, 20.5, 999)] == [1, 1, 4, 8, 10, 40, 1000]
    assert [short_count(v) for v in (0, 8000, 20_000, 4_000_000)] == ["0", "8000", "20k", "4M"]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_coordinates_are_short_or_refused(value: float) -> None:
    if not math.isfinite(value):
        with pytest.raises(ValueError):
            number(value)
    elif abs(value) < 1e5:
        assert float(number(value)) == pytest.approx(value, abs=0.06)
        assert number(value) != "-0"


@given(st.text())
def test_escaping_leaves_no_markup(label: str) -> None:
    assert not set(escaped(label)) & set("<>\"'")
    assert escaped(label).isprintable()


@given(st.floats(0, 90), st.floats(0, 90))
def test_labels_move_apart_and_stay_inside(first: float, second: float) -> None:
    a, b = apart([first, second], 0, 90)
    assert abs(a - b) >= 14 - 1e-6
    assert -1e-6 <= min(a, b) <= max(a, b) <= 90 + 1e-6
    assert (a > b) == (first > second)


def test_labels_share_rows_only_where_they_fit() -> None:
    first, second, third = places([(0.0, "kv-leak 14:28"), (0.1, "kv-leak 14:29"), (0.98, "kv-leak 15:50")], 2)
    assert (first and first.lane, second and second.lane, third and third.lane) == (0, 1, 0)
    assert third is not None
    assert third.leftwards is True
    assert places([(0.0, "a long label"), (0.0, "a long label")], 1)[1] is None


def test_paths_are_relative() -> None:
    assert line_path([(5, 7)]) == "M5 7h0"
    assert line_path([(5, 7), (6, 3), (9, 3)]) == "M5 7l1-4 3 0"


def test_a_page_never_takes_the_place_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(b"INFO 11-29 14:16:25 [loggers.py:335] something\n")
    assert main(["replay", "--timezone", "UTC", "--report", str(log), str(log)]) == 2
    assert "is there already and is no page" in capsys.readouterr().err
    assert log.read_bytes().startswith(b"INFO")
