"""`kvlogd notify test`: what a person learns of each channel, and what a script does."""

from pathlib import Path

import pytest

from kvlogd.advice import advice, told
from kvlogd.model import Fault, Outcome
from tests.command import installed, kvlogd
from tests.office import children
from tests.sinks import Answer, HttpSink, SmtpSink

CANARY = "CANARY-9e2f"


def config(folder: Path, **urls: str) -> Path:
    """Return a config whose channels have these URLs."""
    lines = []
    for name, url in urls.items():
        path = folder / f"{name}.url"
        path.write_text(url)
        path.chmod(0o600)
        lines.append(f"  - {{name: {name}, url_file: {path}}}\n")
    (folder / "kvlogd.yaml").write_text("channels:\n" + "".join(lines) if lines else "channels: []\n")
    return folder / "kvlogd.yaml"


def test_each_channel_gets_a_message_and_tells_how_it_went(tmp_path: Path) -> None:
    with HttpSink() as good, HttpSink() as bad, SmtpSink() as mail:
        bad.default = Answer(403)
        path = config(tmp_path, oncall=good.url(CANARY), chat=bad.url(CANARY), mail=mail.url())
        before = children()
        ran = kvlogd("notify", "test", "--config", path)
        assert ran.status == 1
        lines = {line.split()[0]: line for line in ran.out.splitlines()}
        assert set(lines) == {"oncall", "chat", "mail"}
        assert lines["oncall"].startswith("oncall  sent (200), ")
        assert lines["oncall"].endswith(" s")
        assert lines["chat"].startswith("chat    refused (403), ")
        assert lines["chat"].endswith(": " + advice(Outcome(Fault.REFUSED, 403)))
        assert CANARY not in ran.out + ran.err
        (request,) = good.requests
        assert "test of channel oncall" in request.json["title"]
        assert "Nothing is wrong" in request.json["message"]
        assert "Nothing is wrong" in mail.mails[0].part("text/plain")
        assert "Nothing is wrong" in mail.mails[0].part("text/html")
        assert children() == before


def test_a_script_gets_one_object_a_channel(tmp_path: Path) -> None:
    with HttpSink() as sink:
        sink.script(Answer(429, {"Retry-After": "9"}))
        path = config(tmp_path, oncall=sink.url(), chat=sink.url())
        ran = installed("notify", "test", "--json", "--config", path)
        assert ran.status == 1
        found = {one.pop("channel"): one for one in ran.records}
        assert set(found) == {"oncall", "chat"}
        busy, fine = sorted(found.values(), key=lambda one: one["fault"] is None)
        assert busy["took_s"] > 0
        assert {**busy, "took_s": 0} == {
            "fault": "busy", "status": 429, "retry_after_s": 9.0, "took_s": 0, "mend": advice(Outcome(Fault.BUSY, 429)),
        }  # fmt: skip
        assert (fine["fault"], fine["status"], fine["mend"]) == (None, 200, "")


def test_one_channel_alone_and_a_name_that_is_not_there(tmp_path: Path) -> None:
    with HttpSink() as sink:
        path = config(tmp_path, oncall=sink.url("one"), chat=sink.url("two"))
        assert kvlogd("notify", "test", "chat", "--config", path).status == 0
        assert [request.path for request in sink.requests] == ["/two"]
        wrong = kvlogd("notify", "test", "oncal", "--config", path)
        assert (wrong.status, wrong.complaint) == (
            2,
            "kvlogd: oncal: no channel of that name: did you mean oncall?",
        )
    none = kvlogd("notify", "test", "--config", config(tmp_path))
    assert (none.status, none.complaint.split(":")[1]) == (2, " channels")


def test_a_channel_without_its_url_keeps_no_other_from_being_tried(tmp_path: Path) -> None:
    with HttpSink() as sink:
        path = config(tmp_path, oncall=sink.url(), chat="bogus://" + CANARY)
        (tmp_path / "oncall.url").chmod(0o644)
        ran = kvlogd("notify", "test", "--json", "--config", path)
        assert ran.status == 1
        mends = {one["channel"]: (one["fault"], one["mend"]) for one in ran.records}
        assert mends["oncall"][0] == mends["chat"][0] == "unusable"
        file = tmp_path / "oncall.url"
        assert mends["oncall"][1] == f"{file}: others can read this secret (mode 0644): chmod 600 {file}"
        assert CANARY not in ran.out


@pytest.mark.parametrize("fault", Fault)
def test_there_is_advice_for_every_fault(fault: Fault) -> None:
    assert advice(Outcome(fault))
    assert told(Outcome(fault, 500, 90.0)) == f"{fault.value} (500), again after 1 min 30 s"
    assert advice(Outcome(None, 200)) == ""


def test_advice_knows_the_number() -> None:
    assert "moved" in advice(Outcome(Fault.REFUSED, 302))
    assert "gone" in advice(Outcome(Fault.REFUSED, 404))
    assert advice(Outcome(Fault.REFUSED, 599)) == advice(Outcome(Fault.REFUSED))
