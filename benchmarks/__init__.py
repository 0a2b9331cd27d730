"""Benchmarks: one spec each, run by hand; results contain machine, versions and seed. Nothing here is a timed test."""
