"""How does a program read topics as tables, without Spark? `Store.table` and `Store.snapshot` begin here.

The doors are `table` and `snapshot`, and `query_table` for DuckDB. Engines, which plan reads themselves, take
`packing`, `predicate` and `where`, and compaction takes `latest`. The others are known to this folder alone.
"""
