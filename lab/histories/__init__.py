"""Histories: what clients of a log asked and were told, and a checker that finds the lies among the answers."""
