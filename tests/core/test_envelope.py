"""A damaged object is refused with its name, and an undamaged one decodes to what was written."""

from __future__ import annotations

import google_crc32c
import msgspec
import pytest
from hypothesis import given, strategies as st

from txlog.core import envelope
from txlog.core.records import Boundary, CommitRecord
from txlog.errors import CorruptRecordError, UnsupportedStoreError

PATH = "orders/0/00000000000000000007.batch"
RECORD = CommitRecord(
    base_offset=7,
    records=2,
    kind="data",
    timestamp=5,
    segment_base=0,
    payload_bytes=4,
    write_id="ab" * 16,
    previous="cd" * 32,
)
STORED = envelope.encode(RECORD, b"rows")


def sealed(line: bytes, payload: bytes = b"") -> bytes:
    """Return `line`, a JSON object, with a right checksum. No accident can produce such an object."""
    head = line[:-1] + (b"," if line != b"{}" else b"") + b'"crc32c":"'
    crc = google_crc32c.value(head + b'00000000"}\n' + payload)
    return head + b'%08x"}\n' % crc + payload


def refused(data: bytes, kind: type[msgspec.Struct] = CommitRecord) -> str:
    with pytest.raises(CorruptRecordError, match=r"^orders/0/00000000000000000007\.batch: ") as caught:
        envelope.decode(data, kind, PATH)
    return str(caught.value)


def test_round_trip() -> None:
    assert envelope.decode(STORED, CommitRecord, PATH) == (RECORD, b"rows")


def test_first_line_is_readable_and_the_crc_stands_at_its_end() -> None:
    line, _, payload = STORED.partition(b"\n")
    fields = msgspec.json.decode(line)
    assert fields["base_offset"] == 7
    assert line.endswith(b',"crc32c":"%s"}' % fields["crc32c"].encode())
    assert payload == b"rows"
    assert google_crc32c.value(STORED.replace(fields["crc32c"].encode(), b"00000000")) == int(fields["crc32c"], 16)


@given(st.binary(max_size=300))
def test_any_payload_comes_back(payload: bytes) -> None:
    record = msgspec.structs.replace(RECORD, payload_bytes=len(payload))
    assert envelope.decode(envelope.encode(record, payload), CommitRecord, PATH) == (record, payload)


def test_every_bit_flip_is_refused() -> None:
    """Length, checksum and nesting are checked before anything is parsed (R2)."""
    for position in range(len(STORED)):
        for bit in range(8):
            damaged = bytearray(STORED)
            damaged[position] ^= 1 << bit
            refused(bytes(damaged))


def test_every_truncation_and_extension_is_refused() -> None:
    for length in range(len(STORED)):
        refused(STORED[:length])
    refused(STORED + b"\0")
    refused(STORED + STORED)


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    refused(data)
    refused(data + b"\n")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
        max_leaves=20,
    )
)
def test_other_json_with_a_right_checksum_is_refused(value: object) -> None:
    fields = value if isinstance(value, dict) else {"records": value}
    refused(sealed(msgspec.json.encode(fields)))


@pytest.mark.parametrize(
    "line",
    [
        b'{"version":1,"offset":1}',  # created_at is missing
        b'{"offset":1,"created_at":0}',  # version is missing
        b'{"version":0,"offset":1,"created_at":0}',
        b'{"version":-1,"offset":1,"created_at":0}',
        b'{"version":1,"offset":-1,"created_at":0}',
        b'{"version":1,"offset":9223372036854775808,"created_at":0}',
        b'{"version":1,"offset":1e400,"created_at":0}',
        b'{"version":1,"offset":1.5,"created_at":0}',
        b'{"version":1,"offset":"1","created_at":0}',
        b'{"version":1,"offset":true,"created_at":0}',
        b'{"version":1,"offset":1,"created_at":0,"x":"\xff"}',  # not UTF-8
        b'{"version":1,"offset":1,"created_at":0,"x":NaN}',
        b'{"version":1,"offset":1,"created_at":0,,"x":1}',
        b'{"version":1,"offset":1,"created_at":0}}',
        b'{"version":1,"offset":' + b"9" * 5000 + b',"created_at":0}',
    ],
)
def test_wrong_fields_are_refused(line: bytes) -> None:
    refused(sealed(line), Boundary)


