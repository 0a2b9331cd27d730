"""What Spark reads through `format("txlog")`: batches, streams and metadata tables."""
