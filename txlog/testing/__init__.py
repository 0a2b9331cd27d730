"""The shipped test kit: store contract, failing and counting stores, strategies. Nothing shipped imports it."""
