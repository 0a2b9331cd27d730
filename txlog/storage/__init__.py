"""All access to stored bytes: the port, its adapters, the driver of generators, and Parquet files."""
