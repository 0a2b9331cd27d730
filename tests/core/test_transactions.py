"""The transaction state machine over every state, as tables after Kafka's transaction.version 2 (PROTOCOL.md, W24 to
W32).

Every pair of states is also checked against `lab.transaction_states`.
"""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from lab.transaction_states import VALID_PREVIOUS_STATES
from tests.core.partition_log import rows_file
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.names import TopicPartition
from txlog.core.records import NO_PRODUCER_EPOCH, StagedPart, StoreConstants, TransactionMetadata, TransactionState
from txlog.core.transactions import (
    IDLE,
    PREPARED,
    AlreadyCommitted,
    Done,
    Refused,
    RollForward,
    Skipped,
    Transit,
    TxnVersion,
    as_its_owner_knows,
    check_version,
    completed,
    is_this_ongoing,
    is_timed_out,
    judge_abort_by_others,
    judge_add_partitions,
    judge_complete,
    judge_end,
    judge_init,
    may_be_forgotten,
    may_expire,
    not_registered_error,
)
from txlog.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    ProducerFencedError,
    TxnVersionScopeError,
)

P0, P1, P2 = (TopicPartition("orders", n) for n in range(3))
STATES: tuple[TransactionState, ...] = get_args(TransactionState)
NOW = 10_000


def record(state: TransactionState, epoch: int = 5, **changes: Any) -> TransactionMetadata:
    """Return an id's record as a transaction of epoch 4 (PREPARE_*, COMPLETE_*) or 5 left it."""
    ended = state not in ("EMPTY", "ONGOING")
    base = TransactionMetadata(
        transactional_id="x",
        producer_id=7,
        producer_epoch=epoch,
        last_epoch=epoch - 1 if ended else NO_PRODUCER_EPOCH,
        last_outcome=("commit" if state.endswith("COMMIT") else "abort") if ended else None,
        state=state,
        timeout_ms=60_000,
        partitions=(P0, P1) if state in ("ONGOING", *PREPARED) else (),
        started_at=1_000 if state != "EMPTY" else -1,
        updated_at=2_000,
        write_id="before",
    )
    return msgspec.structs.replace(base, **changes)


OWNER = record("EMPTY")  # producer 7, epoch 5
RETRY = record("EMPTY", epoch=4)  # the producer that ended epoch 4 and lost the reply
STAGED = (StagedPart(topic="orders", partition=2, files=(rows_file(P2, 7, 5, 3),)),)


def init(current: TransactionMetadata | None) -> Any:
    return judge_init(current, transactional_id="x", new_producer_id=99, timeout_ms=30_000, now_ms=NOW, write_id="w")


def add(current: TransactionMetadata | None, txn: TransactionMetadata = OWNER, *tps: TopicPartition, **kw: Any) -> Any:
    return judge_add_partitions(current, txn, tps or (P2,), now_ms=NOW, write_id="w", **kw)


def end(current: TransactionMetadata | None, txn: TransactionMetadata, outcome: Any, **kw: Any) -> Any:
    return judge_end(current, txn, outcome, now_ms=NOW, write_id="w", **kw)


def finish(current: TransactionMetadata | None, prepare: TransactionMetadata) -> Any:
    """Judge the COMPLETE_* of a process that has seen every marker of `prepare`."""
    return judge_complete(current, after_markers(prepare), now_ms=NOW, write_id="w")


def after_markers(prepare: TransactionMetadata) -> TransactionMetadata:
    """Return what the owner of a PREPARE_* holds when every marker is in."""
    return completed(prepare, now_ms=prepare.updated_at, write_id=prepare.write_id)


def word(verdict: Any) -> str:
    """Return a verdict in a word or two, for tables."""
    match verdict:
        case Transit(to):
            return f"{to.state} {to.producer_epoch}"
        case Refused(error):
            return type(error).__name__
        case None:
            return "nothing"
        case _:
            return type(verdict).__name__


