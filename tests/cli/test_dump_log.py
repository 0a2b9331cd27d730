"""`dump-log`: every kind of object as text and as JSON, a partition as its chain, and damage with the object's name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli
from txlog.core import envelope, names
from txlog.core.records import Boundary, Clean, CleanedRun, DataFile, StagedList, StagedPart, StagedRows, Superseded

NOW_MS = 1_356_998_400_123
FILE = DataFile(
    path="0/rows/7-1-0123456789abcdef.parquet", rows=5, bytes=9, digest=None, footer_digest="0" * 64, row_groups=(5,)
)
PART = StagedPart(topic="orders", partition=0, files=(FILE,))
FEW = StagedPart(topic="orders", partition=1, inline=StagedRows(rows=2, payload=b"rows"))


@pytest.fixture(scope="module")
def full(seen: Cli, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Return the store of `seen` with the objects that only maintenance, or a very large transaction, leaves."""
    root = tmp_path_factory.mktemp("full") / "store"
    shutil.copytree(seen.root, root)
    run = CleanedRun(base_offset=0, end_offset=6, generation=1, unique="0123456789abcdef")
    clean = Clean(number=0, runs=(run,), superseded=(Superseded(name="x", since=NOW_MS),), created_at=NOW_MS)
    for path, value in {
        f"spare/0/{names.boundary_name(6)}": Boundary(offset=6, created_at=NOW_MS),
        f"spare/0/{names.clean_name(0)}": clean,
        f"__transaction_state/3/{names.staged_list_name(7, 1, '0123456789abcdef')}": StagedList(staged=(PART, FEW)),
    }.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(envelope.encode(value))
    return Cli(root)


def paths(cli: Cli, pattern: str) -> list[str]:
    return sorted(path.relative_to(cli.root).as_posix() for path in cli.root.glob(pattern))


KINDS = {
    "txlog.json": ("store", "The descriptor of a txlog store, format 1, made <time>; it never changes."),
    "orders/topic.*.json": ("topic", "The first version of topic 'orders', written <time>: 2 partitions."),
    "orders/0/*.batch": ("batch", "A batch of 3 rows at offsets 0 to 2 of orders-0, by producer "),
    "orders/0/*.index": ("index", "The index of a sealed segment of orders-0: offsets 0 to 5."),
    "orders/0/*.txnindex": ("txnindex", "1 aborted transaction whose markers lie in offsets 6 to 10 of orders-0."),
    "orders/0/*.snapshot": ("snapshot", "The state of orders-0 just before offset 6: log start 0, last append <time>."),
    "orders/0/*.parquet": (
        "rows",
        "A Parquet file with the rows that rode inline in the sealed segment of offsets 0 to 5",
    ),
    "spare/0/*.boundary": ("boundary", "The boundary at offset 6 of spare-0, made 2013-01-01T00:00:00.123Z."),
    "spare/0/*.clean": (
        "clean",
        "Version 0 of the list of cleaned runs of spare-0, made 2013-01-01T00:00:00.123Z: 1 run.",
    ),
    "__transaction_state/*/*.staged": (
        "staged",
        "What a staged transaction of producer 7, epoch 1, appends when it is decided: 2 parts.",
    ),
    "__transaction_state/*/*0.batch": ("batch", "A batch of 1 entry at offset "),
    "__consumer_offsets/*/*0.batch": ("batch", "A batch of 2 entries at offset"),
}


@pytest.mark.parametrize("pattern", KINDS)
def test_every_kind_of_object_is_told_in_words(full: Cli, pattern: str) -> None:
    kind, sentence = KINDS[pattern]
    path = paths(full, pattern)[0]
    done = full("dump-log", path)
    size = (full.root / path).stat().st_size
    assert done.lines[0] == f"object  {path}"
    assert done.lines[1] == f"kind    {kind}"
    made = sentence if "2013" in sentence else None
    assert (made or sentence) in (done.out if made else "\n".join(done.lines))
    document = full("dump-log", path, "-o", "json").json
    assert (document["path"], document["kind"], document["bytes"]) == (path, kind, size)
    assert document["explanation"]
    assert document["value"]


