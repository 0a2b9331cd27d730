"""Is a published topic an Iceberg table, and is writing a version of it safe at every request?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import EqualTo, GreaterThan, IsNull
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import StaticTable

from tests.publication import story, story_rows
from tests.publication.published import HOUR_MS, START_MS, PublishedTopic, column
from txlog.core.effects import Delete, Effect, Get, PutIfAbsent, Size
from txlog.core.evolution import AddColumn, DropColumn, RenameColumn, SetType
from txlog.core.publication import fold
from txlog.core.records.publications import RowRun
from txlog.core.schema import assign_ids
from txlog.errors import CorruptRecordError, InvalidRequestError, TableConflictError
from txlog.publication.formats import new_table_id
from txlog.publication.iceberg import write_version
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_deletes import FILE_PATH_ID

# mypy takes the fields of these models for their parameters.
equal_to: Any = EqualTo
greater_than: Any = GreaterThan
is_null: Any = IsNull

NUMBERS = [column("id", "int64", nullable=False), column("value", "float64"), column("name", "string")]


@pytest.fixture
def topic(tmp_path: Path) -> PublishedTopic:
    return PublishedTopic(tmp_path, NUMBERS, first=7)


def numbers(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "value": number / 2, "name": f"n{number}"} for number in ids]


def read(topic: PublishedTopic, **scan: Any) -> list[int]:
    table = StaticTable.from_metadata(str(topic.path))
    found: list[Any] = table.scan(**scan).to_arrow()["id"].to_pylist()
    return sorted(found)


def entries(topic: PublishedTopic) -> list[tuple[str, str, int | None, int | None, bool]]:
    """Return for each entry of the newest snapshot: file, status, sequence number of data, of file, is it of
    deletes."""
    table = StaticTable.from_metadata(str(topic.path))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sorted(
        (
            entry.data_file.file_path.rpartition("/")[2],
            entry.status.name,
            entry.sequence_number,
            entry.file_sequence_number,
            manifest.content is ManifestContent.DELETES,
        )
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    )


def places(topic: PublishedTopic) -> set[str]:
    """Return where the newest snapshot looks for its files, and for the files of which it leaves out rows."""
    table = StaticTable.from_metadata(str(topic.path))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = {snapshot.manifest_list}
    for manifest in snapshot.manifests(table.io):
        found.add(manifest.manifest_path)
        for entry in manifest.fetch_manifest_entry(table.io):
            found.add(entry.data_file.file_path)
            if manifest.content is ManifestContent.DELETES:
                found.add((entry.data_file.lower_bounds or {})[FILE_PATH_ID].decode())
                path = entry.data_file.file_path.removeprefix("file://")
                named: list[Any] = pq.read_table(path, columns=["file_path"])["file_path"].to_pylist()
                found |= {*named}
    return {path.partition("/orders/")[0] + "/orders" for path in found}


def names(topic: PublishedTopic) -> set[str]:
    return {each.name for each in (topic.path / "metadata").iterdir()}


def metadata(topic: PublishedTopic, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((topic.path / f"metadata/v{version}.metadata.json").read_bytes())
    return found


# -- what readers see -------------------------------------------------------------------------------------------------


def test_a_reader_sees_each_row_with_the_newest_columns(tmp_path: Path) -> None:
    topic = story.tell(tmp_path)
    for where in (f"{topic.url}/orders", f"{topic.url}/orders/metadata/v7.metadata.json"):
        story_rows.check(StaticTable.from_metadata(where).scan().to_arrow().to_pylist())


def test_older_snapshots_can_be_read(tmp_path: Path) -> None:
    topic = story.tell(tmp_path)
    table = StaticTable.from_metadata(str(topic.path))
    history = [each.snapshot_id for each in table.history()]
    rows = [len(table.scan(snapshot_id=number).to_arrow()) for number in history]
    assert rows == [10, 20, 27, 27, 37, 34, 39]
    operations = [each.summary.operation.value for each in table.snapshots() if each.summary]
    assert operations == ["append", "append", "overwrite", "replace", "append", "replace", "append"]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (equal_to("small", 25), 0),
        (equal_to("small", 26), 1),
        (greater_than("small", story_rows.LARGE), 15),
        (equal_to("number", 260), 1),
        (equal_to("text", "text 26 " + "x" * 40), 1),
        (equal_to("single", 13.0), 1),
        (equal_to("day", "2026-01-27"), 1),
        (equal_to("at", "2026-01-01T00:00:26+00:00"), 1),
        (is_null("extra"), 24),
    ],
    ids=str,
)
def test_bounds_leave_out_no_file_that_has_the_row(tmp_path: Path, where: Any, rows: int) -> None:
    topic = story.tell(tmp_path)
    assert len(StaticTable.from_metadata(str(topic.path)).scan(row_filter=where).to_arrow()) == rows


def test_a_name_that_two_columns_have_had_is_the_newer_one(topic: PublishedTopic) -> None:
    older = topic.file(numbers(1), sealed=True)
    topic.publish(older)
    topic.publish(topic.file(numbers(2)))
    topic.change_columns(DropColumn(("name",)), AddColumn(column("name", "string")))
    # A merge has written the first file again: `txlog.publication.columns` asks for it.
    topic.publish(topic.file([{"id": 1, "value": 0.5, "name": None}], sealed=True), gone=[older], operation="replace")
    # In a sealed file `_offset` has no id. Then pyiceberg goes by names.
    topic.publish(topic.file([{"id": 3, "value": 1.0, "name": "newer"}], sealed=True))
    topic.publish(topic.file([{"id": 4, "value": 1.0, "name": "newest"}]))
    table = StaticTable.from_metadata(str(topic.path))
    shown = table.scan().to_arrow().sort_by("id")["name"].to_pylist()
    assert shown == [None, None, "newer", "newest"]
    # In older snapshots the name means the dropped column. Their own metadata files still have them.
    assert [len(table.scan(snapshot_id=each.snapshot_id).to_arrow()) for each in table.snapshots()] == [2, 3, 4]
    table = StaticTable.from_metadata(f"{topic.url}/orders/metadata/v2.metadata.json")
    rows: list[Any] = [
        table.scan(snapshot_id=each.snapshot_id).to_arrow()["name"].to_pylist() for each in table.snapshots()
    ]
    assert [sorted(each) for each in rows] == [["n1"], ["n1", "n2"]]


def test_a_renamed_column_is_found_in_a_sealed_file(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1), sealed=True))
    topic.change_columns(RenameColumn(("name",), "title"), DropColumn(("value",)))
    topic.publish(topic.file([{"id": 2, "title": "two"}], sealed=True))
    rows = StaticTable.from_metadata(str(topic.path)).scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "title": "n1"}, {"id": 2, "title": "two"}]


def test_an_empty_topic_is_an_empty_table(topic: PublishedTopic) -> None:
    topic.publish()
    assert read(topic) == []
    topic.publish(topic.file(numbers(1)))
    assert read(topic) == [1]


def test_bounds_and_counts_of_nulls_are_those_of_the_log(topic: PublishedTopic) -> None:
    rows: list[dict[str, Any]] = [{"id": 5, "value": -0.0, "name": "b"}, {"id": 2, "value": 0.0, "name": None}]
    topic.publish(topic.file(rows))
    table = StaticTable.from_metadata(str(topic.path))
    (task,) = table.scan().plan_files()
    schema: Any = table.schema()
    value_of: Any = from_bytes
    low, high = (
        {number: value_of(schema.find_type(number), data) for number, data in bounds.items()}
        for bounds in (task.file.lower_bounds, task.file.upper_bounds)
    )
    assert (low[1], high[1], low[3], high[3]) == (2, 5, "b", "b")
    assert [str(each[2]) for each in (low, high)] == ["-0.0", "0.0"]
    assert (task.file.null_value_counts[3], task.file.value_counts[3], task.file.record_count) == (1, 2, 2)


# -- manifests --------------------------------------------------------------------------------------------------------


def test_entries_have_the_sequence_numbers_of_their_publications(topic: PublishedTopic) -> None:
    one, two = topic.file(numbers(1, 2), partition=0), topic.file(numbers(3), partition=1)
    topic.publish(one, two)
    topic.publish(three := topic.file(numbers(4)))
    topic.publish(four := topic.file(numbers(1, 2), sealed=True), gone=[one], operation="replace")
    at = {each.path: each.path.rpartition("/")[2] for each in (one, two, three, four)}
    found = entries(topic)
    assert ("part-0.parquet", "DELETED", 1, 1, False) in found
    assert ("part-0.parquet", "EXISTING", 1, 1, False) in found
    assert ("part-0.parquet", "ADDED", 2, 2, False) in found
    assert (at[four.path], "ADDED", 3, 3, False) in found
    assert len(found) == 4
    topic.publish(topic.file(numbers(5)))
    assert read(topic) == [1, 2, 3, 4, 5]
    # Deleted entries are only those of a manifest that is used again.
    assert len(entries(topic)) == 5


def test_rows_that_are_left_out_apply_to_their_file_only(topic: PublishedTopic) -> None:
    one = topic.file(numbers(1, 2, 3, 4), removed=[(0, 1), (2, 4)], sealed=True)
    two = topic.file(numbers(5, 6), removed=[(1, 2)], sealed=True)
    topic.publish(one, two)
    assert read(topic) == [2, 5]
    topic.publish(topic.file(numbers(7)))
    topic.publish(msgspec.structs.replace(two, removed=(RowRun(0, 1),)), operation="replace")
    assert read(topic) == [2, 6, 7]
    found = [entry for entry in entries(topic) if entry[4]]
    # The deletes of the first file exist since version 0, and those of the second one are new.
    assert [(status, own) for _, status, own, _, _ in found] == [("EXISTING", 1), ("ADDED", 3)]
    # A delete applies to lower numbers only in older readers, so it has a higher one than its file.
    of_data: dict[str, Any] = {name: own for name, _, own, _, is_delete in entries(topic) if not is_delete}
    assert sorted(of_data.values()) == [0, 2, 2]
    topic.publish(gone=[topic.tables.files[two.path]], operation="replace")  # type: ignore[union-attr]
    assert read(topic) == [2, 7]


def test_an_append_with_rows_left_out_fails_readers_of_appended_files(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1)))
    topic.publish(topic.file(numbers(2, 3), removed=[(0, 1)]))
    summary = metadata(topic, 2)["snapshots"][-1]["summary"]
    assert summary["operation"] == "overwrite"
    assert (summary["added-data-files"], summary["added-delete-files"], summary["total-position-deletes"]) == (
        "1",
        "1",
        "1",
    )
    topic.publish(topic.file(numbers(4)))
    assert metadata(topic, 3)["snapshots"][-1]["summary"]["operation"] == "append"


def test_a_publication_writes_only_what_has_changed(topic: PublishedTopic) -> None:
    for number in range(5):
        topic.publish(topic.file(numbers(number), removed=[(0, 1)] if number == 3 else []))
    before = names(topic)
    requests: list[Any] = []
    last = topic.tables
    after = topic.decide(topic.file(numbers(9)))
    perform = topic.driver._perform

    def noted(effect: Effect) -> Any:
        requests.append(effect)
        return perform(effect)

    topic.driver._perform = noted  # type: ignore[method-assign]
    topic.write(last, after)
    assert len(names(topic) - before) == 3  # manifest, manifest list, metadata file
    kinds = [type(effect) for effect in requests]
    assert (kinds.count(Get), kinds.count(PutIfAbsent), kinds.count(Delete), kinds.count(Size)) == (3, 4, 1, 1)
    assert read(topic) == [0, 1, 2, 4, 9]


def test_small_manifests_are_joined(topic: PublishedTopic) -> None:
    for number in range(103):
        topic.publish(topic.file(numbers(number)))
    table = StaticTable.from_metadata(str(topic.path))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 4
    assert read(topic) == list(range(103))
    statuses = [status for _, status, _, _, _ in entries(topic)]
    assert statuses.count("EXISTING") == 99


def test_a_list_of_all_files_changes_no_manifest(topic: PublishedTopic) -> None:
    topic.publish(one := topic.file(numbers(1)))
    before = topic.tables
    assert before is not None
    whole = topic.decide(topic.file(numbers(2)), whole=True)
    # A whole publication lists the older files as they are.
    kept = {one.path: before.files[one.path]}
    listed = msgspec.structs.replace(whole.newest, added=(*kept.values(), *whole.newest.added))
    topic.tables = fold(before, listed, "0" * 64)
    topic.write(before, topic.tables)
    assert read(topic) == [1, 2]
    assert [name for name in names(topic) if name.startswith("m7-")] == [
        name for name in names(topic) if name.startswith("m7-7-")
    ]


# -- the metadata file ------------------------------------------------------------------------------------------------


def test_the_summary_has_the_cut(topic: PublishedTopic) -> None:
    after = topic.publish(topic.file(numbers(1)))
    found = metadata(topic, 1)
    summary = found["snapshots"][0]["summary"]
    assert summary["txlog.publication"] == "7"
    assert summary["txlog.topic_id"] == topic.topic.topic_id
    assert json.loads(summary["txlog.cut"]) == json.loads(msgspec.json.encode(after.newest.partitions))
    assert summary["txlog.cut_at"] == str(START_MS)
    assert found["location"] == f"{topic.url}/orders"
    assert summary["txlog.digest"] == after.digest
    assert found["table-uuid"].replace("-", "") == new_table_id(after)


def test_snapshots_that_were_replaced_before_the_retention_are_left_out(topic: PublishedTopic) -> None:
    """The one that is replaced after a quiet time stays (C13): a reader that follows the table goes on from there."""
    for number, hours in enumerate((0, 1, 24, 25, 100)):
        topic.publish(topic.file(numbers(number)), created_at=START_MS + hours * HOUR_MS)
    kept = [[each["sequence-number"] for each in metadata(topic, version)["snapshots"]] for version in range(1, 6)]
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [4, 5]]
    assert metadata(topic, 5)["properties"]["history.expire.max-snapshot-age-ms"] == str(24 * HOUR_MS)
    assert read(topic) == [0, 1, 2, 3, 4]


def test_times_of_snapshots_do_not_decrease(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1)), created_at=START_MS)
    topic.publish(topic.file(numbers(2)), created_at=START_MS - 5)
    assert [each["timestamp-ms"] for each in metadata(topic, 2)["snapshots"]] == [START_MS, START_MS]


def test_columns_keep_their_history(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1)))
    topic.change_columns(AddColumn(column("more", "string")))
    topic.change_columns(DropColumn(("more",)))
    topic.publish(topic.file(numbers(2)))
    found = metadata(topic, 2)
    assert [each["schema-id"] for each in found["schemas"]] == [0, 2]
    assert (found["current-schema-id"], found["last-column-id"]) == (2, 4)
    assert [each["schema-id"] for each in found["snapshots"]] == [0, 2]


# -- several publishers, crashes, other programs -----------------------------------------------------------------------


def test_a_version_can_be_written_again(tmp_path: Path) -> None:
    topic = story.tell(tmp_path)
    files = {each: each.read_bytes() for each in (topic.path / "metadata").iterdir()}
    again = PublishedTopic(tmp_path, story.COLUMNS)
    again.write = lambda before, after: None  # type: ignore[method-assign]
    last = topic.tables
    after = topic.decide(topic.file([story_rows.row(50, changed=True)]))
    for _ in range(2):
        topic.write(last, after)
    assert {each: each.read_bytes() for each in files if "hint" not in each.name} == {
        each: data for each, data in files.items() if "hint" not in each.name
    }
    assert (topic.path / "metadata/version-hint.text").read_text() == "8"


def test_a_late_publisher_does_not_move_the_hint_back(topic: PublishedTopic) -> None:
    one = topic.publish(topic.file(numbers(1)))
    topic.publish(topic.file(numbers(2)))
    topic.write(None, one)
    assert (topic.path / "metadata/version-hint.text").read_text() == "2"
    (topic.path / "metadata/version-hint.text").unlink()
    topic.write(one, topic.tables)  # type: ignore[arg-type]
    assert (topic.path / "metadata/version-hint.text").read_text() == "2"


class Crash(BaseException):
    """The publisher was killed."""


def test_a_crash_at_any_request_is_rolled_forward(tmp_path: Path) -> None:
    requests = 0
    while True:
        store = MemoryObjectStore()
        topic = PublishedTopic(tmp_path, NUMBERS, store=store)
        topic.publish(one := topic.file(numbers(1)))
        before = topic.tables
        after = topic.decide(topic.file(numbers(1, 2), removed=[(0, 1)]), gone=[one], operation="replace")
        perform = topic.driver._perform
        left = requests

        def fail(effect: Any, perform: Any = perform) -> Any:
            nonlocal left
            answer = perform(effect)
            left -= 1
            if left < 0 and isinstance(effect, Get | PutIfAbsent | Delete):
                raise Crash
            return answer

        topic.driver._perform = fail  # type: ignore[method-assign]
        try:
            topic.write(before, after)
        except Crash:
            topic.driver._perform = perform  # type: ignore[method-assign]
            topic.write(before, after)
        else:
            break
        assert store.get("orders/metadata/version-hint.text") == b"2"
        assert json.loads(store.get("orders/metadata/v2.metadata.json") or b"")["last-sequence-number"] == 2
        requests += 1
    assert requests >= 10


def test_a_list_is_named_by_its_content(topic: PublishedTopic) -> None:
    """What another spelling of the URL, or a publication that was lost, has left under a name has the same bytes."""
    topic.publish(topic.file(numbers(1)))
    last = topic.tables
    after = topic.decide(topic.file(numbers(2)))
    url, topic.url = topic.url, f"{topic.url}/../{topic.path.parent.name}"
    topic.write(last, after)
    (topic.path / "metadata/v2.metadata.json").unlink()
    elsewhere = {path.name: path.read_bytes() for path in (topic.path / "metadata").glob("*.avro")}
    topic.url = url
    topic.write(last, after)
    table = StaticTable.from_metadata(str(topic.path))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    lengths = {each.manifest_path: each.manifest_length for each in snapshot.manifests(table.io)}
    assert lengths == {path: Path(path.removeprefix("file://")).stat().st_size for path in lengths}
    assert places(topic) == {f"{url}/orders"}
    for name, data in elsewhere.items():
        assert (topic.path / "metadata" / name).read_bytes() == data
    assert len([*(topic.path / "metadata").glob("m8-8-*.avro")]) == 2
    assert read(topic) == [1, 2]


def test_another_url_writes_all_lists_again(topic: PublishedTopic, tmp_path: Path) -> None:
    """A list of files and a list of rows left out of them never name a file by different URLs."""
    for number in range(3):
        topic.publish(topic.file(numbers(number, 70 + number), removed=[(1, 2)]))
    link = tmp_path / "link"
    link.symlink_to(topic.path.parent)
    known = topic.url
    for url in (f"file://{link}", known, f"file://{link}"):
        topic.url = url
        topic.publish(topic.file(numbers(10)))
        table = StaticTable.from_metadata(f"{url}/orders")
        assert table.location() == f"{url}/orders"
        assert places(topic) == {f"{url}/orders"}
    assert read(topic) == [0, 1, 2, 10, 10, 10]


def test_a_commit_of_another_program_is_named(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1)))
    foreign = metadata(topic, 1) | {"current-snapshot-id": 5}
    path = topic.path / "metadata/v2.metadata.json"
    path.write_text(json.dumps(foreign))
    last = topic.tables
    after = topic.decide(topic.file(numbers(2)))
    for data in (path.read_bytes(), b"{"):
        path.write_bytes(data)
        with pytest.raises(
            TableConflictError, match=r"^orders/metadata/v2\.metadata\.json: .* as an Iceberg table "
        ) as found:
            topic.write(last, after)
        assert found.value.hint is not None
        assert len(str(found.value)) <= 300
    path.unlink()
    topic.write(last, after)
    assert read(topic) == [1, 2]


def test_a_lost_version_is_named_and_a_new_history_can_be_written(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1, 2), removed=[(0, 1)]))
    topic.publish(topic.file(numbers(3)))
    for each in (topic.path / "metadata").iterdir():
        each.unlink()
    last = topic.tables
    after = topic.decide(topic.file(numbers(4)))
    with pytest.raises(TableConflictError, match=r"v2\.metadata\.json: .*, or deleted it\. hint: "):
        topic.write(last, after)
    topic.write(None, after)
    assert read(topic) == [2, 3, 4]
    assert {(status, own) for _, status, own, _, _ in entries(topic)} == {
        ("EXISTING", number) for number in (0, 1, 2, 3)
    }
    topic.publish(topic.file(numbers(5)))
    assert read(topic) == [2, 3, 4, 5]


def test_the_first_version_has_the_files_of_earlier_publications(topic: PublishedTopic, tmp_path: Path) -> None:
    topic.write = lambda before, after: None  # type: ignore[method-assign]
    one = topic.publish(topic.file(numbers(1, 2), removed=[(0, 1)]))
    topic.first = 8
    two = topic.publish(topic.file(numbers(3)), operation="replace")
    del topic.write
    topic.write(one, two)
    assert read(topic) == [2, 3]
    assert {(status, file) for _, status, _, file, _ in entries(topic)} == {("ADDED", 1)}
    topic.publish(topic.file(numbers(4)))
    assert read(topic) == [2, 3, 4]


def test_a_damaged_list_is_named(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(1)))
    (path,) = (topic.path / "metadata").glob("snap-*.avro")
    path.write_bytes(b"Obj")
    with pytest.raises(
        CorruptRecordError, match=f"orders/metadata/{path.name}: it is not a list of Iceberg's manifests"
    ):
        topic.publish(topic.file(numbers(2)))


@pytest.fixture
def without_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "pyiceberg" or name == "txlog.publication.iceberg_files":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    import txlog.publication

    monkeypatch.delattr(txlog.publication, "iceberg_files", raising=False)


@pytest.mark.usefixtures("without_pyiceberg")
def test_without_pyiceberg_the_error_says_what_to_install(topic: PublishedTopic) -> None:
    with pytest.raises(InvalidRequestError, match=r"needs pyiceberg.*hint: pip install 'pyspark-txlog\[iceberg\]'"):
        topic.publish(topic.file(numbers(1)))


def test_pyiceberg_is_loaded_only_by_its_use() -> None:
    assert "pyiceberg" not in vars(sys.modules[write_version.__module__])
    assert ManifestEntryStatus.ADDED == 1  # type: ignore[comparison-overlap]


def test_bounds_of_a_wider_column_are_written_again(topic: PublishedTopic) -> None:
    topic.topic = msgspec.structs.replace(
        topic.topic, schema=assign_ids([column("id", "int32"), column("name", "string")])
    )
    topic.publish(topic.file([{"id": 1}, {"id": 2}], removed=[(0, 1)]))
    topic.publish(topic.file([{"id": 3}]))
    topic.change_columns(SetType(("id",), "int64"))
    topic.publish(topic.file([{"id": 4}]))
    table = StaticTable.from_metadata(str(topic.path))
    assert {len(task.file.lower_bounds[1]) for task in table.scan().plan_files()} == {8}
    assert [status for _, status, _, _, _ in entries(topic)].count("EXISTING") == 3
    assert read(topic, row_filter=greater_than("id", 2)) == [3, 4]
