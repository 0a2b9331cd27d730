"""Did what a step is about to show really happen? Looks at the store, and raises TxlogError if it did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txlog.errors import TransactionalIdNotFoundError, TxlogError

if TYPE_CHECKING:
    from txlog.client import Store


def expect(found: bool, expected: str) -> None:
    """Raises TxlogError unless what a step is about to show did happen."""
    if not found:
        raise TxlogError(f"the demo expected {expected}")


def expect_state(log: Store, transactional_id: str, state: str) -> Any:
    """The transaction of that id, which must be in that state."""
    try:
        txn = log.admin().describe_transaction(transactional_id)
    except TransactionalIdNotFoundError as error:
        raise TxlogError(f"the demo expected the transaction of {transactional_id!r} to be {state}: {error}") from error
    expect(txn.state == state, f"the transaction of {transactional_id!r} to be {state}, found {txn.state}")
    return txn


def expect_all_stable(log: Store, topic: str) -> None:
    """No transaction is open in the topic."""
    held = [
        f"{topic}-{info.partition}" for info in offsets_of(log, topic) if info.last_stable_offset < info.log_end_offset
    ]
    expect(not held, f"the LSO to reach the log end; it is held back in {', '.join(held)}")


def offsets_of(log: Store, topic: str) -> list[Any]:
    """Log start, LSO and log end by partition."""
    return [info for _, info in sorted(log.admin().list_offsets(topic).items())]


def ends(log: Store, topic: str) -> list[int]:
    """The log end of each partition: unchanged if nothing was written."""
    return [info.log_end_offset for info in offsets_of(log, topic)]