# -- init -------------------------------------------------------------------------------------------------------------


def test_first_init() -> None:
    to = init(None).to
    assert (to.producer_id, to.producer_epoch, to.state, to.last_epoch) == (99, 0, "EMPTY", -1)
    assert (to.partitions, to.started_at, to.timeout_ms, to.txn_version, to.write_id) == ((), -1, 30_000, -1, "w")


@pytest.mark.parametrize("state", sorted(IDLE))
def test_a_new_instance_bumps_the_epoch(state: TransactionState) -> None:
    to = init(record(state)).to
    assert (to.producer_id, to.producer_epoch, to.state) == (7, 6, "EMPTY")
    assert to.last_epoch == -1  # makes the old instance's retry fail
    assert to.last_outcome == record(state).last_outcome  # the outcome of the last transaction, which people look up
    assert (to.partitions, to.started_at, to.timeout_ms, to.updated_at) == ((), -1, 30_000, NOW)


def test_an_open_transaction_is_aborted_with_one_bump_and_init_adds_its_own() -> None:
    to = init(record("ONGOING")).to
    assert (to.state, to.producer_epoch, to.last_epoch, to.last_outcome) == ("PREPARE_ABORT", 6, 5, "abort")
    assert to.partitions == (P0, P1)
    done = finish(to, to)
    assert (done.to.state, done.to.producer_epoch, done.to.partitions) == ("COMPLETE_ABORT", 6, ())
    assert word(init(done.to)) == "EMPTY 7"


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_a_prepared_transaction_is_only_rolled_forward(state: TransactionState) -> None:
    current = record(state)
    assert init(current) == RollForward(current)
    assert add(current) == RollForward(current)
    assert judge_abort_by_others(current, now_ms=10**12, write_id="w", only_if_timed_out=True) == RollForward(current)
    assert judge_abort_by_others(current, now_ms=0, write_id="w", only_if_timed_out=False) == RollForward(current)
    for txn, outcome in product((OWNER, RETRY, record("EMPTY", epoch=1)), ("commit", "abort")):
        assert end(current, txn, outcome, staged=STAGED if outcome == "commit" else ()) == RollForward(current)


def test_an_old_instance_cannot_retry_past_an_init() -> None:
    current = init(record("COMPLETE_COMMIT")).to
    for outcome in ("commit", "abort"):
        assert word(end(current, RETRY, outcome)) == "ProducerFencedError"
        assert word(end(current, OWNER, outcome)) == "ProducerFencedError"
    assert word(add(current)) == "ProducerFencedError"


# -- add partitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(IDLE))
def test_the_first_partitions_open_the_transaction(state: TransactionState) -> None:
    to = add(record(state), OWNER, P1, P0, P1).to
    assert (to.state, to.producer_epoch, to.partitions) == ("ONGOING", 5, (P0, P1))
    assert (to.started_at, to.updated_at, to.last_epoch) == (NOW, NOW, -1)
    assert to.last_outcome == record(state).last_outcome


def test_further_partitions() -> None:
    current = record("ONGOING")
    to = add(current, OWNER, P2, P0).to
    assert (to.partitions, to.started_at, to.updated_at) == ((P0, P1, P2), 1_000, NOW)
    assert add(current, OWNER, P1) == Done(current)


@pytest.mark.parametrize("state", ["EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT"])
@pytest.mark.parametrize("epoch", [3, 6])
def test_a_wrong_epoch_is_fenced(state: TransactionState, epoch: int) -> None:
    assert word(add(record(state), record("EMPTY", epoch=epoch))) == "ProducerFencedError"


@pytest.mark.parametrize("current", [None, record("EMPTY", producer_id=8), record("PREPARE_COMMIT", producer_id=8)])
def test_an_id_that_is_gone_or_another_s_is_fatal(current: TransactionMetadata | None) -> None:
    verdicts = [add(current), end(current, OWNER, "commit", staged=STAGED), end(current, OWNER, "abort")]
    for verdict in verdicts:
        assert isinstance(verdict, Refused)
        assert isinstance(verdict.error, InvalidProducerIdMappingError)
        assert ("it is gone" if current is None else "producer 8") in str(verdict.error)


