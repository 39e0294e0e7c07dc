"""The message of docs/alert.*: what a leak on a real engine was told as. `python -m tests.example` writes it anew."""

from datetime import UTC
from pathlib import Path

from kvlogd.letter import Item, compose
from kvlogd.model import AlertState, Letter, NoticeKind, Panel
from kvlogd.outbox import alert_id
from kvlogd.panel import read_panel
from kvlogd.picture import png
from kvlogd.replay import Options, opened_store, replay
from kvlogd.rules import load_rules, shipped_folder

ROOT = Path(__file__).parent.parent
LOG = ROOT / "tests/data/real/slow-leak-with-idle-spells.log"
TEXT, HTML, PNG = (ROOT / "docs" / f"alert.{ending}" for ending in ("txt", "html", "png"))


def example() -> tuple[Letter, Panel]:
    """Return the first page of the log, and its picture's numbers."""
    rules = load_rules([shipped_folder()])
    with opened_store(None) as store:
        outcome = replay([LOG], rules, store, Options(UTC, 2026))
        event = next(event for event in outcome.alerts if event.state is AlertState.FIRING)
        panel = read_panel(store, event, event.at_s)
    rule = next(rule for rule in rules if rule.id == event.key.rule)
    run = next(run for run in outcome.runs if run.run_id == event.key.run)
    item = Item(event, alert_id(event.key, event.at_s), run=run)
    assert panel is not None
    letter = compose(NoticeKind.FIRING, [item], rule=rule, host="gpu-07", at_s=event.at_s, panel=panel)
    return letter, panel


def text_of(letter: Letter) -> str:
    return f"Subject: {letter.subject}\n\n{letter.text}"


if __name__ == "__main__":
    found, drawn = example()
    TEXT.write_text(text_of(found), encoding="utf-8")
    HTML.write_text(found.html, encoding="utf-8")
    PNG.write_bytes(png(drawn) or b"")
