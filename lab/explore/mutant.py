"""What is a mutant? One broken rule of the shipped code: a set of patches, places and the code that replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from txlog.core import chain, cleaning, state, transactions
from txlog.core.effects import Now
from txlog.core.records import Clean

HERE = "txlog.protocol."
CORE = "txlog.core."
CLEANER = "lab.explore.cleaner."
ORIGINAL_APPLY, ORIGINAL_LISTING, ORIGINAL_MERGED = state._Fold.apply, chain.parse_listing, cleaning.merged_index
"""The shipped functions, for replacements that call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken rule."""

    name: str
    rules: str
    """The rules that it breaks, by their numbers in PROTOCOL.md."""
    patches: dict[str, Any]
    scenario: str = ""
    """The scenario of the explorer that must fail; or else `test` says which test."""
    test: str = ""
    """The test that must fail, as pytest names it, below `tests/`."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the block with the shipped code in which this rule is broken."""
        with patched(self.patches):
            yield


@contextmanager
def patched(patches: Mapping[str, Any]) -> Iterator[None]:
    """Run the block with other code at these places."""
    with ExitStack() as stack:
        for target, becomes in patches.items():
            # A name that a module takes from the builtins can be replaced, too.
            stack.enter_context(patch(target, becomes, create=target.endswith((".min", ".max"))))
        yield


# -- replacements that several subjects share -------------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> Any:
    return None


def no_guard(*_: Any, **__: Any) -> Any:
    def guard(_: Any) -> Any:
        return None
        yield

    return guard


def program_of(value: Any) -> Callable[..., Any]:
    def program(*_: Any, **__: Any) -> Any:
        return value
        yield

    return program


def may_expire_with_versions(txn: Any, now_ms: int, constants: Any) -> bool:
    return bool(txn.state in transactions.IDLE and txn.updated_at <= now_ms - constants.transactional_id_expiration_ms)


def clean_whatever_is_current(before: Any, listing: Any, run: Any, inputs: Any, now_ms: int) -> Any:
    """Lets the run replace everything that it overlaps."""
    others = [
        each
        for each in (before.runs if before is not None else ())
        if each.end_offset <= run.base_offset or run.end_offset <= each.base_offset
    ]
    runs = tuple(sorted((*others, run), key=lambda each: each.base_offset))
    return Clean(number=0 if before is None else before.number + 1, runs=runs, created_at=now_ms)


def own_clock() -> Any:
    return (yield Now())
