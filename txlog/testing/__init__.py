"""The test kit: the contract of stores, stores that fail, count or wait, and a clock and ids that a test controls.

No other shipped module imports it.
"""
