"""How does a store look in the middle of an erasure, and with a published table of newest rows? This script writes one.

    python -m tests.golden.make_erased [FOLDER]        # default: tests/golden/v5, which must not exist

`tests/golden/v5` is never written again. In `people` one erasure has ended. The process that made another one died
before its second run took effect, so the record of the erasure is there. The table of `stock` has the newest rows only;
some files of it were merged, and a part of the others is not in the table.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import txlog
from tests.golden.make_evolved import paths
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.features import STORE_FEATURES
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.publication.outcome import Published
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

FORMAT_FOLDER = Path(__file__).parent / "v5"
START_MS = 1_764_000_000_000
CONFIG: dict[str, object] = {
    "linger.ms": 0,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 1,
}
NAMES = ("ann", "bob", "carl", "ann", "dora", "bob", "ann", "emil")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FORMAT_FOLDER
    if folder.exists():
        sys.exit(f"{folder} exists; a golden store is never changed")
    make(folder)
    print(
        f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} objects, features {', '.join(STORE_FEATURES)}"
    )


def make(folder: Path) -> None:
    """Write the golden store into `folder`."""
    clock = ManualClock(START_MS)
    memory = MemoryObjectStore(clock=clock)
    with txlog.open("memory://", config=CONFIG, clock=clock, ids=SeededIds(1), object_store=memory) as store:
        columns = {"name": "string", "n": "int64"}
        store.create_topic("people", columns, partitions=2, config={"segment.batches": 2, "inline.max.bytes": 0})
        with store.producer("loader") as producer:
            for number, name in enumerate(NAMES):
                with producer.transaction():
                    for partition in range(2):
                        producer.send("people", [{"name": name, "n": number}], partition=partition)
            producer.begin_transaction()
            producer.send("people", [{"name": "bob", "n": -1}], partition=0)
            producer.flush()
            producer.abort_transaction()
        store.admin().erase("people", where="name = 'ann' and n < 6")
        publish_newest(store, clock)
    dying = FailingStore(memory, Fault(action="crash", match=r"put_if_absent people/\d/\d+\.clean", number=2))
    store = txlog.open("memory://", config=CONFIG, clock=clock, ids=SeededIds(2), object_store=dying)
    with contextlib.suppress(SimulatedCrash):
        store.admin().erase("people", where="name = 'bob'")
    store.runtime.close()
    for path in paths(memory):
        data = memory.get(path)
        assert data is not None
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def publish_newest(store: Store, clock: ManualClock) -> None:
    config = {"segment.batches": 2, "inline.max.bytes": 0, "key.columns": "id", "publish.max.lag.ms": 0}
    config |= {"publish.formats": "delta", "publish.rows": "latest"}
    store.create_topic("stock", {"id": "int64", "left": "int64"}, config=config)
    session = reading.read_session(store.runtime)
    with store.producer() as producer:
        for number in range(9):
            first = number % 4
            rows = [{"id": key, "left": None if key == 5 else number} for key in range(first, first + 4)]
            producer.send("stock", rows).result()
            clock.advance_ms(10)
            if number % 2:
                for _, made in publish_topics(session, [store.runtime.topic("stock", 0)]):
                    assert isinstance(made, Published), made
            if number == 5:
                policy = MergePolicy(max_inputs=2)
                merge_partition(store.runtime, session, TopicPartition("stock", 0), policy)


if __name__ == "__main__":
    main()
