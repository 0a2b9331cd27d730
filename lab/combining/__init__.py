"""A prototype of how writers combine their batches. The design is `lab/scale/many-writers.md`.

The explorer runs it, and nothing of it is shipped but the form: an object with several commit records.
"""
