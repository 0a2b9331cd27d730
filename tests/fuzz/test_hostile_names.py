"""Names that point outside the store's root, or into another topic, are refused by writers and by readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txlog
from lab.testing.damage import overwrite
from tests.fuzz.hostile import closed, opened
from tests.maintenance import damage as d
from txlog.core import envelope, names
from txlog.core.records import DataFile, StagedList, StagedPart
from txlog.errors import CorruptRecordError, InvalidTopicError, TxlogError
from txlog.storage.local import LocalObjectStore
from txlog.testing.clock import ManualClock

TOPICS = (
    "../orders", "..", ".", "/etc", "a/b", "a/../b", "orders/", "%2e%2e", "..%2forders", "a%00b", "a\0b", "a\\b",
    "..\\b",
    "C:\\x", "a\nb", "a b", "a:b", "orders\u200b", "\u202eorders", "ｏrders", "оrders", "․․", "․․/orders",
    "orders\u0301", "ﬀ",
    "", "x" * 250, "__orders", "__transaction_state", "txlog.json", "a\ud83d",
)  # fmt: skip
"""They contain a Cyrillic o, a full-width one, dot leaders, and invisible marks."""

FILES = (
    "../../etc/passwd", "/etc/passwd", "0/rows/../../../x.parquet", "0/rows/7-0-0123456789abcdef.parquet/..",
    "0/rows/%2e%2e.parquet",
    "0/rows/7-0-0123456789abcdef.parquet\0", "0\\rows\\7-0-0123456789abcdef.parquet",
    "0/rows/7-0-0123456789abcdeｆ.parquet",
    "٠/rows/7-0-0123456789abcdef.parquet", "1/rows/7-0-0123456789abcdef.parquet",
    "00/rows/7-0-0123456789abcdef.parquet",
    "staged/7-0-0123456789abcdef/_partition=0/../../x.parquet", "staged/7-0-0123456789abcdef/_partition=0/․․.parquet",
    "staged/7-0-0123456789abcdef/_partition=1/part-0.parquet", "s3://other/0/rows/7-0-0123456789abcdef.parquet",
    "0/rows/", "",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store below another folder, which must stay empty."""
    return tmp_path / "outside" / "store"


def everything_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(root: Path, topic: str) -> None:
    with txlog.open(str(root), storage_options={"fsync": False}) as store:
        store.create_topic("orders")
        before = everything_in(root.parent)
        with pytest.raises(InvalidTopicError):
            store.create_topic(topic)
        for call in (
            lambda: store.topic(topic),
            lambda: store.consumer(topic),
            lambda: store.alter_topic(topic, partitions=2),
            lambda: store.delete_topic(topic),
            lambda: store.admin().list_offsets(topic),
            lambda: store.producer().send(topic, [{"key": b"k"}]).result(),
        ):
            with pytest.raises(TxlogError):
                call()
        assert everything_in(root.parent) == before


def put(fields: dict[str, Any], where: tuple[Any, ...], new: object) -> None:
    at: Any = fields
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = new


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("orders/1/00000000000000000005.batch", ("files", 0, "path")),
        (
            "orders/0/00000000000000000000-00000000000000000014-1-00000001000000000000000000000039.index",
            ("files", 0, "path"),
        ),
        ("__transaction_state/10/110-0-0000000100000000000000000000004a.staged", ("staged", 0, "files", 0, "path")),
    ],
    ids=["batch", "index", "staged"],
)
def test_files_that_stored_objects_name(root: Path, path: str, where: tuple[Any, ...], file: str) -> None:
    """Readers and fsck do not open these files, on a file system where the names could lead outside."""
    objects = d.golden()
    fields, payload = opened(objects[path])
    put(fields, where, file if file[:2] not in ("1/", "st") or "_partition=1" not in file else file.replace("=1", "=7"))
    if file.startswith("1/") and not path.startswith("orders/0"):
        put(fields, where, "7" + file[1:])
    objects[path] = closed(fields, payload)
    store = LocalObjectStore(str(root), fsync=False)
    for name, data in objects.items():
        overwrite(store, name, data)
    (root.parent / "x.parquet").write_bytes(b"outside")
    if path.endswith(".staged"):
        assert not d.checked(objects).is_clean  # its digest belongs to another file, and a reader checks that first
        return
    found = d.seen(objects)
    assert isinstance(found, CorruptRecordError), found
    assert path in str(found)
    assert any(finding.path == path and finding.kind == "damaged" for finding in d.checked(objects).findings)


