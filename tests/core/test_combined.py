"""What is an object of several commit records, and which objects are refused? See PROTOCOL.md, "Combined records"."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.partition_log import TP, Log
from txlog.core import envelope
from txlog.core.append_rules import RollPolicy, next_control, next_record
from txlog.core.record_checks import StoredRecord, end_digest, stored_record, stored_records
from txlog.core.records import CommitRecord
from txlog.core.state import replay
from txlog.errors import CorruptRecordError, UnsupportedStoreError
from txlog.protocol.slot_record import encode_combined


def alone(*producers: int) -> Log:
    log = Log()
    for pid in producers:
        log.append(lambda state, write_id: next_record(state, log.draft(pid, 0, 0), now_ms=1, write_id=write_id))  # noqa: B023
    return log


def combined(log: Log) -> bytes:
    """Return the records of a log as one object."""
    return b"".join(each.data for each in encode_combined(TP, [(each.record, b"") for each in log.records]))


def without_links(stored: StoredRecord) -> CommitRecord:
    return msgspec.structs.replace(stored.record, previous="", more=msgspec.UNSET)


def test_each_record_is_what_it_would_be_alone() -> None:
    log = alone(1, 2, 3)
    data = combined(log)
    found = stored_records(data, TP, 0)
    assert list(map(without_links, found)) == list(map(without_links, log.records))
    assert [each.record.more for each in found] == [True, True, msgspec.UNSET]
    assert [each.slot for each in found] == [0, 0, 0]
    assert b"".join(each.data for each in found) == data
    # The chain goes on within the object.
    assert [each.record.previous for each in found[1:]] == [each.digest for each in found[:-1]]
    assert [each.digest for each in found] == [envelope.digest(each.data) for each in found]
    assert end_digest(data) == found[-1].digest
    after = replay(log.start, found)
    assert (after.producers, after.next_offset) == (log.state.producers, 3)
    assert after.segment_bytes == len(data) + sum(file.bytes for each in found for file in each.record.files)


def test_inline_rows_lie_behind_their_own_record() -> None:
    log = alone(1, 2)
    rows = (b'{"more"\n', b"\n\n")
    given = [
        (msgspec.structs.replace(each.record, files=(), payload_bytes=len(payload)), payload)
        for each, payload in zip(log.records, rows, strict=True)
    ]
    data = b"".join(each.data for each in encode_combined(TP, given))
    assert tuple(each.payload for each in stored_records(data, TP, 0)) == rows


def test_one_record_is_stored_as_ever() -> None:
    (stored,) = alone(7).records
    assert combined(alone(7)) == stored.data
    assert b"more" not in stored.data
    assert stored_records(stored.data, TP, 0) == (stored_record(stored.data, TP, 0),)


def test_a_cut_off_object_is_damage_wherever_it_ends() -> None:
    data = combined(alone(1, 2, 3))
    ends = [len(data[: data.index(b"\n") + 1])]
    for length in [*range(0, len(data), 7), *ends, data.rindex(b"\n", 0, -1) + 1]:
        with pytest.raises(CorruptRecordError, match=r"orders/0/0+\.batch"):
            stored_records(data[:length], TP, 0)
        assert end_digest(data[:length]) != end_digest(data)


def test_a_flipped_bit_is_damage_wherever_it_is() -> None:
    data = combined(alone(1, 2))
    for bit in range(0, len(data) * 8, 5):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptRecordError, UnsupportedStoreError), match=r"orders/0/0+\.batch"):
            stored_records(bytes(changed), TP, 0)


def test_bytes_after_the_last_record_are_damage() -> None:
    data = combined(alone(1, 2))
    with pytest.raises(CorruptRecordError):
        stored_records(data + alone(1).records[0].data, TP, 0)


@pytest.mark.parametrize("fields", [{"base_offset": 5}, {"segment_base": 1}])
def test_records_that_do_not_belong_together_are_refused(fields: dict[str, Any]) -> None:
    log = alone(1, 2)
    first, second = [(each.record, b"") for each in log.records]
    given = [first, (msgspec.structs.replace(second[0], **fields), b"")]
    data = b"".join(
        envelope.encode(msgspec.structs.replace(record, more=True if record is first[0] else msgspec.UNSET))
        for record, _ in given
    )
    with pytest.raises(CorruptRecordError, match=r"orders/0/0+\.batch"):
        stored_records(data, TP, 0)


@pytest.mark.parametrize("log_start_offset", [None, 1])
def test_a_control_record_has_its_object_alone(log_start_offset: int | None) -> None:
    log = alone(1)
    control = next_control(log.state, now_ms=1, write_id="e" * 32, log_start_offset=log_start_offset, roll=RollPolicy())
    made = encode_combined(TP, [(log.records[0].record, b""), (control, b"")])
    with pytest.raises(CorruptRecordError, match="record cannot share its object"):
        stored_records(b"".join(each.data for each in made), TP, 0)


def test_an_object_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = combined(alone(1, 2))
    monkeypatch.setattr(envelope, "MAX_COMMIT_BYTES", len(data) - 1)
    with pytest.raises(CorruptRecordError, match=f"{len(data)} bytes, more than"):
        stored_records(data, TP, 0)
