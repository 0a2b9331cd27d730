"""The test kit: the contract of stores, and a store that counts requests. No other shipped module imports it."""
