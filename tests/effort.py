"""How much do tests try? HYPOTHESIS_PROFILE decides it.

`quick` is the default, for runs after every change: 20 examples of a property, every tenth case of an exhaustive test.
`thorough` tries all of them. `make test` and all runs with CI set are thorough. `explore` looks for new
counterexamples, by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("thorough" if os.environ.get("CI") else "quick")
QUICK_EXAMPLES = 20
STRIDE = 10 if PROFILE == "quick" else 1
"""From one case of an exhaustive test to the next."""


def load_profile() -> None:
    """Have Hypothesis draw the same examples on every machine, without a time limit on one: a slow runner is not a bug.

    They still depend on the modules that are imported: Hypothesis also draws constants of the project's own modules. So
    in a whole run a property can fail that passes alone.
    """
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "thorough", derandomize=True, deadline=None, print_blob=True, suppress_health_check=slow, max_examples=100
    )
    settings.register_profile("quick", settings.get_profile("thorough"), max_examples=QUICK_EXAMPLES)
    settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=slow)
    settings.load_profile(PROFILE)


def examples(thorough: int) -> settings:
    """Return the settings of a property that needs another number of examples than others."""
    return settings(max_examples=min(thorough, QUICK_EXAMPLES) if PROFILE == "quick" else thorough)


def cases(thorough: Iterable[T]) -> list[T]:
    """Return what an exhaustive test goes through: all cases, or in a quick run every tenth and the last."""
    every = list(thorough)
    return [*every[:-1:STRIDE], *every[-1:]]
