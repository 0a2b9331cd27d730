"""A prototype of records that combine batches of several writers. The design is `lab/scale/many-writers.md`.

The explorer runs it, and nothing of it is shipped. The form of a combined record is left out. It is modelled as the
records of its batches, which one request creates together (`together`). A reader sees all of them or none, as it would
see one object.
"""
