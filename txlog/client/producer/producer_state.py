"""Which call is allowed in which state? The states of Kafka's TransactionManager, as tables.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING | ABORTING -> READY
    ABORTABLE_ERROR: only an abort leads out of it. FATAL_ERROR: nothing does.

A call in the wrong state raises IllegalStateError and changes nothing. After an error, the calls that it forbids raise
that error again, so that the class of the error still shows what to do next.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from txlog import metrics
from txlog.client.transactions.coordinator import Coordinator
from txlog.errors import AbortableError, FencedError, IllegalStateError, TxlogError, split_hint

State: TypeAlias = Literal[
    "UNINITIALIZED", "READY", "IN_TRANSACTION", "COMMITTING", "ABORTING", "ABORTABLE_ERROR", "FATAL_ERROR", "CLOSED"
]
Call: TypeAlias = Literal[
    "init_transactions",
    "begin_transaction",
    "send",
    "flush",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
]

ALLOWED: dict[Call, frozenset[State]] = {
    "init_transactions": frozenset({"UNINITIALIZED"}),
    "begin_transaction": frozenset({"READY"}),
    "send": frozenset({"IN_TRANSACTION"}),
    "flush": frozenset({"READY", "IN_TRANSACTION", "COMMITTING"}),
    "send_offsets_to_transaction": frozenset({"IN_TRANSACTION"}),
    # A commit or abort that ran out of time may be repeated: it joins what the first one decided.
    "commit_transaction": frozenset({"IN_TRANSACTION", "COMMITTING"}),
    # Unlike Kafka's client: an abort after a commit of unknown outcome finds out what won, and returns it.
    "abort_transaction": frozenset({"IN_TRANSACTION", "COMMITTING", "ABORTABLE_ERROR", "ABORTING"}),
}
"""For a producer with a transactional.id: the states in which a call is allowed."""

_ADVICE: dict[State, str] = {
    "UNINITIALIZED": "call init_transactions() first",
    "READY": "no transaction is open. hint: call begin_transaction() first",
    "IN_TRANSACTION": "a transaction is open. hint: commit or abort it first",
    "COMMITTING": "the outcome of a commit is still unknown. "
    "hint: call commit_transaction() again, or abort_transaction(), which tells what won",
    "ABORTING": "an abort has not finished. hint: call abort_transaction() again",
    "CLOSED": "the producer is closed; make a new one",
}


class ProducerState:
    """The state of a transactional producer. Not thread-safe: the caller holds a lock."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.state: State = "UNINITIALIZED"
        self.error: BaseException | None = None
        """Why the state is an error."""
        self.coordinator: Coordinator | None = None

    def check(self, call: Call) -> None:
        """Raise the error of the state, or IllegalStateError, unless `call` is allowed now."""
        if self.state in ALLOWED[call]:
            return
        if self.error is not None and self.state in ("ABORTABLE_ERROR", "FATAL_ERROR"):
            raise again(self.error)
        raise IllegalStateError(f"{self.who}: {call}() in state {self.state}: {self._advice(call)}")

    def move(self, to: State) -> None:
        """Move to the next state, and clear the error; a fatal one stays."""
        if self.state != "FATAL_ERROR":
            self.state, self.error = to, None

    def fail(self, error: BaseException) -> None:
        """Move to the state after `error`: fatal if another instance owns the identity, or the cause is unknown."""
        if self.state in ("FATAL_ERROR", "CLOSED"):
            return
        if self.coordinator is not None:
            self.coordinator.note_lost(error)
        fatal = isinstance(error, FencedError) or not isinstance(error, Exception)
        if self.state == "ABORTABLE_ERROR" and not fatal:
            return  # the first error is the cause
        metrics.count_fenced(error)
        self.state, self.error = ("FATAL_ERROR" if fatal else "ABORTABLE_ERROR"), error

    def fail_fatally(self, error: BaseException) -> None:
        """Move to the state after an error that an abort cannot repair."""
        if self.state != "CLOSED":
            if self.state != "FATAL_ERROR":
                metrics.count_fenced(error)
            self.state, self.error = "FATAL_ERROR", error

    def _advice(self, call: Call) -> str:
        if call == "init_transactions":
            return "it was initialised already"
        return _ADVICE.get(self.state, "")


def again(error: BaseException) -> BaseException:
    """Return `error` as a new exception with the same class and text, to be raised again."""
    if not isinstance(error, Exception):
        return error
    text = f"{type(error).__name__}: {error}"
    made = type(error)(*error.args) if isinstance(error, TxlogError) else AbortableError(text)
    made.__cause__ = error
    return made


def after_close(error: FencedError) -> FencedError:
    """Return `error` with a hint for a caller that has just closed its producer."""
    problem, hint = split_hint(str(error))
    advice = re.sub(r"^close this producer(; | and )?", "", hint or "")
    return type(error)(f"{problem}. hint: {advice}" if advice else problem)
