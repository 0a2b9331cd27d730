"""How does a store look in the middle of a deletion? This script writes one.

    python -m tests.golden.make_deletions [FOLDER]        # default: tests/golden/v4, which must not exist

`tests/golden/v4` is never written again. It has the feature `deletion-records`: `gone` was deleted and created again,
and the process that was deleting `going` died when it had told the writers. Its rows can still be read.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pyarrow as pa

import txlog
from tests.golden.make_evolved import paths
from txlog.core.features import STORE_FEATURES
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

FORMAT_FOLDER = Path(__file__).parent / "v4"
START_MS = 1_764_000_000_000
ROWS = pa.schema((pa.field("id", pa.int64(), nullable=False),))
CONFIG: dict[str, object] = {
    "linger.ms": 0,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 1,
}


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
        for topic in ("kept", "gone", "going"):
            store.create_topic(topic, ROWS)
        with store.producer("loader") as producer, store.producer("nightly") as other:
            for number in range(2):
                with producer.transaction():
                    for topic in ("kept", "gone", "going"):
                        producer.send(topic, [{"id": number}])
            with other.transaction():
                other.send("kept", [{"id": 2}])
        store.delete_topic("gone")
        store.create_topic("gone", ROWS)
        with store.producer("loader") as producer, producer.transaction():
            producer.send("gone", [{"id": 3}])
    dying = FailingStore(memory, Fault(action="crash", match=r"put_if_absent going/topic\.0+2\.json"))
    store = txlog.open("memory://", config=CONFIG, clock=clock, ids=SeededIds(2), object_store=dying)
    with contextlib.suppress(SimulatedCrash):
        store.delete_topic("going")
    store.runtime.close()
    for path in paths(memory):
        data = memory.get(path)
        assert data is not None
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


if __name__ == "__main__":
    main()