@pytest.mark.parametrize("pattern", ["**/*.batch", "**/*.index", "**/*.txnindex", "**/*.snapshot", "**/topic.*.json"])
def test_no_object_of_a_store_is_too_strange(full: Cli, pattern: str) -> None:
    for path in paths(full, pattern):
        done = full("dump-log", path)
        assert "Fields" in done.lines
        assert "None" not in done.out


GOLDEN = Path(__file__).parents[1] / "golden" / "v1"


def test_the_golden_store_can_be_told_whole() -> None:
    golden = Cli(GOLDEN)
    objects = paths(golden, "**/*.*")
    kinds = {golden("dump-log", path, "-o", "json").json["kind"] for path in objects}
    assert kinds == {"store", "topic", "batch", "index", "txnindex", "snapshot", "boundary", "clean", "staged", "rows"}
    for folder in sorted({path.rpartition("/")[0] for path in objects if path.endswith(".batch")}):
        assert golden("dump-log", folder, "-o", "json").json["log_end_offset"] > 0


def test_a_cleaned_run_is_told_as_such() -> None:
    lines = Cli(GOLDEN)("dump-log", "orders/0").lines
    assert lines[lines.index("Segments") + 2].split()[:3] == ["0", "14", "1"]
    assert " run 0 " in lines[lines.index("Batches") + 2]


def explained(cli: Cli, pattern: str) -> list[str]:
    return [line for path in paths(cli, pattern) for line in cli("dump-log", path, "-o", "json").json["explanation"]]


def test_what_markers_mean(full: Cli) -> None:
    text = "\n".join(explained(full, "orders/0/*.batch"))
    assert ": what the producer's transaction wrote is valid." in text
    assert (
        "Rows of this producer from offset 6 to here are hidden from read_committed; the last "
        "stable offset after it is 9." in text
    )
    assert "It rolls forward the decision at offset " in text
    staged = "\n".join(explained(full, "orders/1/*.batch"))
    assert "The COMMIT marker at offsets 0 to 3 of orders-1" in staged
    assert "carrying 4 rows" in staged


def test_what_entries_of_internal_topics_mean(full: Cli) -> None:
    text = "\n".join(explained(full, "__*/*/*.batch"))
    assert "transactional.id 'hanging' is ONGOING: producer " in text
    assert "transactional.id 'loader' is COMPLETE_COMMIT: producer " in text
    assert "txn.version 3" in text
    assert "Group 'readers' goes on at offset 3 in orders-0." in text
    assert "Group 'readers', generation 1, has 1 member: 'consumer-" in text
    assert "of group 'readers' lives." in text
    assert "Group 'readers', generation 1, belongs to nobody." in text


def test_rows_that_ride_inline(full: Cli) -> None:
    path = f"orders/0/{names.batch_name(0)}"
    rows = [{"id": 0, "item": "item 0"}, {"id": 1, "item": "item 1"}, {"id": 2, "item": "item 2"}]
    assert full("dump-log", path, "--rows", "-o", "json").json["rows"] == rows
    assert full("dump-log", path, "--print-data-log").lines[-3:] == [
        '{"id":0,"item":"item 0"}',
        '{"id":1,"item":"item 1"}',
        '{"id":2,"item":"item 2"}',
    ]
    assert full("dump-log", path, "-o", "json").json["rows"] is None


