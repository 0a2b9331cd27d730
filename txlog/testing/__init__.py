"""The test kit: stores that count requests or fail, and a clock and ids that a test controls.

No other shipped module imports it.
"""
