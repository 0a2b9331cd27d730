"""Any bytes in a store give a value or an error of txlog's, soon; never another exception."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from tests.effort import examples
from tests.fuzz.bombs import numbers
from tests.fuzz.hostile import VALUES, changed, closed, opened, places, sealed
from tests.maintenance import damage as d
from txlog.cli.columns import _parse_column, parse_columns
from txlog.client.offsets import parse_offsets
from txlog.core import chain, envelope, names, record_checks, records, segments, snapshot_state, state
from txlog.core.fetch_plan import plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.errors import InvalidRequestError, SchemaMismatchError, TxlogError
from txlog.protocol import topics
from txlog.storage.inline_rows import read_ipc, select_fields

STRUCTS: tuple[Any, ...] = (
    records.StoreDescriptor, records.TopicMetadata, records.CommitRecord, records.SegmentIndex, records.TxnIndex,
    records.Snapshot, records.Boundary, records.Clean, records.StagedList, records.CleanupRun,
)  # fmt: skip
GOLDEN = d.golden()
METADATA = sorted(path for path in GOLDEN if not path.endswith(".parquet"))
ORDERS_0 = TopicPartition("orders", 0)


def objects(*endings: str) -> st.SearchStrategy[bytes]:
    """Draw objects of the golden store with up to three hostile fields, under a right checksum."""
    paths = [path for path in METADATA if not endings or path.endswith(endings)]

    @st.composite
    def make(draw: st.DrawFn) -> bytes:
        fields, payload = opened(GOLDEN[draw(st.sampled_from(paths))])
        for _ in range(draw(st.integers(1, 3))):
            here = list(places(fields))
            if here:
                how = draw(st.sampled_from(["put", "put", "put", "drop", "twice"]))
                fields = changed(fields, draw(st.sampled_from(here)), draw(st.sampled_from(VALUES)), how)
        return closed(fields, payload)

    return make()


def refused_or(call: Any, *args: Any, **more: Any) -> Any:
    """Return what the call returns, or None if it raises an error of txlog's."""
    with contextlib.suppress(TxlogError):
        return call(*args, **more)
    return None


json_values = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=300), st.sampled_from(STRUCTS))
def test_any_bytes(data: bytes, kind: type[Any]) -> None:
    assert refused_or(envelope.decode, data, kind, "p") is None
    assert refused_or(envelope.decode, sealed(data or b"}"), kind, "p") is None


@given(
    st.dictionaries(st.sampled_from([*records.CommitRecord.__struct_fields__, "x"]), json_values),
    st.binary(max_size=20),
)
def test_any_json(fields: dict[str, Any], payload: bytes) -> None:
    data = sealed(json.dumps(fields).encode(), payload)
    for kind in STRUCTS:
        refused_or(envelope.decode, data, kind, "p")
    refused_or(record_checks.stored_records, data, ORDERS_0, 0)


