"""A prototype of transactions in one phase, for the explorer: `lab/scale/many-writers.md` is the design.

Nothing of it is shipped. `PATCHES` puts what init, time-outs and sweeps must do differently in the place of the shipped
functions. An id's record has no field for it yet, so `rules` keeps what an instance is attached to among the topics of
a version, which every transition carries unchanged.
"""
