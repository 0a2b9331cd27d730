"""Reads and writes with Spark's own Parquet reader and writer."""
