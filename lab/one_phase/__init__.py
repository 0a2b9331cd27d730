"""A prototype of transactions in one phase. The design is `lab/scale/many-writers.md`.

The explorer runs it, and nothing of it is shipped. `PATCHES` puts what init, time-outs and sweeps must do differently
in the place of the shipped functions. An id's record has no field for it yet. So `rules` keeps what an instance is
attached to among the topics of a version, which every transition carries unchanged.
"""