def test_add_partitions_after_the_time_out_is_abortable() -> None:
    # KIP-588: a newer instance is fatal, the producer's own timeout is not
    timed_out = record("COMPLETE_ABORT", epoch=6)
    verdict = add(timed_out)
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, InvalidProducerEpochError)
    assert "60000 ms" in str(verdict.error)


# -- end --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_end_of_an_open_transaction(outcome: Any) -> None:
    to = end(record("ONGOING"), OWNER, outcome).to
    assert to.state == f"PREPARE_{outcome.upper()}"
    assert (to.producer_epoch, to.last_epoch, to.last_outcome) == (6, 5, outcome)
    assert (to.partitions, to.started_at, to.updated_at) == ((P0, P1), 1_000, NOW)


# `current` is the stored epoch's owner (5), `retry` the owner of the epoch before (4), `stale` is older, `future`
# newer.
@pytest.mark.parametrize(
    ("state", "who", "abort", "commit"),
    [
        ("EMPTY", "current", "PREPARE_ABORT 6", "InvalidTxnStateError"),
        ("EMPTY", "retry", "ProducerFencedError", "ProducerFencedError"),
        ("ONGOING", "current", "PREPARE_ABORT 6", "PREPARE_COMMIT 6"),
        ("ONGOING", "retry", "ProducerFencedError", "ProducerFencedError"),
        ("COMPLETE_ABORT", "current", "PREPARE_ABORT 6", "InvalidTxnStateError"),
        ("COMPLETE_ABORT", "retry", "Done", "InvalidProducerEpochError"),
        ("COMPLETE_COMMIT", "current", "PREPARE_ABORT 6", "InvalidTxnStateError"),
        ("COMPLETE_COMMIT", "retry", "AlreadyCommitted", "Done"),
        *(
            (state, who, *["ProducerFencedError"] * 2)
            for state in (*sorted(IDLE), "ONGOING")
            for who in ("stale", "future")
        ),
    ],
)
def test_end_matrix(state: TransactionState, who: str, abort: str, commit: str) -> None:
    txn = {"current": OWNER, "retry": RETRY, "stale": record("EMPTY", epoch=2), "future": record("EMPTY", epoch=6)}[who]
    assert word(end(record(state), txn, "abort")) == abort
    assert word(end(record(state), txn, "commit")) == commit


@pytest.mark.parametrize(
    ("state", "who", "commit"),
    [
        ("EMPTY", "current", "PREPARE_COMMIT 6"),
        ("ONGOING", "current", "PREPARE_COMMIT 6"),
        ("COMPLETE_ABORT", "current", "PREPARE_COMMIT 6"),
        ("COMPLETE_COMMIT", "current", "PREPARE_COMMIT 6"),
        ("EMPTY", "retry", "ProducerFencedError"),
        ("ONGOING", "retry", "ProducerFencedError"),
        ("COMPLETE_COMMIT", "retry", "Done"),
        ("COMPLETE_ABORT", "retry", "InvalidProducerEpochError"),
    ],
)
def test_staged_commits_and_their_retries(state: TransactionState, who: str, commit: str) -> None:
    txn = OWNER if who == "current" else RETRY
    verdict = end(record(state), txn, "commit", staged=STAGED)
    assert word(verdict) == commit
    if isinstance(verdict, Transit):
        assert verdict.to.staged == STAGED
        assert verdict.to.partitions == ((P0, P1) if state == "ONGOING" else ())


def test_a_retry_is_told_the_stored_identity() -> None:
    current = record("COMPLETE_COMMIT")
    assert end(current, RETRY, "commit") == Done(current)
    assert end(current, RETRY, "abort") == AlreadyCommitted(current)
    assert end(record("COMPLETE_ABORT"), RETRY, "abort") == Done(record("COMPLETE_ABORT"))