def test_unknown_fields_are_ignored() -> None:
    """A later writer may add fields (R4)."""
    data = sealed(b'{"version":1,"later":{"a":[1,2,{"b":null}]},"offset":1,"created_at":2}')
    assert envelope.decode(data, Boundary, PATH) == (Boundary(offset=1, created_at=2), b"")


@pytest.mark.parametrize(
    "line",
    [
        b'{"version":2,"offset":1,"created_at":2}',
        b'{"version":2,"offset":"of another kind"}',
        b'{"version":9223372036854775807}',
    ],
)
def test_a_newer_version_is_refused_as_such(line: bytes) -> None:
    with pytest.raises(
        UnsupportedStoreError, match=r"00007\.batch: format version \d+, and this txlog reads up to 1; upgrade"
    ):
        envelope.decode(sealed(line), Boundary, PATH)


class TestNesting:
    def nested(self, depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
        return sealed(b'{"version":1,"offset":1,"created_at":2,"x":' + opening * depth + closing * depth + b"}")

    def test_up_to_the_limit(self) -> None:
        envelope.decode(self.nested(envelope.MAX_DEPTH - 1), Boundary, PATH)
        assert "nested deeper than 24 levels" in refused(self.nested(envelope.MAX_DEPTH), Boundary)

    def test_objects_and_arrays_count_alike(self) -> None:
        def line(pairs: int) -> bytes:
            return sealed(
                b'{"version":1,"offset":1,"created_at":2,"x":' + b'[{"a":' * pairs + b"1" + b"}]" * pairs + b"}"
            )

        envelope.decode(line(envelope.MAX_DEPTH // 2 - 1), Boundary, PATH)
        assert "nested deeper" in refused(line(envelope.MAX_DEPTH // 2), Boundary)

    def test_far_too_deep_is_refused_before_it_is_parsed(self) -> None:
        assert "nested deeper" in refused(self.nested(1_000_000), Boundary)

    def test_brackets_in_strings_do_not_count(self) -> None:
        text = rb'"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"[[[[\\"'
        envelope.decode(sealed(b'{"version":1,"offset":1,"created_at":2,"x":' + text + b"}"), Boundary, PATH)

    def test_brackets_in_long_strings_do_not_count_either(self) -> None:
        before = b'{"version":1,"offset":1,"created_at":2,"y":"' + b"[{" * 5000 + b'","x":'
        depth = envelope.MAX_DEPTH
        envelope.decode(sealed(before + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"), Boundary, PATH)
        assert "nested deeper" in refused(sealed(before + b"[" * depth + b"]" * depth + b"}"), Boundary)
        assert refused(sealed(before + b'"never closed}'), Boundary)

    @pytest.mark.parametrize(
        "line",
        [b'{"a":"' + b'\\"' * 200_000 + b"}", b'{"a":' + b'"' * 200_001 + b"}", b'{"a":"' + b"[" * 400_000 + b"}"],
    )
    def test_strings_without_an_end_take_no_longer(self, line: bytes) -> None:
        refused(sealed(line), Boundary)


class TestSizes:
    def test_too_large_is_refused_before_anything_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(envelope, "MAX_OBJECT_BYTES", len(STORED) - 1)
        assert f"{len(STORED)} bytes, more than the {len(STORED) - 1}" in refused(STORED)

    def test_announced_payload_must_be_there(self) -> None:
        line = msgspec.json.encode(RECORD)
        assert "4 payload bytes announced, 3 found" in refused(sealed(line, b"row"))
        assert "4 payload bytes announced, 5 found" in refused(sealed(line, b"rowss"))

    def test_objects_without_payload_have_none(self) -> None:
        assert "0 payload bytes announced, 1 found" in refused(
            sealed(b'{"version":1,"offset":1,"created_at":2}', b"x"), Boundary
        )

    def test_encode_refuses_what_no_reader_would_accept(self) -> None:
        with pytest.raises(ValueError, match="4 payload bytes announced, 3 given"):
            envelope.encode(RECORD, b"row")


def test_digest_is_sha256_of_the_stored_bytes() -> None:
    assert envelope.digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
