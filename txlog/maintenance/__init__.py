"""Offline jobs on a whole store. Any process may run them, several at once, and they may die anywhere."""
