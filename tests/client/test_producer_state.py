"""Every call in every state."""

from __future__ import annotations

import pytest

from txlog.client.producer.producer_state import ALLOWED, ProducerState, again
from txlog.errors import (
    AbortableError,
    IllegalStateError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)

STATES = (
    "UNINITIALIZED",
    "READY",
    "IN_TRANSACTION",
    "COMMITTING",
    "ABORTING",
    "ABORTABLE_ERROR",
    "FATAL_ERROR",
    "CLOSED",
)
# Rows are calls, columns are states: + allowed, i IllegalStateError, e the error that the state carries.
TABLE = {
    "init_transactions": "+iiiieei",
    "begin_transaction": "i+iiieei",
    "send": "ii+iieei",
    "flush": "i+++ieei",
    "send_offsets_to_transaction": "ii+iieei",
    "commit_transaction": "ii++ieei",
    "abort_transaction": "ii++++ei",
}


@pytest.mark.parametrize("call", TABLE)
@pytest.mark.parametrize("state", STATES)
def test_call_in_state(call, state):
    machine = ProducerState("producer 'p'")
    machine.state = state
    if state.endswith("ERROR"):
        machine.error = ProducerFencedError("a newer instance")
    expected = TABLE[call][STATES.index(state)]
    if expected == "+":
        machine.check(call)
    elif expected == "e":
        with pytest.raises(ProducerFencedError, match="a newer instance"):
            machine.check(call)
    else:
        with pytest.raises(IllegalStateError, match=f"producer 'p': {call}\\(\\) in state {state}: \\w+"):
            machine.check(call)
    assert machine.state == state


def test_table_names_every_call():
    assert set(TABLE) == set(ALLOWED)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OutOfOrderSequenceError("x"), "ABORTABLE_ERROR"),
        (InvalidProducerEpochError("x"), "ABORTABLE_ERROR"),
        (ProducerFencedError("x"), "FATAL_ERROR"),
        (ValueError("x"), "ABORTABLE_ERROR"),
        (KeyboardInterrupt(), "FATAL_ERROR"),
    ],
)
def test_state_after_an_error(error, state):
    machine = ProducerState("p")
    machine.move("IN_TRANSACTION")
    machine.fail(error)
    assert (machine.state, machine.error) == (state, error)


def test_first_error_is_kept_but_a_fatal_one_replaces_it():
    machine = ProducerState("p")
    machine.move("IN_TRANSACTION")
    machine.fail(OutOfOrderSequenceError("first"))
    machine.fail(OutOfOrderSequenceError("second"))
    assert str(machine.error) == "first"
    machine.fail(ProducerFencedError("fenced"))
    assert machine.state == "FATAL_ERROR"
    machine.fail(OutOfOrderSequenceError("late"))
    assert str(machine.error) == "fenced"


def test_an_error_raised_again_keeps_class_text_and_cause():
    error = ProducerFencedError("by epoch 3")
    copy = again(error)
    assert type(copy) is ProducerFencedError
    assert str(copy) == "by epoch 3"
    assert copy.__cause__ is error
    assert isinstance(again(ValueError("odd")), AbortableError)


def test_a_fatal_error_stays():
    machine = ProducerState("p")
    machine.move("COMMITTING")
    machine.fail(KeyboardInterrupt())
    machine.move("READY")
    assert machine.state == "FATAL_ERROR"
    with pytest.raises(KeyboardInterrupt):
        machine.check("begin_transaction")