def test_an_empty_abort_is_a_decision_too() -> None:
    # after an attempted PREPARE_COMMIT, only a compare-and-set abort proves that it will never land (W30)
    to = end(record("EMPTY"), OWNER, "abort", staged=STAGED).to
    assert (to.state, to.partitions, to.staged, to.started_at) == ("PREPARE_ABORT", (), (), NOW)


def test_a_commit_after_the_time_out_says_why() -> None:
    verdict = end(record("COMPLETE_ABORT"), RETRY, "commit")
    assert isinstance(verdict.error, InvalidProducerEpochError)
    for part in ("'x'", "producer 7", "epoch 4", "60000 ms", "nothing of it is visible"):
        assert part in str(verdict.error)


# -- complete ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_complete_is_a_compare_and_set_on_that_very_prepare(state: TransactionState) -> None:
    prepare = record(state, staged=STAGED if state == "PREPARE_COMMIT" else ())
    done = finish(prepare, prepare)
    assert done.to.state == state.replace("PREPARE", "COMPLETE")
    assert (done.to.producer_epoch, done.to.last_epoch) == (5, 4)
    assert (done.to.partitions, done.to.staged, done.to.staged_object) == ((), (), None)
    assert (done.to.started_at, done.to.updated_at, done.to.write_id) == (1_000, NOW, "w")
    others = [record(other) for other in STATES if other != state]
    for current in (None, *others, record(state, epoch=6), record(state, producer_id=8)):
        assert finish(current, prepare) is None


# -- the owner's next record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_an_owner_that_saw_every_marker_goes_on_as_after_complete(state: TransactionState) -> None:
    prepare = record(state, staged=STAGED if state == "PREPARE_COMMIT" else ())
    owner, complete = after_markers(prepare), finish(prepare, prepare).to
    for after_prepare, after_complete in (
        (add(prepare, owner), add(complete, owner)),
        (end(prepare, owner, "commit", staged=STAGED), end(complete, owner, "commit", staged=STAGED)),
        (end(prepare, owner, "abort"), end(complete, owner, "abort")),
    ):
        assert isinstance(after_prepare, Transit)
        assert after_prepare == after_complete
    assert word(end(prepare, owner, "commit")) == "InvalidTxnStateError"
    assert add(prepare, owner).to.started_at == NOW  # merges take it for a time at which every marker was in (C3)


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_nobody_else_passes_over_a_prepare(state: TransactionState) -> None:
    prepare = record(state)
    other_outcome = record("PREPARE_ABORT" if state == "PREPARE_COMMIT" else "PREPARE_COMMIT")
    others = [record("EMPTY"), record("ONGOING"), RETRY, record("COMPLETE_COMMIT", epoch=4), prepare]
    others += [
        after_markers(other_outcome),
        after_markers(record(state, epoch=4)),
        after_markers(record(state, epoch=6)),
    ]
    for txn in others:
        assert add(prepare, txn) == RollForward(prepare)
        assert end(prepare, txn, "commit", staged=STAGED) == RollForward(prepare)
        assert end(prepare, txn, "abort") == RollForward(prepare)
        assert as_its_owner_knows(prepare, txn, NOW) is prepare
    assert init(prepare) == RollForward(prepare)


def test_a_commit_that_hung_may_not_be_forgotten_right_after_its_markers() -> None:
    # Its end is not known, so it may have been now (W32).
    hung = record("PREPARE_COMMIT", started_at=0, updated_at=1)
    grace_ms, later = 1_000, 10**9
    known = as_its_owner_knows(hung, after_markers(hung), later)
    assert (known.state, known.updated_at) == ("COMPLETE_COMMIT", later)
    assert not may_be_forgotten(known, later, grace_ms)
    brief = record("PREPARE_COMMIT", started_at=later - 1)
    assert may_be_forgotten(as_its_owner_knows(brief, after_markers(brief), later), later, grace_ms)


