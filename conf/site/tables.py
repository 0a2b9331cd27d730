"""Every metadata table of Spark, with its columns, from pyspark_txlog/metadata_schemas.py."""

from __future__ import annotations

from conf.site.markdown import code, escape, table
from pyspark_txlog.metadata_schemas import TABLES

_HEAD = """# Metadata tables

The state of a store as tables of Spark. The option `metadata` names the table:

```text
spark.read.format("txlog").option("metadata", "transactions").load("my-log").show()
```

New columns may be added at the end. An existing column never changes, moves or disappears. A time is a timestamp, or null.
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    lines += table(["table", "rows"], [[f"[`{name}`](#{name})", escape(one.doc)] for name, one in TABLES.items()])
    for name, one in TABLES.items():
        lines += [f"## `{name}`", "", escape(one.doc), ""]
        # The type below the name: a third column is wider than a phone.
        rows = [
            [f"{code(column)}<br>{escape(kind).replace(',', ', ')}", escape(doc)] for column, kind, doc in one.columns
        ]
        lines += table(["column", "meaning"], rows)
    return "\n".join(lines)