def test_rows_of_a_batch_that_lie_in_a_file(full: Cli) -> None:
    (path,) = paths(full, "orders/1/*.batch")
    rows = [{"id": number, "item": f"item {number}"} for number in range(50, 54)]
    assert full("dump-log", path, "-o", "json").json["value"]["files"]
    assert full("dump-log", path, "--rows", "-o", "json").json["rows"] == rows


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("orders/0/*.index", "has no rows to show: expected a partition, as in 'orders/0', or a .batch"),
        ("orders/0/*.parquet", "has no rows to show: expected a partition"),
        ("__transaction_state/*/*0.batch", "__transaction_state has no rows but entries"),
    ],
)
def test_where_no_rows_can_be_shown(full: Cli, pattern: str, message: str) -> None:
    path = paths(full, pattern)[0]
    assert message in full.fails("dump-log", path, "--rows")
    assert "__consumer_offsets has no rows but entries" in full.fails("dump-log", "__consumer_offsets/0", "--rows")


def test_rows_of_a_partition(seen: Cli) -> None:
    def item(offset: int, number: int) -> dict[str, Any]:
        return {"_offset": offset, "id": number, "item": f"item {number}"}

    def rows(*options: str | int) -> dict[int, Any]:
        chain = seen("dump-log", "orders/0", "--rows", "-o", "json", *options).json
        return {batch["base_offset"]: batch["rows"] for batch in chain["batches"]}

    whole = {
        0: [item(0, 0), item(1, 1), item(2, 2)],
        3: [item(3, 10), item(4, 11)],
        5: [],
        6: [item(6, 20), item(7, 21)],
        8: [],
        9: [item(9, 30), item(10, 31)],
        11: [],
        12: [item(12, 90), item(13, 91)],
    }
    assert rows() == whole
    assert rows("--start-offset", 4, "--end-offset", 8) == {offset: whole[offset] for offset in (3, 5, 6)}
    assert rows("--start-offset", 99) == {}
    assert {batch["rows"] for batch in seen("dump-log", "orders/0", "-o", "json").json["batches"]} == {None}
    lines = seen("dump-log", "orders/0", "--print-data-log").lines
    assert lines[lines.index("Rows of offsets 6 to 7, aborted") + 1] == '{"_offset":6,"id":20,"item":"item 20"}'
    assert lines[-3:] == [
        "Rows of offsets 12 to 13, open",
        '{"_offset":12,"id":90,"item":"item 90"}',
        '{"_offset":13,"id":91,"item":"item 91"}',
    ]


def test_rows_of_a_partition_that_was_cleaned() -> None:
    """Such a partition has gaps in its offsets. The golden store has a cleaned run."""
    golden = Cli(GOLDEN)
    found = golden("dump-log", "orders/0", "--rows", "-o", "json").json["batches"]
    read = golden(
        *("consume", "orders", "--partition", 0, "--from-beginning", "--timeout-ms", 0, "--metadata"),
        *("--isolation-level", "read_uncommitted"),
    ).rows
    assert [row["_offset"] for batch in found for row in batch["rows"]] == [row["_offset"] for row in read]
    assert all(
        batch["base_offset"] <= row["_offset"] <= batch["last_offset"] for batch in found for row in batch["rows"]
    )


def test_a_path_may_begin_with_the_store(full: Cli) -> None:
    path = paths(full, "orders/0/*.index")[0]
    said = full("dump-log", path).out
    assert full("dump-log", str(full.root / path)).out == said
    assert full("dump-log", f"file://{full.root}/{path}").out == said


@pytest.mark.parametrize("path", ["orders/0", "orders-0", "orders/0/"])
def test_a_partition_is_told_as_its_chain(seen: Cli, path: str) -> None:
    lines = seen("dump-log", path).lines
    assert lines[:6] == [
        "partition     orders-0",
        "log start     0",
        "last stable   12",
        "log end       14",
        "sealed up to  11 in 2 segments",
        "boundary      0",
    ]
    assert lines[lines.index("Aborted transactions") + 2].split()[1:] == ["6", "8", "9"]
    assert lines[lines.index("Open transactions, which hold the last stable offset back") + 2].split()[2] == "12"
    batches = [line.split() for line in lines[lines.index("Batches") + 2 :]]
    assert [(row[0], row[1], row[2], row[3]) for row in batches] == [
        ("0..2", "data", "3", "-"),
        ("3..4", "data", "2", "committed"),
        ("5", "commit", "0", "-"),
        ("6..7", "data", "2", "aborted"),
        ("8", "abort", "0", "-"),
        ("9..10", "data", "2", "committed"),
        ("11", "commit", "0", "-"),
        ("12..13", "data", "2", "open"),
    ]


