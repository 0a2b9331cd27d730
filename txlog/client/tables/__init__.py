"""How does a program read topics as tables, without Spark? `Store.table` and `Store.snapshot` begin here."""
