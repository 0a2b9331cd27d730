"""The command line, with Kafka's verbs.

Loading a module of this package does not import pyarrow or `txlog.client`, so that help and completion are fast.
"""
