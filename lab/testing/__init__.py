"""What helps tests and experiments: a store that waits, damage, a contract between processes, and a fork server."""
