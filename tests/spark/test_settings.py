"""Does a setting that Spark's options share with the client have the same value on all roads, wherever it was given?

The tests run without Spark's JVM. They call the code that Spark calls, and look at the resulting settings or records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import txlog
from pyspark_txlog import TxLog
from pyspark_txlog.api.scan_options import scan_options
from pyspark_txlog.option_table import OPTIONS
from pyspark_txlog.sink.batch_writer import TxlogWriter, producer_config
from pyspark_txlog.sink.routing import write_parts
from pyspark_txlog.sink.stream_writer import TxlogStreamWriter
from pyspark_txlog.source.options import parse_read_options, parse_stream_options, settled
from pyspark_txlog.source.stream_source import StreamSource
from txlog.client.session.runtime import Runtime
from txlog.client.transactions.staged_files import StagedFiles
from txlog.config import KEYS, Scope
from txlog.core.records import DataFile, StagedPart, TransactionMetadata

FRAME = StructType([StructField("k", LongType())])
ROWS = pa.table({"k": pa.array(range(9), pa.int64())})

Given = Mapping[str, str]
"""The settings of the call itself, by name."""


# -- the roads: each returns the effective values by the setting's name -----------------------------------------------


def consumer(url: str, given: Given) -> dict[str, object]:
    return _fields(Runtime.open(url).settings.consumer_config(given))


def load(url: str, given: Given) -> dict[str, object]:
    options = parse_read_options({"path": url, "subscribe": "orders", **given})
    return _fields(settled(options, options.open().settings))


def to_df(url: str, given: Given) -> dict[str, object]:
    return _fields(scan_options(Runtime.open(url), ["orders"], given))


def read_stream(url: str, given: Given) -> dict[str, object]:
    options = parse_stream_options({"path": url, "subscribe": "orders", **given})
    source = StreamSource(options.open(), options, FRAME)
    offset = source.initial()["txlog:source"]
    return {
        **_fields(source._read),
        "metadata.max.age.ms": source._session.metadata_max_age_ms,
        "group.id": offset["group.id"],
    }


def producer(url: str, given: Given) -> dict[str, object]:
    with txlog.open(url) as store, store.producer(config=given) as made:
        if made.transactional_id is not None:
            txn = store.admin().describe_transaction(made.transactional_id)
            return {"transactional.id": made.transactional_id, "transaction.timeout.ms": txn.timeout_ms}
        config = store.runtime.settings.row_config(given, store.runtime.topic("orders"))
        return {"transaction.timeout.ms": config.transaction_timeout_ms, "compression.type": config.compression_type}


def save(url: str, given: Given) -> dict[str, object]:
    made = TxlogWriter.begin({"path": url, "topic": "orders", **given}, FRAME, overwrite=False)
    runtime = made.options.open()
    parts = write_parts(runtime, made.options, FRAME, made.txn, 0, iter(ROWS.to_batches()))
    return _written(url, made.txn, parts)


def write_stream(url: str, given: Given) -> dict[str, object]:
    options = {"path": url, "topic": "orders", "checkpointLocation": f"{url}-ck", "commitSourceOffsets": "false"}
    made = TxlogStreamWriter.begin({**options, **given}, FRAME, overwrite=False)
    assert made.txn is not None
    runtime = made.options.open()
    parts = write_parts(runtime, made.options, FRAME, made.txn, 0, iter(ROWS.to_batches()))
    config = runtime.settings.producer_config(producer_config(made.options))
    return {**_written(url, made.txn, parts), "allow.mixed.groups": config.allow_mixed_groups}


def transaction(url: str, given: Given) -> dict[str, object]:
    # TxLog asks the session only for the query that the thread works in, after a look whether it is one.
    with (
        TxLog(cast("Any", SimpleNamespace(_sc=None, createDataFrame=None)), url) as log,
        log.transaction(config={name: value for name, value in given.items() if name != "compression.type"}) as txn,
    ):
        files = StagedFiles(log.runtime, txn._staged.txn, compression=given.get("compression.type"))
        files.add(log.runtime.topic("orders"), ROWS, 0)
        return _written(url, txn._staged.txn, files.finish())


def _fields(config: Any) -> dict[str, object]:
    own = {"auto_offset_reset": "missing_start"} if hasattr(config, "missing_start") else {}
    names = {name: own.get(key.field, key.field) for name, key in KEYS.items()}
    return {name: getattr(config, name_here) for name, name_here in names.items() if hasattr(config, name_here)}


def _written(url: str, txn: TransactionMetadata, parts: tuple[StagedPart, ...]) -> dict[str, object]:
    (file,) = [each for part in parts for each in part.files]
    return {
        "transactional.id": txn.transactional_id,
        "transaction.timeout.ms": txn.timeout_ms,
        "compression.type": _codec(url, file),
    }


def _codec(url: str, file: DataFile) -> str:
    footer = pq.ParquetFile(f"{url}/orders/{file.path}").metadata
    return str(footer.row_group(0).column(0).compression).lower()


Road = Callable[[str, Given], dict[str, object]]
READS: tuple[Road, ...] = (consumer, load, to_df, read_stream)
WRITES: tuple[Road, ...] = (producer, save, write_stream, transaction)

SETTINGS: tuple[tuple[str, Scope, object, object, tuple[Road, ...]], ...] = (
    ("isolation.level", "consumer", "read_uncommitted", "read_committed", READS),
    ("group.id", "consumer", "night", "day", READS),
    ("allow.mixed.groups", "consumer", True, False, (consumer, read_stream)),
    ("allow.mixed.groups", "producer", True, False, (write_stream,)),
    ("auto.offset.reset", "consumer", "latest", "earliest", READS),
    ("metadata.max.age.ms", "consumer", 77, 78, (consumer, read_stream)),
    # The sink's default depends on the checkpoint: with one id for all queries, only one of them could run.
    ("transactional.id", "producer", "night", "day", (producer, save, transaction)),
    ("transaction.timeout.ms", "producer", 1_200_000, 1_300_000, WRITES),
    ("compression.type", "producer", "gzip", "snappy", WRITES),
)
"""Name, table in the file, the file's value, the call's value, the roads that have it."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("orders", ROWS.schema, config={"inline.max.bytes": 0})
    return str(tmp_path / "log")


