"""How do a transaction's `with` block and each of its calls end, also after an interrupt?"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self

from txlog.client.producer.producer_state import Call, ProducerState
from txlog.client.producer.transaction_manager import TransactionManager
from txlog.client.session.call_guard import InsideCallError
from txlog.core.transactions import TxnVersion
from txlog.errors import AbortableError, InvalidRequestError
from txlog.protocol.transactions import EndResult


class Transactional(Protocol):
    """The calls of a producer that a block makes."""

    def begin_transaction(self, version: int | TxnVersion | None = None) -> None: ...
    def commit_transaction(self) -> EndResult: ...
    def abort_transaction(self) -> None: ...


class TransactionScope:
    """The value of `with producer.transaction() as txn`; `result` is set after the block.

    A generator would not do: Python ends an interrupted one at any later time, and would abort another transaction
    then.
    """

    def __init__(self, producer: Transactional, state: ProducerState, version: int | TxnVersion | None) -> None:
        self.result: EndResult | None = None
        """How the transaction ended. None if it was aborted, or if the block ended it itself."""
        self._producer = producer
        self._state = state
        self._version = version

    def __enter__(self) -> Self:
        self._producer.begin_transaction(self._version)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._abort_beside(error)
            return
        if self._state.state == "READY":
            return  # the block ended the transaction itself
        try:
            self.result = self._producer.commit_transaction()
        except (AbortableError, InvalidRequestError) as failure:
            self._abort_beside(failure)
            raise

    def _abort_beside(self, error: BaseException) -> None:
        """Abort because of `error`, which remains the error that the caller sees."""
        if self._state.state not in ("IN_TRANSACTION", "ABORTABLE_ERROR"):
            return
        try:
            self._producer.abort_transaction()
        except Exception as failure:
            error.add_note(f"aborting the transaction failed too: {type(failure).__name__}: {failure}")


class TransactionCall:
    """One transaction call.

    If an interrupt ends it, `TransactionManager.call` still names it: the next call mends that.
    """

    def __init__(self, turn: AbstractContextManager[None], transactions: TransactionManager, call: Call) -> None:
        self._turn = turn
        self._transactions = transactions
        self._call = call

    def __enter__(self) -> None:
        self._turn.__enter__()
        try:
            self._transactions.begin_call(self._call)
        except Exception:
            self._turn.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or (issubclass(kind, Exception) and not issubclass(kind, InsideCallError)):
            self._transactions.call = None
        self._turn.__exit__(None, None, None)
