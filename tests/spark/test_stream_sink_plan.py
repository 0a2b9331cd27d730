"""The streaming sink without Spark: which id, which offsets, under which condition, and what a checkpoint contains."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import txlog
from pyspark_txlog.jobs.kafka_resume import KafkaOffsets, Query, committed_batch, complete
from pyspark_txlog.option_table import TRANSACTIONAL_ID
from pyspark_txlog.sink.checkpoint import Checkpoint, default_transactional_id, normal_location, parse_offsets
from pyspark_txlog.sink.committed_offsets import (
    Batch,
    GroupRange,
    SourceOffset,
    check_start,
    group_offsets,
    offsets_to_send,
    opaque_offsets,
    ranges_of,
    read_opaque_offsets,
)
from pyspark_txlog.sink.options import checkpoint_of, parse_stream_write_options
from pyspark_txlog.stream_offsets import StreamOffset
from tests.cli.support import FAST, Cli
from txlog.client.reading import read_session
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue
from txlog.errors import CommitFailedError, CorruptRecordError, InvalidRequestError, UnsupportedStoreError
from txlog.protocol.groups import MAX_METADATA_LENGTH

HERE, ELSEWHERE = "a" * 32, "b" * 32
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def offset(ends: dict[TopicPartition, int], starts: dict[TopicPartition, int] | None = None, **others: Any) -> str:
    given = {"store_id": HERE, "group_id": None, **others}
    return json.dumps(StreamOffset(ends=ends, starts=starts, **given).to_json())


def batch(number: int, ends: dict[str, str], before: dict[str, str] | None = None) -> Batch:
    return Batch(query_id="query", batch_id=number, ends=ends, previous_ends=before or {})


def ranges(found: Batch) -> tuple[GroupRange, ...]:
    return ranges_of(found, store_id=HERE, transactional_id="sink")


# -- the checkpoint ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/data/ck/orders", "spark-stream:/data/ck/orders"),
        ("/data/ck/orders/", "spark-stream:/data/ck/orders"),
        ("file:/data/ck/orders", "spark-stream:/data/ck/orders"),
        ("file:///data/ck//orders/", "spark-stream:/data/ck/orders"),
        ("file://localhost/data/ck/orders", "spark-stream:/data/ck/orders"),
        ("s3://bucket/ck/orders/", "spark-stream:s3://bucket/ck/orders"),
        ("s3a://bucket/ck/orders", "spark-stream:s3://bucket/ck/orders"),
        ("s3a://key:secret@bucket/ck", "spark-stream:s3://bucket/ck"),
        (
            "abfss://container@account.dfs.core.windows.net/ck",
            "spark-stream:abfs://container@account.dfs.core.windows.net/ck",
        ),
    ],
)
def test_every_spelling_of_a_location_is_one_id(location: str, expected: str) -> None:
    assert default_transactional_id(location) == expected


def test_a_relative_location_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal_location("ck") == str(tmp_path / "ck")


def test_a_long_location_makes_a_legal_id_of_its_own() -> None:
    one, other = (default_transactional_id(f"/{'x' * 2000}/{name}") for name in ("a", "b"))
    assert len(one) == len(other) == 1000
    assert one != other


def test_both_formats_of_sparks_offset_log() -> None:
    assert parse_offsets('v1\n{"conf":{}}\n{"a":1}\n-\n5', "here") == {"0": '{"a":1}', "2": "5"}
    assert parse_offsets('v2\n{"conf":{}}\nleft:{"a":1}\nright:-', "here") == {"left": '{"a":1}'}
    for text in ("v3\n{}\n5", "", "v2\n{}\nno colon"):
        with pytest.raises(InvalidRequestError, match="here: expected an offset log of Spark, version 1 or 2"):
            parse_offsets(text, "here")


def test_a_checkpoint_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    (tmp_path / "offsets" / "7").write_text("v1\n{}\n5")
    checkpoint = Checkpoint.open(f"file:{tmp_path}", {})
    assert checkpoint.query_id() == "abc"
    assert checkpoint.planned(7) == {"0": "5"}
    with pytest.raises(InvalidRequestError, match="has no 'offsets/8', which Spark writes before a micro-batch runs"):
        checkpoint.planned(8)
    (tmp_path / "metadata").write_text("?")
    with pytest.raises(InvalidRequestError, match="metadata: expected"):
        checkpoint.query_id()


def test_a_checkpoint_that_txlog_cannot_read() -> None:
    with pytest.raises(UnsupportedStoreError, match="commitSourceOffsets=false"):
        Checkpoint.open("hdfs://namenode/ck", {})


def test_the_checkpoint_has_the_stores_options_only_if_it_is_in_one_like_it() -> None:
    common = {"path": "s3://bucket/log", "topic": "out", "storage.key": "k", "checkpointLocation": "/ck"}
    assert checkpoint_of(parse_stream_write_options(common))  # a local checkpoint takes no 'key'
    options = parse_stream_write_options({**common, "CHECKPOINTLOCATION": "s3a://other/ck"} | {"transactional.id": "x"})
    assert options[TRANSACTIONAL_ID] == "x"


# -- ranges and conditions --------------------------------------------------------------------------------------------


def test_the_first_batch_begins_where_the_query_began_and_names_all_partitions() -> None:
    (taken,) = ranges(batch(0, {"0": offset({P0: 5, P1: 3}, {P0: 0, P1: 3})}))
    assert (taken.group, taken.begins, taken.ends, taken.firsts) == ("sink", {P0: 0, P1: 3}, {P0: 5, P1: 3}, {P0, P1})


def test_a_later_batch_begins_where_the_one_before_ended_and_names_what_moved() -> None:
    before = {"0": offset({P0: 5, P1: 3}, {P0: 0, P1: 3})}
    (taken,) = ranges(batch(1, {"0": offset({P0: 5, P1: 4, P2: 0})}, before))
    assert (taken.begins, taken.ends, taken.firsts) == ({P1: 3, P2: None}, {P1: 4, P2: 0}, set())
    assert ranges(batch(1, before, before)) == ()


def test_a_source_that_begins_late_has_its_first_batch_then() -> None:
    unresolved = offset({})
    for before in ({}, {"1": unresolved}):
        (taken,) = ranges(batch(4, {"1": offset({P0: 9}, {P0: 2})}, before))
        assert (taken.begins, taken.firsts) == ({P0: 2}, {P0})


def test_sources_of_other_stores_and_kinds_are_no_ranges() -> None:
    foreign = {"0": offset({P0: 1}, {P0: 0}, store_id=ELSEWHERE), "1": "17", "2": '{"orders":{"0":5}}', "3": "not JSON"}
    assert ranges(batch(0, foreign)) == ()
    assert {tp.topic for tp in opaque_offsets(batch(0, foreign), store_id=HERE)} == {f"__source.{n}" for n in range(4)}


def test_groups_are_those_of_the_sources_and_none_is_committed_twice() -> None:
    both = {"0": offset({P0: 1}, {P0: 0}, group_id="g"), "1": offset({P0: 2}, {P0: 0})}
    assert [taken.group for taken in ranges(batch(0, both))] == ["g", "sink"]
    with pytest.raises(
        InvalidRequestError,
        match=r"two of its sources read orders-0.* load it twice, each time with another 'group.id'",
    ):
        ranges(batch(0, {"0": both["1"], "1": both["1"]}))


@pytest.mark.parametrize(("before", "now"), [("g", None), (None, "g"), ("g", "h")])
def test_a_group_that_was_changed_must_stand_where_the_batch_begins(
    before: str | None, now: str | None, tmp_path: Path
) -> None:
    """The old group is at the right offset, and the new group is not.

    The error has the command that sets the new one.
    """
    cli = Cli(tmp_path / "store")
    with txlog.open(str(cli.root), storage_options=FAST) as store:
        store.create_topic("orders", partitions=1)
        with store.producer() as producer:
            producer.send("orders", [{"value": b"row"}] * 7)
        store_id = store.runtime.require_store().store_id
        group = now or "sink"
        planned = batch(
            1,
            {"0": offset({P0: 7}, store_id=store_id, group_id=now)},
            {"0": offset({P0: 5}, store_id=store_id, group_id=before)},
        )

        def send() -> Any:
            session = read_session(store.runtime)
            return offsets_to_send(session, planned, transactional_id="sink", is_first_commit=False)

        with pytest.raises(
            InvalidRequestError, match=rf"'group.id' was changed .*to {group!r}\. .* has committed None .* expected 5"
        ) as refused:
            send()
        (command,) = re.findall(r"hint: if no other job uses that group, run `txlog (.*)`; or ", str(refused.value))
        cli(*shlex.split(command))
        (sent,) = send()
        assert (sent.group, sent.offsets[P0].offset) == (group, 7)


@pytest.mark.parametrize(("stands", "expected"), [(None, None), (0, 0)])
def test_a_first_commit_may_find_nothing_or_its_own_beginning(stands: int | None, expected: int | None) -> None:
    found = batch(0, {"0": offset({P0: 5}, {P0: 0}), "1": "17"})
    committed = {"sink": {P0: None if stands is None else OffsetValue(offset=stands)}}
    opaque = opaque_offsets(found, store_id=HERE)
    (sent,) = group_offsets(ranges(found), opaque, committed, batch=found, transactional_id="sink")
    assert sent.condition is not None
    assert (sent.group, sent.condition.expected) == ("sink", {P0: expected})
    assert sent.offsets == {**opaque, P0: OffsetValue(offset=5)}


def test_a_first_commit_elsewhere_is_refused_with_what_to_do() -> None:
    found = batch(0, {"0": offset({P0: 5}, {P0: 0})})
    committed = {"sink": {P0: OffsetValue(offset=3)}}
    with pytest.raises(
        CommitFailedError,
        match=r"begins orders-0 at offset 0, but group 'sink' has committed 3.*startingOffsets=committed",
    ):
        group_offsets(ranges(found), {}, committed, batch=found, transactional_id="sink")


# -- other sources' offsets -------------------------------------------------------------------------------------------


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=3 * MAX_METADATA_LENGTH // 2), min_size=1, max_size=3)
)
def test_what_is_written_over_each_other_is_read_back(texts: list[str]) -> None:
    stored: dict[TopicPartition, OffsetValue] = {P0: OffsetValue(offset=3)}
    for text in texts:
        # A query with a new checkpoint overwrites an old checkpoint's batches under the same number.
        found = opaque_offsets(batch(4, {"0": text, "source_b": "-1"}), store_id=HERE)
        assert all(len(value.metadata) <= MAX_METADATA_LENGTH for value in found.values())
        stored |= found
        read = read_opaque_offsets(stored)
        assert (read["0"].json, read["0"].batch_id, read["0"].query_id) == (text, 4, "query")
        assert read["source_b"].json == "-1"


def test_pieces_that_are_missing_are_damage() -> None:
    stored = opaque_offsets(batch(1, {"0": "x" * 9000}), store_id=HERE)
    del stored[TopicPartition("__source.0", 1)]
    with pytest.raises(CorruptRecordError, match="source 0"):
        read_opaque_offsets(stored)


# -- where a query begins a source that is not a topic of the store ----------------------------------------------------


KAFKA = '{"clicks":{"0":5,"1":7}}'


@pytest.mark.parametrize(
    ("noted", "committed", "goes_on"),
    [
        (KAFKA, '{"clicks": {"1": 7, "0": 5}}', True),
        (None, KAFKA, False),
        ('{"clicks":{"0":0,"1":0}}', KAFKA, False),
        # A later start leaves records out, even if only one partition is later.
        ('{"clicks":{"0":5,"1":8}}', KAFKA, False),
        # New partitions and topics are accepted, and removed ones too.
        ('{"clicks":{"0":5,"1":7,"2":0},"views":{"0":0}}', KAFKA, True),
        ('{"clicks":{"0":5}}', KAFKA, True),
        # An offset in another source's format is not a start of this source.
        ('{"path":"file:/a","timestamp":1,"batchId":0}', '{"logOffset":0}', False),
    ],
)
def test_a_new_query_goes_on_where_the_id_has_left_the_source(noted: str | None, committed: str, goes_on: bool) -> None:
    first = Batch(
        query_id="new", batch_id=0, ends={"0": '{"clicks":{"0":9}}'}, previous_ends={}, noted_start=lambda _: noted
    )
    known = SourceOffset(query_id="old", batch_id=6, json=committed)
    if goes_on:
        check_start(first, "0", known, transactional_id="sink")
        return
    with pytest.raises(
        CommitFailedError, match=r"source 0 begins at .*'sink' has committed it up to .*committed_source_offsets"
    ):
        check_start(first, "0", known, transactional_id="sink")


class Ingest:
    """An id that commits micro-batches over one Kafka source, on a store of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def commit(self, query: str, number: int, start: KafkaOffsets, end: KafkaOffsets) -> None:
        """Commit one micro-batch. Number 0 is a new query of a forgotten id, whose source noted `start`."""
        made = Batch(
            query_id=query,
            batch_id=number,
            ends={"0": json.dumps(end)},
            previous_ends={"0": json.dumps(start)} if number else {},
            noted_start=lambda _: json.dumps(start),
        )
        transaction = StagedTransaction.begin(self.store.runtime, "ingest")
        session = transaction.session
        sent = offsets_to_send(session, made, transactional_id="ingest", is_first_commit=number == 0)
        transaction.commit(offsets=sent)

    def resumes(self, *topics: str) -> KafkaOffsets:
        found = committed_batch(Query(store=self.store.url, transactional_id="ingest", checkpoint="/lost"))
        assert found is not None
        return complete(found.reached, {topic: [0] for topic in topics})


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Ingest]:
    with txlog.open(tmp_path / "log", storage_options={"fsync": False}) as store:
        store.create_topic("a", None)
        yield Ingest(store)


