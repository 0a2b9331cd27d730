"""How do Java's processes begin quickly, where each lives for seconds only?"""

from __future__ import annotations

import os

OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark adds to the command of a driver, without a word on the console."""


def begin_quickly() -> None:
    """Has every driver that this process or its children start do with the first compiler alone and a collector of one thread:
    two fifths of the CPU are spared. Options that the caller's shell names stay."""
    os.environ.setdefault(OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
