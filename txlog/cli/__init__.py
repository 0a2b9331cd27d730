"""The command line, in Kafka's verbs.

Nothing here imports pyarrow or `txlog.client` when it is loaded: help and completion must not wait for them.
"""
