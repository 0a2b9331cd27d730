"""`txlog merge`: output and status. tests/maintenance tests the effects of a merge on rows."""

from __future__ import annotations

import pytest

from tests.cli.conftest import order_rows
from tests.cli.support import Cli
from txlog.cli.documents import MergeDocument
from txlog.client import Store


@pytest.fixture
def small_files(cli: Cli, store: Store) -> Cli:
    """orders-0: three sealed segments and a tail; orders-1: one segment."""
    store.alter_topic("orders", config={"segment.batches": 2})
    with store.producer(linger_ms=0) as producer:
        for number in range(8):
            producer.send("orders", order_rows(10 * number, 2), partition=0).result()
        for number in range(3):
            producer.send("orders", order_rows(100 + 10 * number, 2), partition=1).result()
    return cli


def consumed(cli: Cli) -> list[tuple[int, int, int]]:
    rows = cli("consume", "orders", "--from-beginning", "--timeout-ms", 0, "--metadata", "-o", "json").rows
    return sorted((row["_partition"], row["_offset"], row["id"]) for row in rows)


def test_it_says_what_it_did(small_files: Cli) -> None:
    before = consumed(small_files)
    assert len(before) == 22
    planned = small_files("merge")
    assert planned.lines[-1].startswith("Would merge 3 files, ")
    assert planned.lines[-1].endswith(" Add --execute to do it.")
    assert consumed(small_files) == before
    done = small_files("merge", "orders", "--execute")
    assert done.lines[0].split() == [
        "PARTITION",
        "OFFSETS",
        "SEGMENTS",
        "FILES",
        "BYTES",
        "ROWS",
        "FILES",
        "AFTER",
        "BYTES",
        "AFTER",
        "OUTCOME",
    ]
    assert done.lines[1].split()[:6] == ["orders-0", "0", "to", "11", "3", "3"]
    assert done.lines[-1].startswith("Merged 3 files, ")
    assert consumed(small_files) == before
    assert small_files("merge", "--execute").out.startswith("Nothing to merge")
    assert small_files("fsck").lines[4:7] == ["damaged     0", "missing     0", "notes       0"]


def test_json(small_files: Cli) -> None:
    (planned,) = small_files("merge", "--output", "json").json
    assert set(planned) == set(MergeDocument.__struct_fields__)
    assert (planned["outcome"], planned["rows"]) == ("planned", None)
    (done,) = small_files("merge", "--execute", "--output", "json").json
    shared = ("topic", "partition", "base_offset", "end_offset", "segments_before", "files_before", "bytes_before")
    assert [done[name] for name in shared] == [planned[name] for name in shared]
    assert (done["outcome"], done["rows"], done["files"], done["generation"]) == ("merged", 12, 1, 1)
    assert small_files("merge", "--execute", "--output", "json").json == []


def test_what_is_chosen(small_files: Cli) -> None:
    assert small_files("merge", "orders", "--execute", "--partition", 1).out.startswith("Nothing to merge")
    assert small_files("merge", "--topic", "orders", "--partitions", "0", "--target-bytes", 1).out.startswith("Nothing")
    assert "has no partition 2" in small_files.fails("merge", "orders", "--partition", 2)
    assert "expected numbers" in small_files.fails("merge", "--partition", "one")
    assert "did you mean 'orders'" in small_files.fails("merge", "order").lower()
    assert "is reserved" in small_files.fails("merge", "__consumer_offsets")
    assert "has no column 'ids'" in small_files.fails("merge", "--sort", "ids")
    assert "has no column 'name'" in small_files.fails("merge", "--bloom", "name")


def test_a_damaged_input_is_named_and_the_others_are_merged(small_files: Cli, store: Store) -> None:
    with store.producer(linger_ms=0) as producer:
        for number in range(3):
            producer.send("orders", order_rows(200 + 10 * number, 2), partition=1).result()
    victim = min((small_files.root / "orders/0").glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert str(victim.relative_to(small_files.root)) not in small_files("merge").err
    done = small_files("merge", "--execute", status=4)
    assert str(victim.relative_to(small_files.root)) in done.err
    assert [line.split()[0] for line in done.lines if line.startswith("orders-")] == ["orders-1"]
    assert not list((small_files.root / "orders/0").glob("*.clean"))


def test_it_is_done_only_with_execute(small_files: Cli) -> None:
    assert small_files("merge").lines[-1].startswith("Would merge ")
    for spelling in ("--dry-run", "--no-dry-run", "--delete"):
        assert f"No such option: {spelling}" in small_files.fails("merge", spelling)
    assert small_files("merge", "--execute").lines[-1].startswith("Merged ")


def test_seal_lets_the_newest_rows_be_merged(small_files: Cli) -> None:
    before = consumed(small_files)
    done = small_files("seal", "orders", "--partitions", 0)
    assert done.lines[0].split() == ["PARTITION", "SEALED", "UP", "TO"]
    assert done.lines[-1] == "Sealed 1 partition."
    assert small_files("seal", "orders/0", "--output", "json").json == [
        {"topic": "orders", "partition": 0, "sealed_end": int(done.lines[1].split()[1])}
    ]
    assert consumed(small_files) == before
    assert small_files("merge", "orders/0").lines[-1].startswith("Would merge 4 files, ")
