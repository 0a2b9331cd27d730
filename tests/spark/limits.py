"""Which Spark runs the tests, and has it limits for streams? Spark has them from 4.2 on."""

from __future__ import annotations

import pyspark
import pytest

from pyspark_txlog.source.read_limits import HAS_LIMITS

__all__ = ["HAS_LIMITS", "IS_4_0", "at_most", "needs_limits"]

IS_4_0 = pyspark.__version__.startswith("4.0.")

needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="Spark has limits for Python's streams from 4.2 on")


def at_most(offsets: int) -> dict[str, int]:
    """Return the option for batches of so many offsets, where Spark has limits."""
    return {"maxOffsetsPerTrigger": offsets} if HAS_LIMITS else {}
