"""How does a test let a task fail at the worst moment: after its transaction, before the scheduler knows of it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txlog import Store


@dataclass
class Tries:
    count: int = 0


@contextmanager
def first_try_dies() -> Iterator[Tries]:
    """Inside the block, the first `with txlog.open(...)` fails at its end."""
    close, tries = Store.__exit__, Tries()

    def die(store: Store, *failure: Any) -> None:
        close(store, *failure)
        tries.count += 1
        if tries.count == 1:
            raise ConnectionError("the worker lost its scheduler after the commit")

    Store.__exit__ = die  # type: ignore[method-assign]
    try:
        yield tries
    finally:
        Store.__exit__ = close  # type: ignore[method-assign]
