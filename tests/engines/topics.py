"""Published topics with all that a log can hold, and the rows that each table must show.

`python -m tests.engines.topics <folder>` makes the store, and a file of rows for each topic. It needs Spark and the
demo's input.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from lab.engines import plain
from tests.storage.arrow_rows import EVERY_TYPE, ROWS
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.protocol.publications import read_chain

TOPICS = (
    "flights", "weather", "delays", "mixed", "compacted", "newest", "newest_copied", "evolved", "reused", "every_type",
)  # fmt: skip
CONFIG = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0", "segment.batches": "4"}
NUMBERS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
LARGE = {"inline.max.bytes": 0}
"""With this setting a producer writes each batch to a file."""


def main(folder: Path) -> None:
    store_folder = folder / "store"
    with txlog.open(str(store_folder), storage_options={"fsync": False}) as store:
        demo(store)
        for make in (mixed, compacted, newest, evolved, reused, every_type):
            make(store)
        for topic in TOPICS:
            rows = shown(store, topic)
            (folder / f"{topic}.json").write_text(json.dumps(sorted(rows)))


def shown(store: Store, topic: str) -> list[str]:
    """Return what read_committed shows at the published cut, a line for each row."""
    chain = store.runtime.run(read_chain(topic))
    assert chain.newest is not None
    tables: Tables = chain.newest
    if tables.newest.key:
        # Nothing came after the last publication.
        columns = [*store.topic(topic).schema.names, "_partition", "_offset"]
        rows = store.table(topic).latest(columns).read_all().to_pylist()
        assert all(tables.has(row["_partition"], row["_offset"]) for row in rows)
    else:
        rows = store.snapshot(topic).table(topic).to_arrow().to_pylist()
    assert {"_offset", "_partition"} <= set(rows[0])
    return [
        json.dumps(plain({name: value for name, value in row.items() if not name.startswith("_")}), sort_keys=True)
        for row in rows
        if tables.has(row["_partition"], row["_offset"])
    ]


def publish(store: Store, topic: str) -> None:
    # The lag is 0, and rows are late only after that.
    time.sleep(0.002)
    session = reading.read_session(store.runtime)
    for _, made in publish_topics(session, [store.runtime.topic(topic, 0)]):
        if isinstance(made, Exception):
            raise made


def merge(store: Store, topic: str, partitions: int, max_inputs: int = 100) -> None:
    for number in range(partitions):
        session = reading.read_session(store.runtime)
        policy = MergePolicy(max_inputs=max_inputs, target_bytes=2**30)
        merge_partition(store.runtime, session, TopicPartition(topic, number), policy)


def demo(store: Store) -> None:
    """Run the demo's first five steps with the flights of two months.

    Processes of these steps are stopped and killed.
    """
    from lab.demo import command, data
    from lab.demo.place import Place
    from lab.demo.processes import Crew
    from lab.demo.show import Show
    from pyspark_txlog import session, uninstall

    show, where = Show(io.StringIO()), Place(url=store.url, storage_options={"fsync": "false"})
    command.make_topics(show, store)
    for topic in ("flights", "weather", "delays"):
        store.alter_topic(topic, config={name: CONFIG[name] for name in ("publish.formats", "publish.max.lag.ms")})
    spark = session(app_name="txlog-engines")
    uninstall()
    frame = spark.createDataFrame(data.flights())
    for month in (1, 2):
        command.write_month(where, frame, month)
    spark.stop()
    with Crew(store.url, {"fsync": "false"}) as crew:
        stopped = command.stop_a_loader(show, crew, store)
        command.kill_a_loader(show, crew, store)
        for topic in ("flights", "weather"):
            publish(store, topic)
        command.take_over(show, crew, store)
        command.let_the_stopped_one_go_on(show, stopped, store)
        merge(store, "weather", 3)
        command.finish_the_pipeline(show, crew, store, command.kill_a_pipeline(show, crew, store))
    for topic in ("flights", "weather", "delays"):
        publish(store, topic)


def mixed(store: Store) -> None:
    """Rows that are aborted, open, staged, inline, merged, deleted, and newer than the cut."""
    topic = "mixed"
    store.create_topic(topic, NUMBERS, partitions=2, config=CONFIG)
    send, ids = _sender(store, topic)
    with (
        store.producer("eager", staged=False) as eager,
        store.producer("staged", staged=True) as staged,
        store.producer("files", staged=False, config=LARGE) as files,
    ):
        for number in range(6):
            for producer in (eager, staged, files):
                producer.begin_transaction()
                send(producer, 0, 3)
                send(producer, 1, 2)
                if number % 3 == 1:
                    producer.flush()
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
            if number % 2:
                publish(store, topic)
        merge(store, topic, 2, max_inputs=3)
        publish(store, topic)
        store.admin().delete_records(topic, 0, 13)
        publish(store, topic)
        held = store.producer("open", staged=False, config=LARGE)
        held.init_transactions()
        held.begin_transaction()
        send(held, 0, 5)
        held.flush()
        with files.transaction():
            # A file of this partition may hold rows of both.
            send(files, 0, 4)
            send(files, 1, 4)
        with eager.transaction():
            send(eager, 1, 3)
        publish(store, topic)
        with files.transaction():
            send(files, 1, 4)
    # The transaction stays open. Its rows are in the log, and must not be in the tables.
    assert ids
    uncommitted = store.consumer(topic, isolation_level="read_uncommitted", auto_offset_reset="earliest")
    with uncommitted:
        written = sum(batch.num_rows for batch in uncommitted.iterate())
    assert len(shown(store, topic)) < written


def compacted(store: Store) -> None:
    """Only the latest row of a key; some keys are deleted."""
    topic = "compacted"
    config = {**CONFIG, "key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    store.create_topic(topic, NUMBERS, partitions=2, config=config)
    with store.producer("keys", staged=False) as producer:
        for number in range(12):
            producer.begin_transaction()
            for key in range(number % 3, 20, 3):
                producer.send(topic, {"id": key, "name": f"{number}" if (key + number) % 7 else None})
            if number == 5:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            if number % 4 == 3:
                publish(store, topic)
                session = reading.read_session(store.runtime)
                policy = compaction_policy(store.runtime, store.runtime.topic(topic, 0))
                assert policy is not None
                for partition in range(2):
                    compact_partition(store.runtime, session, TopicPartition(topic, partition), policy)
    publish(store, topic)
    keys = Counter(json.loads(line)["id"] for line in shown(store, topic))
    assert len(keys) < 21


def newest(store: Store) -> None:
    """The newest rows of each key, published while keys are deleted, merged, compacted, renamed and erased."""
    config = {**CONFIG, "key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    config |= {"publish.rows": "latest"}
    columns = pa.schema((*NUMBERS, pa.field("n", pa.int64())))
    for topic, mode in (("newest", "merge-on-read"), ("newest_copied", "copy-on-write")):
        store.create_topic(topic, columns, partitions=2, config={**config, "publish.delete.mode": mode})
        name = "name"
        with store.producer(f"newest-{mode}", staged=False, config=LARGE) as producer:
            for number in range(16):
                producer.begin_transaction()
                rows = [
                    {
                        "id": key,
                        name: f"{number}" if (key + number) % 7 else None,
                        "n": number if (key + number) % 7 else None,
                    }
                    for key in range(number % 3, 3000, 3)
                ]
                producer.send(topic, rows)
                if number == 5:
                    producer.flush()
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                publish(store, topic)
                if number == 7:
                    merge(store, topic, 2, max_inputs=3)
                elif number == 10:
                    policy = compaction_policy(store.runtime, store.runtime.topic(topic, 0))
                    assert policy is not None
                    for partition in range(2):
                        session = reading.read_session(store.runtime)
                        compact_partition(store.runtime, session, TopicPartition(topic, partition), policy)
                elif number == 12:
                    store.admin().erase(topic, where="id < 600 AND n < 11")
                elif number == 13:
                    store.alter_topic(topic, rename_columns={"name": "title"})
                    name = "title"
        publish(store, topic)
        found = shown(store, topic)
        assert 0 < len(found) < 3000


def evolved(store: Store) -> None:
    """Columns are added, renamed, dropped and widened, on top and in a struct."""
    topic = "evolved"
    columns = pa.schema(
        (
            pa.field("id", pa.int64(), nullable=False),
            pa.field("small", pa.int16()),
            pa.field("single", pa.float32()),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("num", pa.int32()),
            pa.field("old", pa.string()),
            pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
            pa.field("tags", pa.list_(pa.string())),
        )
    )
    store.create_topic(topic, columns, config=CONFIG)
    names = {"num": "num", "old": "old", "city": "city"}
    wide = False
    changes: list[Callable[[], Any]] = [
        lambda: store.alter_topic(topic, add_columns=pa.schema([pa.field("extra", pa.string())])),
        lambda: store.alter_topic(topic, rename_columns={"num": "number", "place.city": "town"}),
        lambda: store.alter_topic(topic, set_types={"small": "int64", "single": "float64", "price": "decimal(20,2)"}),
        lambda: store.alter_topic(topic, drop_columns=["old"]),
        lambda: store.alter_topic(topic, add_fields={"place": pa.schema([pa.field("land", pa.string())])}),
    ]
    number = 0
    for step in range(len(changes) + 1):
        with store.producer("rows", staged=False) as producer:
            for _ in range(2):
                rows = []
                for _ in range(5):
                    number += 1
                    row: dict[str, Any] = {"id": number, "tags": [f"t{number}", None]}
                    row["small"] = number + (2**40 if wide else 0)
                    row["single"] = number / 4 + (2.0**-40 if wide else 0)
                    row["price"] = Decimal(number) / 100 + (10**15 if wide else 0)
                    row[names["num"]] = number
                    row["place"] = {names["city"]: f"c{number}", "zip": number}
                    if "old" in names:
                        row["old"] = f"old {number}"
                    if step >= 1:
                        row["extra"] = f"e{number}"
                    if step >= 5:
                        row["place"]["land"] = "de"
                    rows.append(row)
                with producer.transaction():
                    producer.send(topic, rows)
        publish(store, topic)
        if step < len(changes):
            changes[step]()
            if step == 1:
                names |= {"num": "number", "city": "town"}
            wide = wide or step == 2
            if step == 3:
                del names["old"]
            publish(store, topic)


def reused(store: Store) -> None:
    """Another column gets the name of one that was dropped."""
    topic = "reused"
    store.create_topic(topic, NUMBERS, config=CONFIG)
    with store.producer() as producer:
        producer.send(topic, [{"id": number, "name": f"name {number}"} for number in range(5)])
    publish(store, topic)
    store.alter_topic(topic, drop_columns=["name"])
    store.alter_topic(topic, add_columns=pa.schema([pa.field("name", pa.int64())]))
    with store.producer() as producer:
        producer.send(topic, [{"id": number, "name": number} for number in range(5, 9)])
    publish(store, topic)


def every_type(store: Store) -> None:
    """All types, with extreme values, nulls, and enough rows for statistics to skip some."""
    topic = "every_type"
    store.create_topic(topic, EVERY_TYPE, config=CONFIG)
    with store.producer("rows", staged=False, config=LARGE) as producer:
        for first in range(0, 90, 30):
            with producer.transaction():
                producer.send(
                    topic, pa.Table.from_pylist([_typed(each) for each in range(first, first + 30)], EVERY_TYPE)
                )
            publish(store, topic)
        with producer.transaction():
            producer.send(topic, pa.Table.from_pylist(ROWS, EVERY_TYPE))
    publish(store, topic)


def _typed(number: int) -> dict[str, Any]:
    at = datetime(2024, 10, 4, tzinfo=UTC) + timedelta(microseconds=number * 1_234_567 + 999)
    return {
        "flag": number % 2 == 0, "i8": number, "i16": -number, "i32": number * 1_000, "i64": number,
        "f32": number / 4, "f64": number / 7, "price": Decimal(number) / 100, "big": Decimal(10) ** 30 + number,
        "text": f"{chr(0x1F600 + number % 50)}{number}", "raw": bytes([number % 256] * 3),
        "day": date(2020, 1, 1) + timedelta(days=number), "at": at, "local": at.replace(tzinfo=None),
        "tags": ["a", None] if number % 3 else None, "point": {"x": None, "y": number / 2},
        "props": [("k", number), ("l", None)], "deep": [{"k": "x", "v": [("y", [number, None])]}, None],
    }  # fmt: skip


def _sender(store: Store, topic: str) -> tuple[Callable[[Any, int, int], None], list[int]]:
    ids: list[int] = []

    def send(producer: Any, partition: int, count: int) -> None:
        rows: list[dict[str, Any]] = [
            {"id": len(ids) + each, "name": f"name {len(ids) + each}"} for each in range(count)
        ]
        ids.extend(row["id"] for row in rows)
        producer.send(topic, rows, partition=partition)

    return send, ids


if __name__ == "__main__":
    main(Path(sys.argv[1]))