def test_a_chain_in_json_and_a_part_of_it(seen: Cli) -> None:
    def chain(*options: str | int) -> Any:
        return seen("dump-log", "orders/0", "-o", "json", *options).json

    whole = chain()
    assert [batch["fate"] for batch in whole["batches"]] == [
        "plain",
        "committed",
        "control",
        "aborted",
        "control",
        "committed",
        "control",
        "open",
    ]
    assert [(segment["base_offset"], segment["end_offset"]) for segment in whole["segments"]] == [(0, 6), (6, 11)]
    assert whole["batches"][-1]["rows_in"] == ["inline"]
    assert [batch["base_offset"] for batch in chain("--start-offset", 4, "--end-offset", 9)["batches"]] == [3, 5, 6, 8]


def test_partitions_of_internal_topics_and_empty_ones(seen: Cli) -> None:
    assert "No batches." in seen("dump-log", "__transaction_state/0").lines
    fates = {tuple(path.split("/")[:2]) for path in paths(seen, "__consumer_offsets/*/*.batch")}
    for topic, partition in fates:
        assert seen("dump-log", f"{topic}/{partition}", "-o", "json").json["batches"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("orders", "'orders' is not the name of an object of a txlog store; name one relative to the store's root"),
        ("orders/0/notes.txt", "'orders/0/notes.txt' is not the name of an object"),
        ("../txlog.json", "'../txlog.json' is not the name of an object"),
        ("orders/9", "topic 'orders' has no partition 9: it has 2, numbered 0 to 1"),
        ("nope/0", "topic 'nope' does not exist"),
        ("__transaction_state/50", "__transaction_state has no partition 50: it has 50, numbered 0 to 49"),
        (f"orders/0/{names.batch_name(999)}", "there is no 'orders/0/00000000000000000999.batch'; its folder holds '"),
        (
            f"nope/0/{names.batch_name(0)}",
            "there is no 'nope/0/00000000000000000000.batch', and its folder is empty or missing",
        ),
        ("orders/0/rows/1-0-0123456789abcdef.parquet", "there is no 'orders/0/rows/1-0-0123456789abcdef.parquet'"),
    ],
)
def test_what_is_not_there(seen: Cli, path: str, message: str) -> None:
    assert message in seen.fails("dump-log", path)


def test_offsets_are_for_partitions(seen: Cli) -> None:
    assert "--start-offset and --end-offset need a partition" in seen.fails("dump-log", "txlog.json", "--end-offset", 3)


@pytest.mark.parametrize("pattern", [pattern for pattern, (kind, _) in KINDS.items() if kind != "rows"])
def test_a_flipped_bit_is_an_error_that_names_the_object(full: Cli, pattern: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(full.root, root)
    path = paths(full, pattern)[0]
    data = bytearray((root / path).read_bytes())
    data[len(data) // 3] ^= 0x04
    (root / path).write_bytes(data)
    damaged = Cli(root)
    if path == "txlog.json":
        assert path in damaged.fails("topics", "list", status=4)
        return
    message = damaged.fails("dump-log", path, status=4)
    assert message.startswith(f"{path}: ")


def test_few_rows_of_a_staged_part_are_told(full: Cli) -> None:
    (path,) = paths(full, "__transaction_state/*/*.staged")
    assert "orders-1: 2 rows inline." in "\n".join(full("dump-log", path).lines)
