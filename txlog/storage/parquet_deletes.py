"""How does a file look that names rows which a published table leaves out: Iceberg's position deletes?"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.core.partitioning import Offsets
from txlog.storage.arrow_schema import FIELD_ID_KEY

FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545
"""The ids that Iceberg reserves for these columns."""
_ROW_GROUP_ROWS = 131_072
_PATH: pa.Field[Any] = pa.field("file_path", pa.string(), False, {FIELD_ID_KEY: str(FILE_PATH_ID).encode()})
_POSITION: pa.Field[Any] = pa.field("pos", pa.int64(), False, {FIELD_ID_KEY: str(POSITION_ID).encode()})
_SCHEMA = pa.schema([_PATH, _POSITION])


def position_deletes(uri: str, rows: Offsets) -> bytes:
    """Return a Parquet file of `(file_path, pos)` with some rows of the file `uri`, in their order."""
    positions = pa.array(rows, pa.int64())
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, compression="zstd", store_schema=False, write_page_checksum=True) as writer:
        for first in range(0, len(positions), _ROW_GROUP_ROWS):
            part = positions.slice(first, _ROW_GROUP_ROWS)
            # The path takes more memory than the position until it is encoded.
            writer.write_batch(pa.record_batch([pa.repeat(uri, len(part)), part], schema=_SCHEMA))
    return sink.getvalue().to_pybytes()