# -- timeouts and expiry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("elapsed", "timed_out"), [(59_999, False), (60_000, False), (60_001, True)])
def test_time_out_is_strict(elapsed: int, timed_out: bool) -> None:
    current = record("ONGOING")
    assert is_timed_out(current, 1_000 + elapsed) is timed_out
    verdict = judge_abort_by_others(current, now_ms=1_000 + elapsed, write_id="w", only_if_timed_out=True)
    assert word(verdict) == ("PREPARE_ABORT 6" if timed_out else "nothing")


@pytest.mark.parametrize("state", STATES)
def test_only_ongoing_times_out(state: TransactionState) -> None:
    assert is_timed_out(record(state), 10**12) is (state == "ONGOING")
    verdict = judge_abort_by_others(record(state), now_ms=10**12, write_id="w", only_if_timed_out=True)
    expected = {"ONGOING": "PREPARE_ABORT 6", "PREPARE_COMMIT": "RollForward", "PREPARE_ABORT": "RollForward"}
    assert word(verdict) == expected.get(state, "nothing")


@pytest.mark.parametrize("state", STATES)
def test_an_idle_id_expires_but_not_one_with_a_version(state: TransactionState) -> None:
    constants = StoreConstants(transactional_id_expiration_ms=500, delete_grace_ms=400)
    # The grace counts the error of four clocks, the expiration of two (W32).
    constants = msgspec.structs.replace(constants, transactional_id_expiration_ms=500 + 2 * MAX_CLOCK_ERROR_MS)
    idle_ms = 500 + 4 * MAX_CLOCK_ERROR_MS
    assert may_expire(record(state), 2_000 + idle_ms, constants) is (state in IDLE)
    assert not may_expire(record(state), 2_000 + idle_ms - 1, constants)
    assert not may_expire(record(state, txn_version=0), 10**12, constants)


@pytest.mark.parametrize("state", STATES)
def test_an_id_is_not_forgotten_in_the_grace_after_a_commit_that_hung(state: TransactionState) -> None:
    assert may_be_forgotten(record(state), 2_000, 1_001) is (state in IDLE)
    hung = state == "COMPLETE_COMMIT"
    since_ms = 3_000 + 4 * MAX_CLOCK_ERROR_MS
    assert may_be_forgotten(record(state), since_ms - 1, 1_000) is (state in IDLE and not hung)
    assert may_be_forgotten(record(state), since_ms, 1_000) is (state in IDLE)


@pytest.mark.parametrize("state", STATES)
def test_nor_does_it_expire_within_the_grace_of_its_last_change(state: TransactionState) -> None:
    constants = StoreConstants(transactional_id_expiration_ms=500, delete_grace_ms=1_000)
    # An init may have finished a hanging commit, and its record does not show that.
    since_ms = 3_000 + 4 * MAX_CLOCK_ERROR_MS
    assert not may_expire(record(state), since_ms - 1, constants)
    assert may_expire(record(state), since_ms, constants) is (state in IDLE)


def test_an_abort_by_others_of_nothing() -> None:
    assert judge_abort_by_others(None, now_ms=0, write_id="w", only_if_timed_out=False) is None


