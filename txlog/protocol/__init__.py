"""The algorithms, without I/O: generators that yield `txlog.core.effects` and receive their results.

They depend only on what they are sent, time and ids included: two suspended generators with equal frames are the same
state. The driver in `txlog.storage` runs them against a store, the simulator against a model of one.
"""