def test_a_topic_that_is_not_read_for_a_while_keeps_its_offset(ingest: Ingest) -> None:
    ingest.commit("q1", 0, {"a": {"0": -2}, "b": {"0": -2}}, {"a": {"0": 100}, "b": {"0": 700}})
    assert ingest.resumes("a") == {"a": {"0": 100}}
    ingest.commit("q2", 0, {"a": {"0": 100}}, {"a": {"0": 150}})
    ingest.commit("q2", 1, {"a": {"0": 150}}, {"a": {"0": 160}})
    assert ingest.resumes("a", "b", "c") == {"a": {"0": 160}, "b": {"0": 700}, "c": {"0": -2}}
    with pytest.raises(CommitFailedError, match=r"source 0 begins at .*'ingest' has committed it up to "):
        ingest.commit("q3", 0, {"a": {"0": 160}, "b": {"0": 0}}, {"a": {"0": 160}, "b": {"0": 9}})
    ingest.commit("q3", 0, ingest.resumes("a", "b"), {"a": {"0": 160}, "b": {"0": 800}})
    assert ingest.resumes("a", "b") == {"a": {"0": 160}, "b": {"0": 800}}


def test_a_topic_may_not_come_back_to_a_running_query(ingest: Ingest) -> None:
    """The batch before does not name the topic, so its source would read the topic from the beginning."""
    both, one = {"a": {"0": 100}, "b": {"0": 700}}, {"a": {"0": 150}}
    ingest.commit("q1", 0, {"a": {"0": -2}, "b": {"0": -2}}, both)
    ingest.commit("q1", 1, both, one)
    ingest.commit("q1", 2, one, {**one, "c": {"0": 5}})
    with pytest.raises(CommitFailedError, match=r"source 0 reads b-0 again .* up to 700"):
        ingest.commit("q1", 3, one, both)
    assert ingest.resumes("a", "b", "c") == {"a": {"0": 150}, "b": {"0": 700}, "c": {"0": 5}}


