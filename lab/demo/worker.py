"""The demo's processes: a loader, a consume-transform-produce pipeline and the driver of a streaming query.

`python -m lab.demo.worker <role> <store> [<fault>]`. The fault, in the notation of `dying_store.DyingStore`,
chooses the write at which this process kills or stops itself. Without a fault the same code simply runs. Progress goes
to standard output, one JSON object for each line. The environment variable TXLOG_DEMO_STORAGE_OPTIONS has the options
of the store's driver as JSON; the folder of a query's checkpoint is in the environment too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa

import txlog
from lab.demo import data
from lab.demo.dying_store import dying
from txlog.errors import TxlogError
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import open_object_store

LOADER_ID = "weather-loader"
PIPELINE_ID = "delays-pipeline"
CLEANER_ID = "feed-cleaner"
GROUP = "delays"
CHUNK_ROWS = 600
"""Rows a `send`: small enough to ride inline, so that sealed segments get Parquet files of their own."""
PARTITIONS_A_TRANSACTION = 2
FAILED = 3
"""Exit status of a process whose call failed, for example because it was fenced."""
STORAGE_OPTIONS_VARIABLE = "TXLOG_DEMO_STORAGE_OPTIONS"
CHECKPOINT_VARIABLE = "TXLOG_DEMO_CHECKPOINT"


def main(arguments: list[str]) -> int:
    """Run one role; print the error and exit with FAILED if it was fenced or failed."""
    role, url = arguments[0], arguments[1]
    storage_options = json.loads(os.environ.get(STORAGE_OPTIONS_VARIABLE, "{}"))
    object_store: ObjectStore = open_object_store(url, storage_options)
    for fault in arguments[2:]:
        object_store = dying(object_store, fault)
    try:
        if role == "clean":
            # The others need no Spark, and it takes a second to import.
            from lab.demo.cleaning import clean

            clean(url, storage_options, object_store, os.environ[CHECKPOINT_VARIABLE], say)
        else:
            roles = {"load-weather": load_weather, "zombie-weather": zombie_weather, "pipeline": pipeline}
            with txlog.open(url, object_store=object_store) as store:
                roles[role](store)
    except TxlogError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    return 0


def load_weather(store: Any) -> None:
    """Loads the months that this transactional.id has not committed yet, one eager transaction each."""
    with store.producer(transactional_id=LOADER_ID) as producer:
        done = store.admin().describe_transaction(LOADER_ID).txn_version
        for month in data.MONTHS:
            if month <= done:
                continue
            rows = data.of_month(data.weather(), month)
            with producer.transaction(version=month):
                for start in range(0, rows.num_rows, CHUNK_ROWS):
                    producer.send("weather", rows.slice(start, CHUNK_ROWS), key="origin")
                    producer.flush()
            say("committed", month=month, rows=rows.num_rows)


def zombie_weather(store: Any) -> None:
    """Opens a transaction for the first month and is stopped inside it; continued, it tries to commit."""
    rows = data.of_month(data.weather(), data.MONTHS[0])
    producer = store.producer(transactional_id=LOADER_ID)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("weather", rows.slice(0, CHUNK_ROWS), key="origin")
    producer.flush()
    say("sent", rows=CHUNK_ROWS)
    producer.commit_transaction(version=data.MONTHS[0])


def pipeline(store: Any) -> None:
    """flights -> delays: output rows and input offsets in one transaction, until the input is read up."""
    with (
        store.producer(transactional_id=PIPELINE_ID) as producer,
        # With an instance id, a worker that starts again after a crash reads on at once.
        store.consumer(
            "flights",
            group_id=GROUP,
            group_instance_id=PIPELINE_ID,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        start = {str(tp): consumer.position(tp) for tp in consumer.assignment()}
        say("started", offsets=start)
        transactions = rows_in = rows_out = 0
        while True:
            batches = [batch for _ in range(PARTITIONS_A_TRANSACTION) if (batch := consumer.poll(0)) is not None]
            if not batches:
                break
            with producer.transaction():
                for batch in batches:
                    delays = data.daily_delays(rows_of(batch))
                    producer.send("delays", delays, key="origin")
                    rows_in += batch.num_rows
                    rows_out += delays.num_rows
                # Rows first, then offsets. Otherwise two threads register partitions, and a lost slot would move the
                # point at which a fault strikes.
                producer.flush()
                offsets = {tp: consumer.position(tp) for tp in consumer.assignment()}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                say("committing", offsets={str(tp): offset for tp, offset in offsets.items()})
            transactions += 1
        say("finished", transactions=transactions, rows_in=rows_in, rows_out=rows_out)


def rows_of(batch: Any) -> Any:
    """The topic's columns of a polled batch, as a table."""
    return pa.Table.from_batches([batch]).select(data.FLIGHTS.names)


def say(event: str, **details: object) -> None:
    """One line of progress."""
    print(json.dumps({"event": event, **details}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
