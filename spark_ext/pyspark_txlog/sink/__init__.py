"""What Spark writes through `format("txlog")`: batches and micro-batches, each one transaction."""
