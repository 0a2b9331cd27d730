"""The test kit: the contract of stores; stores that fail, count and take their time; a clock and ids that a test owns.

No other shipped module imports it.
"""