@given(objects(".batch"), st.sampled_from(["orders", "__transaction_state", "__consumer_offsets"]))
def test_commit_records(data: bytes, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    for base in range(4):
        stored = refused_or(record_checks.stored_records, data, tp, base)
        if stored is not None:
            before = state.PartitionState(
                topic_partition=tp,
                next_offset=base,
                segment_base=stored[0].record.segment_base,
                last_digest=stored[0].record.previous,
            )
            after = refused_or(state.replay, before, stored)
            if after is not None:
                made = envelope.encode(snapshot_state.to_snapshot(after))
                again = refused_or(snapshot_state.decode_snapshot, made, tp, after.next_offset)
                assert again is None or again.producers == after.producers
                end = after.next_offset
                refused_or(
                    plan_fetch,
                    tp=tp,
                    indexes=[],
                    tail=[(each.record, each.payload) for each in stored],
                    aborted=[],
                    start=base,
                    end=end,
                )


@given(objects(".index"), objects(".txnindex"))
def test_indexes(data: bytes, aborted: bytes) -> None:
    for name in (SegmentName(0, 5, 0), SegmentName(0, 8, 0), SegmentName(0, 14, 1, "0123abcd")):
        path = f"orders/0/{name.index}"
        decoded = refused_or(envelope.decode, data, records.SegmentIndex, path)
        if decoded is None or refused_or(_checked, decoded[0], name, path) is None:
            continue
        index = decoded[0]
        segments.first_at_or_after_timestamp(index, 1_764_000_000_000)
        found = refused_or(envelope.decode, aborted, records.TxnIndex, path)
        listed = () if found is None else found[0].aborted
        refused_or(
            segments.check_txn_index,
            records.TxnIndex(partition=index.partition, aborted=listed), name, path, expected=index.aborted_txns,
            entries=index.entries,
        )  # fmt: skip
        for start in range(0, name.end_offset, 3):
            refused_or(
                plan_fetch, tp=ORDERS_0, indexes=[index], tail=[], aborted=listed, start=start, end=name.end_offset
            )


def _checked(index: records.SegmentIndex, name: SegmentName, path: str) -> bool:
    segments.check_index(index, name, path)
    return True


@given(objects(".snapshot", ".clean", ".boundary", ".json", ".staged"))
def test_everything_else(data: bytes) -> None:
    snapshot = refused_or(snapshot_state.decode_snapshot, data, ORDERS_0, 8)
    if snapshot is not None:
        assert snapshot.last_stable_offset >= 0
    for kind in STRUCTS:
        decoded = refused_or(envelope.decode, data, kind, "p")
        if decoded is not None and kind is records.Clean:
            refused_or(chain.check_clean, decoded[0], 0, "p")
    refused_or(topics.decode_version, data, "orders", 1)


@examples(40)
@given(st.sampled_from(METADATA), st.data())
def test_readers_and_fsck_of_a_hostile_store(path: str, data: st.DataObject) -> None:
    """End to end: one object of the golden store is changed."""
    fields, payload = opened(GOLDEN[path])
    where = data.draw(st.sampled_from(list(places(fields))))
    fields = changed(
        fields, where, data.draw(st.sampled_from(VALUES)), data.draw(st.sampled_from(["put", "drop", "twice"]))
    )
    objects = {**GOLDEN, path: closed(fields, payload)}
    d.seen(objects)
    d.checked(objects)


# -- rows -------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_as_inline_rows(data: bytes) -> None:
    assert refused_or(read_ipc, data, "p") is None


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6), st.data())
def test_inline_rows_with_other_bytes(edits: list[tuple[int, int]], data: st.DataObject) -> None:
    payloads = [numbers(3), *(opened(GOLDEN[path])[1] for path in METADATA if path.endswith(".batch"))]
    changed_bytes = bytearray(data.draw(st.sampled_from([payload for payload in payloads if payload])))
    for at, byte in edits:
        changed_bytes[at % len(changed_bytes)] = byte
    table = refused_or(read_ipc, bytes(changed_bytes), "p")
    if table is not None:
        assert table.num_rows <= 8 * len(changed_bytes)
    topic, _ = envelope.decode(GOLDEN["orders/topic.00000000000000000001.json"], records.TopicMetadata, "p")
    refused_or(lambda payload: select_fields(read_ipc(payload, "rows"), topic.schema, "rows"), bytes(changed_bytes))


# -- names and options ------------------------------------------------------------------------------------------------


@given(st.text(max_size=80) | st.from_regex(r"[0-9.\-a-z/_=]{0,80}", fullmatch=True))
def test_names(name: str) -> None:
    names.is_topic_name(name)
    with contextlib.suppress(TxlogError):
        names.check_topic_name(name)
    for parse in (
        names.parse_topic_metadata_name, names.parse_partition_folder, names.parse_partition_object,
        names.parse_rows_path,
        names.parse_staged_list_name,
    ):  # fmt: skip
        parse(name)
    refused_or(names.check_data_path, "orders", 0, name)
    chain.parse_listing([name], "orders/0/")


@given(st.text(max_size=100) | json_values.map(json.dumps))
@example("[" * 100_000)
@example('{"orders":{"0":' + "9" * 5000 + "}}")
def test_json_of_offsets(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_offsets(text, "startingOffsets")


@given(
    st.text(max_size=100)
    | st.from_regex(r"[a-z]{1,5}:(list<|map<|struct<a |int64|,|>| not null){0,12}", fullmatch=True)
)
@example("a:" + "list<" * 5000)
def test_columns(text: str) -> None:
    refused_or(_parse_column, text)


def test_the_hostile_values_reach_what_they_shall() -> None:
    """The decoder does not refuse all mutations: some records decode, and are folded."""
    decoded = 0
    for path in METADATA:
        fields, payload = opened(GOLDEN[path])
        for where in list(places(fields))[:40]:
            data = closed(changed(fields, where, 1, "put"), payload)
            kind = {"batch": records.CommitRecord, "index": records.SegmentIndex, "snapshot": records.Snapshot}
            wanted = kind.get(path.rpartition(".")[2])
            decoded += wanted is not None and refused_or(envelope.decode, data, wanted, path) is not None
    assert decoded > 200


def test_a_schema_file_that_is_nested_too_deep(tmp_path: Path) -> None:
    for depth in (9, 300, 900, 100_000):
        inner = '{"name":"a","type":"int64"}'
        text = '{"name":"a","type":"struct","fields":[' * depth + inner + "]}" * depth
        file = tmp_path / "schema.json"
        file.write_text(f"[{text}]")
        with pytest.raises(SchemaMismatchError):
            parse_columns(None, str(file))