@pytest.mark.parametrize("file", FILES)
def test_files_that_a_decision_names_are_not_published(file: str) -> None:
    """The staged list has the digest that the decision names.

    A process that rolls it forward refuses, and names the file.
    """
    objects = d.golden()
    state = "__transaction_state/10/"
    list_path = state + "110-0-0000000100000000000000000000004a.staged"
    prepare_path = state + names.batch_name(3)
    value, _ = envelope.decode(objects[list_path], StagedList, list_path)
    part = value.staged[0]
    own = {name: getattr(part.files[0], name) for name in DataFile.__struct_fields__}
    hostile = "7" + file[1:] if file.startswith("1/") else file.replace("_partition=1", "_partition=7")
    changed = StagedPart(
        topic=part.topic,
        partition=part.partition,
        schema_id=part.schema_id,
        files=(DataFile(**{**own, "path": hostile}),),
    )
    objects[list_path] = envelope.encode(StagedList(staged=(changed,)))
    fields, _ = opened(objects[prepare_path])
    staged = fields["entries"][0]["value"]["staged_object"]
    staged["bytes"], staged["digest"] = len(objects[list_path]), envelope.digest(objects[list_path])
    objects[prepare_path] = closed(fields)
    memory = d.memory_store(objects)
    clock = ManualClock(1_764_000_000_000 + 26 * 3_600_000)
    with txlog.open("memory://", object_store=memory, clock=clock) as store:
        try:
            store.admin().expire()
        except TxlogError:
            pass
        else:
            pytest.fail("a file that cannot belong to the partition was published")
    assert (
        not any(
            hostile.encode() in (memory.get(path) or b"")
            for path in d.objects_of(memory)
            if path.startswith("orders/1/")
        )
        or not hostile
    )
    assert d.kind_of(list_path) == "staged"
    assert not d.checked(objects).is_clean


@pytest.mark.parametrize("name", ["../../x", "/x", "110-0-0123456789abcdef.staged/../../x", "x\0", ""])
def test_staged_lists_that_a_decision_names(name: str) -> None:
    objects = d.golden()
    path = "__transaction_state/10/" + names.batch_name(3)
    fields, _ = opened(objects[path])
    fields["entries"][0]["value"]["staged_object"]["name"] = name
    objects[path] = closed(fields)
    with txlog.open("memory://", object_store=d.memory_store(objects)) as store:
        admin = store.admin()
        with pytest.raises(CorruptRecordError, match="is not the name of a staged list"):
            admin.expire()
    assert not d.checked(objects).is_clean


@pytest.mark.parametrize("unique", ["../../x", "/x", "x\0", "", "ABCDEF01", "0123456789abcdeｆ"])
def test_runs_that_a_clean_names(unique: str) -> None:
    objects = d.golden()
    path = "orders/0/00000000000000000000.clean"
    fields, _ = opened(objects[path])
    fields["runs"][0]["unique"] = unique
    objects[path] = closed(fields)
    found = d.seen(objects)
    assert isinstance(found, CorruptRecordError)
    assert path in str(found)
    assert any(finding.path == path and finding.kind == "damaged" for finding in d.checked(objects).findings)


def test_strange_names_in_a_store_are_not_taken_for_its_own() -> None:
    objects = d.golden()
    for name in ("orders/٠/00000000000000000000.batch", "orders/00/00000000000000000000.batch"):
        if name.isascii():
            objects[name] = objects["orders/0/00000000000000000014.batch"]
    objects["orders/0/0000000000000000018.batch"] = objects["orders/0/00000000000000000017.batch"]
    objects["orders/0/99999999999999999999.batch"] = objects["orders/0/00000000000000000017.batch"]
    assert d.seen(objects) == d.seen(d.golden())
    assert d.checked(objects).is_clean
