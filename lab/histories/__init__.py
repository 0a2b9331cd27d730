"""Histories: the calls that clients of a log made and the answers they got, and a checker that finds false answers."""
