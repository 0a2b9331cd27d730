"""`txlog compact`: output and status. tests/maintenance tests the effects of a compaction on rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Cli
from txlog.cli.documents import CompactDocument
from txlog.client import Store

SETTINGS = {"cleanup.policy": "compact", "key.columns": "id", "segment.batches": 2, "min.cleanable.dirty.ratio": 0.2}


@pytest.fixture
def keyed(cli: Cli, store: Store) -> Cli:
    """users-0: ten batches of the keys 0 and 1, one a tombstone; users-1: only a tail; orders is not compacted."""
    store.create_topic("users", store.topic("orders").schema, partitions=2, config=SETTINGS)
    with store.producer(linger_ms=0) as producer:
        for number in range(10):
            row = {"id": number % 2, "item": None if number == 4 else f"item {number}"}
            producer.send("users", [row], partition=0).result()
        producer.send("users", [{"id": 0, "item": "one"}], partition=1).result()
    return cli


def consumed(cli: Cli) -> list[tuple[int, int, int, str | None]]:
    rows = cli("consume", "users", "--from-beginning", "--timeout-ms", 0, "--metadata", "-o", "json").rows
    return sorted((row["_partition"], row["_offset"], row["id"], row["item"]) for row in rows)


def test_it_says_what_it_did(keyed: Cli) -> None:
    before = consumed(keyed)
    planned = keyed("compact")
    assert planned.lines[0].split() == [
        "PARTITION",
        "SEGMENTS",
        "BYTES",
        "DIRTY",
        "DIRTY",
        "RATIO",
        "EXPIRED",
        "TOMBSTONES",
        "OUTCOME",
    ]
    assert [line.split()[-1] for line in planned.lines[1:3]] == ["planned", "due"]
    assert planned.lines[-2] == "Would compact 1 partition. Add --execute to do it."
    assert planned.lines[-1].startswith("Not due: all new rows are in the active segment")
    assert consumed(keyed) == before
    done = keyed("compact", "users", "--execute")
    assert done.lines[1].split()[:5] == ["users-0", "0", "to", "7", "4"]
    assert done.lines[1].split()[-1] == "compacted"
    assert done.lines[-1].startswith("Compacted 1 partition: 6 rows removed.")
    assert consumed(keyed) == [before[6], before[7], before[8], before[9], before[10]]
    assert keyed("compact", "--execute").out.startswith("Nothing to compact")
    assert keyed("fsck").lines[4:7] == ["damaged     0", "missing     0", "notes       0"]
    assert [step["job"] for step in (row["step"] for row in keyed("history", "-o", "json").json)] == ["compact"]


def test_it_says_why_there_is_nothing_to_compact(keyed: Cli, store: Store) -> None:
    def why(*args: Any) -> str:
        (line,) = keyed("compact", "users", "--execute", *args).lines
        return line.removeprefix("Nothing to compact: ")

    active = "all new rows are in the active segment, which ends by segment.batches, segment.bytes or segment.ms"
    assert why("--partition", 1) == f"{active} (1 partition)."
    keyed("topics", "alter", "users", "--set", "min.compaction.lag.ms=3600000")
    assert why("--partition", 0) == "the new rows are younger than min.compaction.lag.ms (1 partition)."
    keyed("topics", "alter", "users", "--unset", "min.compaction.lag.ms")
    keyed("compact", "users", "--execute")
    assert why() == f"{active} (2 partitions)."
    with store.producer("open", linger_ms=0) as producer:
        producer.begin_transaction()
        for number in range(5):
            producer.send("users", [{"id": 0, "item": f"{number}"}], partition=1).result()
        assert why("--partition", 1) == "a transaction over the new rows has not ended yet (1 partition)."
        producer.abort_transaction()
    with store.producer(linger_ms=0) as producer:
        for number in range(4):
            producer.send("users", [{"id": 0, "item": f"{number}"}], partition=0).result()
    assert why("--partition", 0, "--min-cleanable-dirty-ratio", 0.99) == (
        "less than min.cleanable.dirty.ratio=0.99 of the bytes is dirty (1 partition). "
        "--min-cleanable-dirty-ratio 0 compacts what is dirty now."
    )
    store.create_topic("empty", store.topic("orders").schema, config=SETTINGS)
    assert keyed("compact", "empty", "--execute").out == "Nothing to compact: there are no new rows (1 partition).\n"


def test_json(keyed: Cli) -> None:
    planned, other = keyed("compact", "--output", "json").json
    assert set(planned) == set(CompactDocument.__struct_fields__)
    assert (planned["outcome"], planned["dirty_ratio"], planned["rows"]) == ("planned", 1.0, None)
    assert (other["partition"], other["outcome"], other["segments_before"]) == (1, "not due", 0)
    passes = keyed("compact", "--execute", "--output", "json", "--max-keys", 1).json
    assert [each["outcome"] for each in passes] == ["compacted"] * len(passes)
    assert len(passes) > 1
    assert (passes[-1]["rows"], passes[-1]["compacted_to"], passes[-1]["keys"]) == (2, 8, 1)
    assert keyed("compact", "--execute", "--output", "json").json == []


def test_what_is_chosen(keyed: Cli) -> None:
    assert keyed("compact", "users", "--execute", "--partition", 1).out.startswith("Nothing to compact")
    planned = keyed("compact", "--topic", "users", "--min-cleanable-dirty-ratio", 1)
    assert "Would compact 1 partition. Add --execute to do it." in planned.lines
    said = keyed.fails("compact", "orders")
    assert "found cleanup.policy=delete; `txlog topics alter orders --set cleanup.policy=compact" in said
    assert "the snapshots of an internal topic are its compaction" in keyed.fails("compact", "__consumer_offsets")
    assert "did you mean 'users'" in keyed.fails("compact", "user").lower()
    keyed("topics", "alter", "users", "--set", "cleanup.policy=delete")
    for command in (("compact",), ("compact", "--execute")):
        assert keyed(*command).out.startswith("Nothing to compact: no topic has cleanup.policy=compact.")


def test_a_damaged_input_is_named_and_the_others_are_compacted(keyed: Cli, store: Store) -> None:
    with store.producer(linger_ms=0) as producer:
        for number in range(3):
            producer.send("users", [{"id": 0, "item": f"{number}"}], partition=1).result()
    victim = min((keyed.root / "users/0").glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    done = keyed("compact", "--execute", status=4)
    assert str(victim.relative_to(keyed.root)) in done.err
    assert [line.split()[0] for line in done.lines if line.startswith("users-")] == ["users-1"]
    assert not list((keyed.root / "users/0").glob("*.clean"))


def test_a_dump_shows_each_row_that_is_left_with_its_batch(keyed: Cli, store: Store) -> None:
    with store.producer("loader", linger_ms=0) as producer:
        producer.begin_transaction()
        for number in range(3):
            producer.send("users", [{"id": 7, "item": "a"}, {"id": 8 + number, "item": "b"}, {"id": 7, "item": "c"}])
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("users", [{"id": 0, "item": "x"}], partition=0)
        producer.send("users", [{"id": 0, "item": "x"}], partition=0)
        producer.commit_transaction()
    keyed("compact", "--execute")
    left = [offset for partition, offset, _, _ in consumed(keyed) if partition == 0]
    headings: list[str] = []
    rows: list[tuple[str, str]] = []
    for line in keyed("dump-log", "users/0", "--rows").lines:
        if line.startswith("Rows of "):
            headings.append(line)
        elif line.startswith('{"_offset"'):
            rows.append((headings[-1], line))
    assert len(rows) == len(left)
    for (heading, row), offset in zip(rows, left, strict=True):
        assert row.startswith(f'{{"_offset":{offset},')
        numbers = [int(word) for word in heading.replace(",", " ").replace("..", " ").split() if word.isdigit()]
        assert numbers[0] <= offset <= numbers[-1], heading
