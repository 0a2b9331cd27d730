"""A prototype of records that combine batches of several writers, for the explorer: `lab/scale/many-writers.md`.

Nothing of it is shipped. The form of a combined record is left out: it is modelled as the records of its batches, which
one request creates together (`together`). A reader sees all of them or none, as it would see one object.
"""
