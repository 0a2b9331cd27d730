"""Maintenance jobs of a whole store. Any process may run them, several at once, and each can be killed at any point."""
