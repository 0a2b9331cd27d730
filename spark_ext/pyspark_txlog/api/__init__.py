"""What a Spark program calls: the log, its tables and its transactions."""