# -- txn.version ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["EMPTY", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT"])
@pytest.mark.parametrize(
    ("stored", "given", "expected"),
    [
        ((-1, ""), TxnVersion(version=0), "PREPARE_COMMIT 6"),
        ((-1, ""), TxnVersion(version=0, scope="q"), "PREPARE_COMMIT 6"),
        ((3, ""), TxnVersion(version=4), "PREPARE_COMMIT 6"),
        ((3, ""), TxnVersion(version=3), "Skipped"),
        ((3, ""), TxnVersion(version=2), "Skipped"),
        ((3, "q"), TxnVersion(version=3, scope="q"), "Skipped"),
        ((3, "q"), TxnVersion(version=4, scope="r"), "TxnVersionScopeError"),
        ((3, "q"), TxnVersion(version=2, scope="r"), "TxnVersionScopeError"),
        ((3, "q"), TxnVersion(version=4), "TxnVersionScopeError"),
        ((3, ""), TxnVersion(version=4, scope="r"), "TxnVersionScopeError"),
    ],
)
def test_versions(state: TransactionState, stored: tuple[int, str], given: TxnVersion, expected: str) -> None:
    current = record(state, txn_version=stored[0], txn_scope=stored[1])
    verdict = end(current, OWNER, "commit", staged=STAGED, version=given)
    assert word(verdict) == expected
    if isinstance(verdict, Transit):
        assert (verdict.to.txn_version, verdict.to.txn_scope) == (given.version, given.scope)
    # the version of the ONGOING that registers conditional offsets is also checked before any condition
    registered = add(current, OWNER, P0, version=given)
    if expected.startswith("PREPARE"):
        assert not isinstance(registered, Skipped | Refused)
        assert (registered.to if isinstance(registered, Transit) else registered.txn).txn_version == stored[0]
    else:
        assert word(registered) == expected


def test_a_version_alone_makes_a_commit() -> None:
    assert word(end(record("EMPTY"), OWNER, "commit", version=TxnVersion(version=1))) == "PREPARE_COMMIT 6"


def test_only_a_commit_changes_the_version_and_every_record_carries_it() -> None:
    kept: dict[str, Any] = {"txn_version": 3, "txn_scope": "q", "txn_topics": ("orders",)}
    version = TxnVersion(version=9, scope="q", topics=frozenset({"audit"}))
    made = [
        init(record("COMPLETE_COMMIT", **kept)),
        init(record("ONGOING", **kept)),
        add(record("EMPTY", **kept)),
        add(record("ONGOING", **kept), version=version),
        end(record("ONGOING", **kept), OWNER, "abort", version=version),
        end(record("ONGOING", **kept), OWNER, "commit"),
        judge_abort_by_others(record("ONGOING", **kept), now_ms=0, write_id="w", only_if_timed_out=False),
        finish(record("PREPARE_COMMIT", **kept), record("PREPARE_COMMIT", **kept)),
        add(record("PREPARE_COMMIT", **kept), after_markers(record("PREPARE_COMMIT", **kept))),
    ]
    for transit in made:
        assert isinstance(transit, Transit)
        assert (transit.to.txn_version, transit.to.txn_scope, transit.to.txn_topics) == (3, "q", ("orders",))


@pytest.mark.parametrize(
    ("version", "stored", "topics", "expected"),
    [
        (3, ("clean", "orders"), {"orders"}, "Skipped"),
        (3, ("clean", "orders"), {"orders", "audit"}, "InvalidRequestError"),
        (3, ("clean", "orders"), set(), "Skipped"),
        (3, ("clean", "orders"), None, "Skipped"),
        (3, (), {"audit"}, "InvalidRequestError"),
        (3, (), set(), "Skipped"),
        (3, msgspec.UNSET, {"audit"}, "Skipped"),
        (2, ("clean", "orders"), {"audit"}, "Skipped"),
        (4, ("clean", "orders"), {"audit"}, "PREPARE_COMMIT 6"),
    ],
)
def test_a_version_is_not_skipped_for_a_topic_that_it_was_not_committed_for(
    version: int, stored: tuple[str, ...] | msgspec.UnsetType, topics: set[str] | None, expected: str
) -> None:
    given = TxnVersion(version=version, topics=None if topics is None else frozenset(topics))
    current = record("COMPLETE_COMMIT", txn_version=3, txn_topics=stored)
    verdict = end(current, OWNER, "commit", staged=STAGED, version=given)
    assert word(verdict) == expected
    if isinstance(verdict, Transit):
        assert verdict.to.txn_topics == ("audit",)
    if isinstance(verdict, Refused):
        with pytest.raises(InvalidRequestError, match=r"for (clean, orders|no topic), so the rows for audit would be"):
            check_version(current, given)


