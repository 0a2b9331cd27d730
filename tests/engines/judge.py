"""Read versions of published tables as an engine does: `python -m tests.engines.judge`, in the engines' own Python.

One process reads many tables, because engines take seconds to load. It reads a line of JSON for each question from
stdin: `{"engine": ..., "folder": ..., "version": ...}`. It answers each by a line: `{"rows": [...]}` or
`{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from lab.engines import READERS, _duckdb, plain


def main() -> None:
    warnings.simplefilter("ignore")
    # Libraries print, too.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # DuckDB keeps bytes of files by their path. Its extension for Iceberg says that data files never change, so DuckDB
    # does not compare their times. Lives with the same names then end in "ZSTD Decompression failure" or "Footer length
    # error".
    _duckdb().execute("SET enable_external_file_cache = false")
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"rows": [plain(row) for row in READERS[asked["engine"]](asked["folder"], asked["version"])]}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
