"""Which rows do the small works write? The same ones for every contestant, from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

RECORD_BYTES = 100
RECORDS = pa.schema([pa.field("value", pa.binary(), nullable=False)])
"""Rows of opaque bytes, as Kafka has them."""
_SALES: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("amount", pa.float64()),
    pa.field("note", pa.string()),
]
SALES = pa.schema(_SALES)
"""Rows of columns, as a table has them."""


def records(rows: int, seed: int) -> pa.Table:
    """Return rows of random bytes, which compression cannot make smaller."""
    data = np.random.default_rng(seed).bytes(rows * RECORD_BYTES)
    offsets = np.arange(rows + 1, dtype=np.int32) * RECORD_BYTES
    values = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])
    return pa.table([values], schema=RECORDS)


def sales(rows: int, seed: int) -> pa.Table:
    """Return rows with a number, an amount and a short text."""
    dice = np.random.default_rng(seed)
    ids = np.arange(rows)
    amounts = dice.normal(100, 30, rows).round(2)
    return pa.table({"id": ids, "amount": amounts, "note": [f"note {number}" for number in ids]}, schema=SALES)
