"""The only door to bytes: the port, its adapters, the driver of generators, Parquet in and out."""
