"""Benchmarks: a spec each, run by hand; results carry machine, versions and seed. Nothing here is a timed test."""
