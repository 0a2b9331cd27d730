"""Rows of every type of a column, and a file of them by Spark's own Parquet writer.

    python -m tests.golden.every_type        # writes tests/golden/by_spark.parquet, if it does not exist

Spark's writer gives no id to the element of a list, nor to the key and the value of a map. `by_spark.parquet` was
written by Spark 4.2 for the first version of the topic `types` of `make_frozen.py`. So that script needs no Spark.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog

SPARK_FILE = Path(__file__).parent / "by_spark.parquet"
UTC = datetime.UTC

TYPES = pa.schema(
    (
        pa.field("id", pa.int64(), nullable=False),
        pa.field("ok", pa.bool_()),
        pa.field("tiny", pa.int8()),
        pa.field("small", pa.int16()),
        pa.field("num", pa.int32()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("clock", pa.timestamp("us")),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("long", pa.decimal128(38, 9)),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("attrs", pa.map_(pa.string(), pa.field("value", pa.int32()))),  # type: ignore[call-overload]
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
        pa.field("items", pa.list_(pa.struct([pa.field("sku", pa.string()), pa.field("qty", pa.int16())]))),
    )
)


def row(number: int) -> dict[str, Any]:
    """Return a row whose values follow from `number`. Every third row is null in every column that may be."""
    if number % 3 == 2:
        return {name: number if name == "id" else None for name in TYPES.names}
    sign = -1 if number % 2 else 1
    edge = number % 3 == 1
    return {
        "id": number,
        "ok": number % 2 == 0,
        "tiny": -128 if edge else number % 100,
        "small": -(2**15) if edge else sign * number,
        "num": 2**31 - 1 if edge else sign * number,
        "single": float("inf") if edge else number / 4,
        "double": sign * 1e300 if edge else number / 8,
        "text": f"naïve ☃ {number} " + "long " * 10 if edge else f"t{number}",
        "raw": bytes([0, 255, number % 256]),
        "day": datetime.date(1582, 10, 4) if edge else datetime.date(2025, 11, 24) + datetime.timedelta(days=number),
        "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC) if edge else at(number),
        "clock": at(number).replace(tzinfo=None, microsecond=number),
        "price": Decimal(sign * number) / 4,
        "long": Decimal("12345678901234567890123456789.123456789") * sign,
        "tags": [] if edge else [f"tag{number}", None],
        "attrs": [("a", number), ("b", None)],
        "place": {"city": f"city {number}", "zip": None if edge else number},
        "items": [{"sku": f"s{number}", "qty": number % 100}, None],
    }


def at(number: int) -> datetime.datetime:
    return datetime.datetime(2025, 11, 24, 16, tzinfo=UTC) + datetime.timedelta(minutes=number)


def main() -> None:
    if SPARK_FILE.exists():
        sys.exit(f"{SPARK_FILE} exists; a golden file is never changed")
    import pyspark_txlog
    from pyspark_txlog import TxLog
    from pyspark_txlog.schemas import to_spark

    spark = pyspark_txlog.session("golden", master="local[1]")
    with tempfile.TemporaryDirectory() as folder, txlog.open(folder) as store:
        store.create_topic("types", TYPES)
        with TxLog(spark, folder) as log, log.transaction() as txn:
            rows = [row(number) for number in range(100, 104)]
            plain = [{**each, "attrs": None if each["attrs"] is None else dict(each["attrs"])} for each in rows]
            frame = spark.createDataFrame(plain, schema=to_spark(store.topic("types").fields)).coalesce(1)
            txn.write(frame, "types", road="executors")
        (written,) = Path(folder).glob("types/staged/*/*/*.parquet")
        SPARK_FILE.write_bytes(written.read_bytes())
    spark.stop()


if __name__ == "__main__":
    main()