def test_topics_are_stored_if_they_are_known_and_not_very_many() -> None:
    for many, stored in ((None, False), (0, True), (100, True), (101, False)):
        topics = None if many is None else frozenset(f"topic-{n}" for n in range(many))
        given = TxnVersion(version=1, topics=topics)
        verdict = end(record("EMPTY"), OWNER, "commit", version=given)
        assert isinstance(verdict, Transit)
        assert (verdict.to.txn_topics is not msgspec.UNSET) == stored


def test_the_retry_of_a_commit_is_not_skipped_by_its_own_version() -> None:
    version = TxnVersion(version=3)
    current = record("COMPLETE_COMMIT", txn_version=3)
    assert end(current, RETRY, "commit", staged=STAGED, version=version) == Done(current)


def test_the_retry_of_a_commit_that_was_skipped_is_skipped() -> None:
    current = record("COMPLETE_ABORT", txn_version=3)
    assert end(current, RETRY, "commit", version=TxnVersion(version=3)) == Skipped(current)
    later = end(current, RETRY, "commit", version=TxnVersion(version=4))
    assert isinstance(later.error, InvalidProducerEpochError)


def test_a_fenced_instance_is_told_so_before_its_version_is_looked_at() -> None:
    current = record("EMPTY", epoch=9, txn_version=3)
    assert word(end(current, OWNER, "commit", staged=STAGED, version=TxnVersion(version=1))) == "ProducerFencedError"
    assert word(add(current, OWNER, P0, version=TxnVersion(version=1))) == "ProducerFencedError"


def test_an_abort_is_never_skipped() -> None:
    current = record("ONGOING", txn_version=3)
    assert word(end(current, OWNER, "abort", version=TxnVersion(version=1))) == "PREPARE_ABORT 6"


def test_the_scope_error_says_how_to_reset() -> None:
    verdict = end(record("EMPTY", txn_version=3, txn_scope="q"), OWNER, "commit", version=TxnVersion(version=1))
    assert isinstance(verdict.error, TxnVersionScopeError)
    for part in ("'x'", "txn.version 3", "'q'", "transactions expire"):
        assert part in str(verdict.error)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_a_version_that_cannot_be_stored_is_refused(version: int) -> None:
    # -1 means that a record has no version
    with pytest.raises(InvalidRequestError):
        TxnVersion(version=version)


# -- who may write to a partition -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_is_this_ongoing(state: TransactionState) -> None:
    assert is_this_ongoing(record(state), OWNER) is (state == "ONGOING")
    assert not is_this_ongoing(record("ONGOING"), RETRY)  # a later transaction of the same id is a different one (W21)
    assert not is_this_ongoing(record("ONGOING", producer_id=8), OWNER)
    assert not is_this_ongoing(None, OWNER)


@pytest.mark.parametrize(
    ("current", "error"),
    [
        (None, InvalidProducerIdMappingError),
        (record("ONGOING", producer_id=8), InvalidProducerIdMappingError),
        (record("ONGOING"), IllegalStateError),
        (record("COMPLETE_ABORT", epoch=6), InvalidProducerEpochError),
        # KIP-588: its own timeout or a new instance may have begun the abort; until that is known, the error is not
        # fatal
        (record("PREPARE_ABORT", epoch=6), InvalidProducerEpochError),
        (record("EMPTY", epoch=7), ProducerFencedError),
        (record("ONGOING", epoch=7), ProducerFencedError),
    ],
)
def test_why_a_partition_may_not_be_written(current: TransactionMetadata | None, error: type[Exception]) -> None:
    assert type(not_registered_error(current, OWNER, P2)) is error


# -- all pairs --------------------------------------------------------------------------------------------------------


