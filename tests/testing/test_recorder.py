"""Histories on disk: every event is whole, whatever kills the process that writes it."""

from __future__ import annotations

import pytest

from lab.histories.events import Init, Note, Poll, Row, Send
from lab.histories.recorder import Recorder, decode_history, encode_history, merge, read_history
from txlog.errors import OutcomeUnknownError, ProducerFencedError, StorageError, TxlogTimeoutError
from txlog.testing.clock import ManualClock


def test_events_come_back_from_the_file(tmp_path):
    recorder = Recorder("a", ManualClock(), tmp_path / "a.jsonl")
    operation = recorder.invoke("p", Send(topic="t", partition=0, values=(1, 2**62)))
    recorder.ok("p", operation, Send(topic="t", partition=0, values=(1, 2**62), base_offset=7))
    recorder.single("p", Note(text="ä"))
    poll = Poll(topic="t", partition=0, start=0, end=2, rows=(Row(offset=0, value=1, content="x"),))
    recorder.info("p", recorder.invoke("p", poll), poll, StorageError("gone"))
    recorder.close()
    assert read_history(tmp_path) == recorder.events
    assert decode_history(encode_history(recorder.events)) == recorder.events
    assert recorder.events[-1].error == "StorageError: gone"


def test_half_a_line_was_never_written(tmp_path):
    recorder = Recorder("a", ManualClock(), tmp_path / "a.jsonl")
    recorder.single("p", Note(text="one"))
    recorder.single("p", Note(text="two"))
    recorder.close()
    data = (tmp_path / "a.jsonl").read_bytes()
    for cut in range(len(data.splitlines(keepends=True)[0]), len(data)):
        assert decode_history(data[:cut]) == recorder.events[:1]


def test_a_file_has_one_writer(tmp_path):
    Recorder("a", ManualClock(), tmp_path / "a.jsonl").close()
    with pytest.raises(FileExistsError):
        Recorder("a", ManualClock(), tmp_path / "a.jsonl")


def test_files_are_merged_by_the_shared_clock(tmp_path):
    clock = ManualClock()
    one = Recorder("one", clock, tmp_path / "one.jsonl")
    two = Recorder("two", clock, tmp_path / "two.jsonl")
    for recorder in (two, one, two):
        clock.advance_ms(1)
        clock.step_wall_ms(-10)
        recorder.single("p", Note(text=recorder.source))
    one.close()
    two.close()
    merged = read_history(tmp_path / "one.jsonl", tmp_path / "two.jsonl")
    assert [event.source for event in merged] == ["two", "one", "two"]
    assert merged == merge(one.events, two.events)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ProducerFencedError("x"), "fail"),
        (StorageError("x"), "fail"),
        (OutcomeUnknownError("x"), "info"),
        (TxlogTimeoutError("x"), "info"),
    ],
)
def test_an_error_says_how_the_operation_ended(error, kind):
    recorder = Recorder("a", ManualClock())

    def attempt() -> Init:
        raise error

    with pytest.raises(type(error)):
        recorder.call("p", Init(transactional_id="x"), attempt)
    assert [event.type for event in recorder.events] == ["invoke", kind]


def test_a_crash_leaves_the_operation_open():
    recorder = Recorder("a", ManualClock())

    def attempt() -> Init:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.call("p", Init(transactional_id="x"), attempt)
    assert [event.type for event in recorder.events] == ["invoke"]


def test_a_call_records_its_answer():
    recorder = Recorder("a", ManualClock())
    answer = recorder.call("p", Init(transactional_id="x"), lambda: Init(transactional_id="x", producer_id=3))
    assert recorder.events[-1].what == answer