def test_topics_of_another_store_tell_themselves_where_they_begin() -> None:
    known = SourceOffset(query_id="old", batch_id=6, json=offset({P0: 5, P1: 7}, store_id=ELSEWHERE))
    for start, goes_on in ((5, True), (0, False)):
        first = batch(0, {"0": offset({P0: 9, P1: 7}, {P0: start, P1: 7}, store_id=ELSEWHERE)})
        if goes_on:
            check_start(first, "0", known, transactional_id="sink")
        else:
            with pytest.raises(CommitFailedError, match=r"source 0 begins at .* has committed it up to"):
                check_start(first, "0", known, transactional_id="sink")


def test_a_query_whose_id_was_forgotten_goes_on_behind_its_last_commit_only() -> None:
    known = SourceOffset(query_id="query", batch_id=3, json='{"logOffset":3}')
    check_start(batch(4, {"0": '{"logOffset":4}'}, {"0": '{"logOffset":3}'}), "0", known, transactional_id="sink")
    with pytest.raises(CommitFailedError, match="micro-batch 3"):
        check_start(batch(3, {"0": '{"logOffset":3}'}, {"0": '{"logOffset":2}'}), "0", known, transactional_id="sink")


def test_what_a_source_noted_is_read_as_spark_writes_it(tmp_path: Path) -> None:
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_bytes(b"\0v1\n" + KAFKA.encode())
    checkpoint = Checkpoint.open(str(tmp_path), {})
    assert checkpoint.noted_start("0") == KAFKA
    assert checkpoint.noted_start("1") is None
