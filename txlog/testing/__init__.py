"""The shipped test kit: the contract of stores; stores that fail, count and take their time; a clock and ids that a test owns.

The library itself imports none of it.
"""
