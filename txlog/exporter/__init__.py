"""What do the metrics of a whole store say, and how many requests does a look at the store cost?

`look` reads the store and remembers what cannot change. `gauges` computes the metrics from what was read. `exporter`
decides when to look again, and goes on when the store does not answer.
"""