def test_each_shared_setting_has_a_row() -> None:
    assert {option.name for option in OPTIONS} & set(KEYS) == {name for name, *_ in SETTINGS}


@pytest.mark.parametrize(
    ("name", "scope", "of_file", "of_call", "road"),
    [
        pytest.param(name, scope, of_file, of_call, road, id=f"{name} {road.__name__}")
        for name, scope, of_file, of_call, roads in SETTINGS
        for road in roads
    ],
)
def test_a_setting_is_the_same_on_all_roads(
    name: str,
    scope: Scope,
    of_file: object,
    of_call: object,
    road: Road,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The timeout is above the default maximum. An option may use any value that the file allows.
    text = "[producer]\n'transaction.max.timeout.ms' = 3600000\n"
    line = f"'{name}' = {json.dumps(of_file)}\n"
    text += line if scope == "producer" else f"[{scope}]\n{line}"
    (tmp_path / "txlog.toml").write_text(text)
    monkeypatch.setenv("TXLOG_CONFIG", str(tmp_path / "txlog.toml"))
    assert road(url, {})[name] == of_file
    assert road(url, {name: str(of_call).lower()})[name] == of_call


def test_a_stream_s_id_is_its_checkpoint_s_whatever_the_file_says(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "txlog.toml").write_text("[producer]\ntransactional.id = 'night'\n")
    monkeypatch.setenv("TXLOG_CONFIG", str(tmp_path / "txlog.toml"))
    assert write_stream(url, {})["transactional.id"] == f"spark-stream:{url}-ck"


@pytest.mark.parametrize("road", WRITES)
def test_a_topic_s_compression_counts_before_the_file_and_after_the_call(
    road: Road, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "txlog.toml").write_text("[producer]\n'compression.type' = 'gzip'\n")
    monkeypatch.setenv("TXLOG_CONFIG", str(tmp_path / "txlog.toml"))
    url = str(tmp_path / "log")
    with txlog.open(url) as store:
        store.create_topic("orders", ROWS.schema, config={"inline.max.bytes": 0, "compression.type": "lz4"})
    assert road(url, {})["compression.type"] == "lz4"
    assert road(url, {"compression.type": "snappy"})["compression.type"] == "snappy"
