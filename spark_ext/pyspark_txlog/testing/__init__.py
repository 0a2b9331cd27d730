"""Test kit that needs Spark."""
