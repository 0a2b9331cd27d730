"""What helps tests and experiments: a clock and ids that they control, stores that fail or wait, and a fork server."""
