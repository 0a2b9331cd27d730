"""Ctrl-C in the middle of a commit: `python -m tests.disk.interrupted ROOT eager|staged FIRST STRIDE`.

The program sends itself a real SIGINT at chosen requests to the store, continues as a caller would, and prints the
result of each transaction. With `die` as stride, the first signal ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

import pyarrow as pa

import txlog
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.storage.local import LocalObjectStore

ROWS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
CONFIG = {"linger.ms": 0, "transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}


class Interrupting:
    """A store that raises Ctrl-C at the `at`-th request."""

    def __init__(self, inner: LocalObjectStore) -> None:
        self._inner = inner
        self.at = 0
        self.requests = 0

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(*args: Any) -> Any:
            self.requests += 1
            if self.requests == self.at:
                os.kill(os.getpid(), signal.SIGINT)
            return found(*args)

        return request


def opened(root: str) -> tuple[Interrupting, Store]:
    place: Any = Interrupting(LocalObjectStore(root, fsync=False))
    return place, txlog.open(root, config=CONFIG, object_store=place)


def transaction(producer: Producer, number: int) -> None:
    producer.begin_transaction()
    producer.send("orders", [{"id": number, "name": "inline"}], partition=0)
    producer.send("orders", [{"id": number, "name": "x" * 100_000}], partition=1)
    producer.send_offsets_to_transaction({TopicPartition("orders", 0): number}, "group")
    producer.commit_transaction()


def new_producer(store: Store, staged: bool) -> Producer:
    producer = store.producer("loader", staged=staged)
    producer.init_transactions()
    return producer


def main(root: str, mode: str, first: str, stride: str) -> None:
    staged = mode == "staged"
    place, store = opened(root)
    producer = new_producer(store, staged)
    number = int(first)
    while True:
        place.requests, place.at = 0, number
        outcome = "committed"
        try:
            transaction(producer, number)
        except KeyboardInterrupt:
            if stride == "die":
                raise
            outcome = "interrupted"
        except TxlogError as error:
            outcome = f"{type(error).__name__}: {error}"
        reached = place.requests >= place.at
        place.at = 0
        print(json.dumps({"number": number, "outcome": outcome}), flush=True)
        # A new instance finishes or aborts what was open, and fences the old one.
        old, producer = producer, new_producer(store, staged)
        with contextlib.suppress(TxlogError):
            old.close()
        if not reached:
            break
        number += int(stride)
    transaction(producer, 100_000)
    producer.close()
    store.close()
    print(json.dumps({"number": 100_000, "outcome": "committed"}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