def every_transit(current: TransactionMetadata | None) -> list[TransactionMetadata]:
    """Return every record that any check allows over `current`."""
    version = TxnVersion(version=8)
    verdicts: list[Any] = [init(current)]
    known = [after_markers(current)] if current is not None and current.state in PREPARED else []
    for txn in (OWNER, RETRY, *known):
        verdicts += [add(current, txn), add(current, txn, version=version)]
        for outcome, staged, asked in product(("commit", "abort"), ((), STAGED), (None, version)):
            verdicts.append(end(current, txn, outcome, staged=staged, version=asked))
    for strict, now_ms in product((True, False), (0, 10**12)):
        verdicts.append(judge_abort_by_others(current, now_ms=now_ms, write_id="w", only_if_timed_out=strict))
    verdicts += [judge_complete(current, txn, now_ms=NOW, write_id="w") for txn in known]
    return [verdict.to for verdict in verdicts if isinstance(verdict, Transit)]


def test_the_judges_make_exactly_the_valid_transitions() -> None:
    made = {(state, to.state) for state in STATES for to in every_transit(record(state))}
    valid = {(source, target) for target, sources in VALID_PREVIOUS_STATES.items() for source in sources}
    assert made == valid
    assert {to.state for to in every_transit(None)} == {"EMPTY"}


@pytest.mark.parametrize("state", STATES)
def test_epochs_move_once_a_transaction_and_once_an_init(state: TransactionState) -> None:
    current = record(state)
    for to in every_transit(current):
        moved = to.producer_epoch - current.producer_epoch
        if to.state in PREPARED:
            assert (moved, to.last_epoch) == (1, current.producer_epoch)
        elif to.state == "EMPTY":
            assert (moved, to.last_epoch) == (1, -1)
        else:
            assert moved == 0
        assert to.producer_id == current.producer_id
        assert to.write_id == "w"


ACTIONS = ("init", "add", "commit", "abort", "staged", "time out", "complete", "retry", "markers")


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2)), max_size=40))
def test_no_two_transactions_share_an_epoch(script: list[tuple[str, int]]) -> None:
    """Instances act in any order on one id, each with what it knows. The decision for an epoch never changes."""
    current: TransactionMetadata | None = None
    known: dict[int, TransactionMetadata] = {}
    ended: dict[int, TransactionMetadata] = {}
    owners: dict[int, int] = {}
    decided: dict[int, str] = {}
    for action, who in script:
        txn = known.get(who)
        if action == "init":
            verdict: Any = init(current)
        elif action == "time out":
            verdict = judge_abort_by_others(current, now_ms=10**12, write_id="w", only_if_timed_out=True)
        elif action == "complete":
            prepared = current is not None and current.state in PREPARED
            verdict = finish(current, current) if prepared and current else None
        elif txn is None:
            continue
        elif action == "markers":
            if who in ended:
                known[who] = ended.pop(who)
                assert owners.setdefault(known[who].producer_epoch, who) == who
            continue
        elif action == "add":
            verdict = add(current, txn)
        else:
            verdict = end(current, txn, "abort" if action == "abort" else "commit", staged=STAGED)
        if isinstance(verdict, Transit):
            to = verdict.to
            if to.state in PREPARED:
                assert to.last_epoch not in decided
                decided[to.last_epoch] = to.state
                if txn is not None and action not in ("init", "time out"):
                    ended[who] = after_markers(to)
            current = to
            if action == "init" and to.state == "EMPTY":
                known[who] = to
                assert owners.setdefault(to.producer_epoch, who) == who
            elif action == "add":
                known[who] = to
        elif isinstance(verdict, Done | AlreadyCommitted) and txn is not None:
            if action != "add":
                assert (decided[txn.producer_epoch] == "PREPARE_COMMIT") == (
                    isinstance(verdict, AlreadyCommitted) or action != "abort"
                )
            known[who] = verdict.txn
            assert owners.setdefault(verdict.txn.producer_epoch, who) == who
