"""The base of the command line's tests: a runner, and one store that all tests may read and none may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.cli.support import FAST, Cli
from txlog.client import Store, TopicPartition

ORDERS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("item", pa.string())))


def order_rows(first: int, rows: int) -> list[dict[str, object]]:
    return [{"id": first + number, "item": f"item {first + number}"} for number in range(rows)]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return a runner on an empty location of its own."""
    return Cli(tmp_path / "store")


@pytest.fixture
def store(cli: Cli) -> Iterator[Store]:
    """Yield the runner's store, opened in Python, with the topic `orders` of two partitions."""
    with txlog.open(str(cli.root), storage_options=FAST) as opened:
        opened.create_topic("orders", ORDERS, partitions=2)
        yield opened


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Return a runner on a store that has a bit of everything. Tests read it and must not change it.

    orders-0: committed, aborted and open transactions over two sealed segments and a tail; events: Kafka's record
    shape.
    """
    cli = Cli(tmp_path_factory.mktemp("seen") / "store")
    with txlog.open(str(cli.root), storage_options=FAST) as store:
        store.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": 3})
        store.create_topic("events")
        plain = store.producer()
        plain.send("orders", order_rows(0, 3), partition=0)
        plain.flush()
        plain.send("events", [{"key": b"k", "value": b"\xff", "headers": [{"key": "h", "value": b"v"}]}])
        plain.close()
        loader = store.producer("loader")
        loader.init_transactions()
        for number, commit in enumerate([True, False, True]):
            loader.begin_transaction(version=number + 1)
            loader.send("orders", order_rows(10 * (number + 1), 2), partition=0)
            loader.send_offsets_to_transaction({TopicPartition("events", 0): number + 1}, "audit")
            loader.flush()
            if commit:
                loader.commit_transaction()
            else:
                loader.abort_transaction()
        staged = store.producer("stager", staged=True, inline_max_bytes=0)
        staged.init_transactions()
        with staged.transaction():
            staged.send("orders", order_rows(50, 4), partition=1)
        with store.consumer("orders", group_id="readers", enable_auto_commit=False) as consumer:
            consumer.commit({TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 0})
        # Its producer died and left it open.
        hanging = store.producer("hanging", transaction_timeout_ms=1)
        hanging.init_transactions()
        hanging.begin_transaction()
        hanging.send("orders", order_rows(90, 2), partition=0)
        hanging.flush()
        store._clients.discard(hanging)  # a close would abort it
    return cli
