"""How much memory does a merge take, whatever the size of the run?

    python -m benchmarks.merge_memory --gibibytes 1 --row-bytes 1000

Fills a topic with batches of random bytes, which compression cannot make smaller, and merges them in a separate process.
The highest resident memory of that process is the result. A merge may hold one row group of its input and one of its
output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import txlog
from txlog.client.reading import read_session
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partitions
from txlog.maintenance.partition_loop import gather

TP = TopicPartition("rows", 0)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.binary())])
BATCH_BYTES = 48 * 2**20
OPTIONS = {"fsync": False}


def main() -> None:
    """Print one line of JSON: bytes and rows merged, seconds, and the highest resident memory before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gibibytes", type=float, default=1)
    parser.add_argument("--row-bytes", type=int, default=1000)
    parser.add_argument("--sort", action="store_true", help="sort by the column of random bytes")
    parser.add_argument("--store", help="merge this store, made by an earlier call, in this process")
    given = parser.parse_args()
    if given.store:
        print(json.dumps(merge(given.store, sort=given.sort)))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "store")
        fill(url, int(given.gibibytes * 2**30), given.row_bytes)
        # A separate process merges, so that the memory for making the rows does not count.
        line = [sys.executable, "-m", "benchmarks.merge_memory", "--store", url, *(["--sort"] if given.sort else [])]
        subprocess.run(line, check=True)


def fill(url: str, size: int, row_bytes: int) -> None:
    """Write sealed segments of `size` bytes, and one that is not sealed."""
    dice = np.random.default_rng(1)
    rows = max(BATCH_BYTES // row_bytes, 1)
    batches = -(-size // (rows * row_bytes))
    with txlog.open(url, storage_options=OPTIONS) as store:
        config = {"segment.batches": batches, "segment.bytes": 2**31 - 1}
        store.create_topic(TP.topic, SCHEMA, config=config)
        with store.producer(linger_ms=0) as producer:
            for number in range(batches + 1):
                count = rows if number < batches else 1
                values = pa.BinaryArray.from_buffers(
                    pa.binary(),
                    count,
                    [
                        None,
                        pa.py_buffer(np.arange(count + 1, dtype=np.int32) * row_bytes),
                        pa.py_buffer(dice.bytes(count * row_bytes)),
                    ],
                )
                ids = pa.array(np.arange(number * rows, number * rows + count))
                producer.send(TP.topic, pa.table([ids, values], schema=SCHEMA)).result()


def merge(url: str, *, sort: bool) -> dict[str, object]:
    """Merge the store in this process."""
    with txlog.open(url, storage_options=OPTIONS) as store:
        before = peak_bytes()
        began = time.perf_counter()
        layout = FileLayout(sort=("value",) if sort else ())
        merging = merge_partitions(read_session(store.runtime), [TP], MergePolicy(target_bytes=2**40), layout)
        (done,), _ = gather(merging)
        return {
            "bytes_before": done.bytes_before,
            "bytes": done.bytes,
            "rows": done.rows,
            "files_before": done.files_before,
            "seconds": round(time.perf_counter() - began, 1),
            "resident_bytes_before": before,
            "resident_bytes": peak_bytes(),
        }


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far. (`getrusage` would count that of the parent process.)"""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
