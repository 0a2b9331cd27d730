"""The checker finds each anomaly in a history that has it, and none in the corrected history.

Each anomaly has a pair of functions: `bad_…` plants it, `good_…` is the near miss.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.histories.anomaly import ANOMALIES, NOTES
from lab.histories.bank import Leg
from lab.histories.checker import check
from lab.histories.events import Batch, End, OpenTransaction, Send, TransactionRecord
from lab.histories.recorder import merge
from tests.testing.planted import Story

# -- values and offsets -----------------------------------------------------------------------------------------------


def bad_inconsistent_offsets(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1, (0, 1))
    s.send("v", 2, status="info")
    s.poll("q", 0, 1, (0, 2))


def good_inconsistent_offsets(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1, (0, 1))
    s.send("v", 2, status="info")
    s.poll("q", 0, 2, (0, 1), (1, 2))


def bad_duplicate(s: Story) -> None:
    s.send("w", 1, status="info")
    s.poll("r", 0, 2, (0, 1), (1, 1))


def good_duplicate(s: Story) -> None:
    s.send("w", 1, status="info")
    s.poll("r", 0, 2, (0, 1))
    s.poll("q", 0, 2, (0, 1))


def bad_checksum_escape(s: Story) -> None:
    s.send("w", 1, at=0, contents=("a",))
    s.poll("r", 0, 1, (0, 1, "b"))


def good_checksum_escape(s: Story) -> None:
    s.send("w", 1, at=0, contents=("a",))
    s.poll("r", 0, 1, (0, 1, "a"))


def bad_malformed(s: Story) -> None:
    s.send("w", 1, at=0)
    s.send("v", 1, at=1)


def good_malformed(s: Story) -> None:
    s.send("w", 1, at=0)
    s.send("v", 2, at=1)


# -- outcomes ---------------------------------------------------------------------------------------------------------


def bad_g1a(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.abort("w", "T")
    s.poll("r", 0, 2, (0, 1))


def good_g1a(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.abort("w", "T")
    s.poll("r", 0, 2)
    s.poll("q", 0, 2, (0, 1), isolation="read_uncommitted")
    s.send("w", 2, at=2, txn="U")
    s.commit("w", "U", "info")
    s.poll("r", 2, 4, (2, 2))


def bad_g1a_commit_never_asked_for(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.poll("r", 0, 2, (0, 1))


def bad_fail_but_visible(s: Story) -> None:
    s.send("w", 1, status="fail")
    s.poll("r", 0, 1, (0, 1), isolation="read_uncommitted")


def good_fail_but_visible(s: Story) -> None:
    s.send("w", 1, status="info")
    s.poll("r", 0, 1, (0, 1), isolation="read_uncommitted")


def bad_fail_but_visible_in_transaction(s: Story) -> None:
    s.send("w", 1, txn="T", status="fail", error="InvalidProducerEpochError: x")
    s.poll("r", 0, 1, (0, 1), isolation="read_uncommitted")


def good_fail_but_visible_in_transaction(s: Story) -> None:
    s.send("w", 1, txn="T", status="fail", error="TransactionAbortableError: it may be there, and will be aborted")
    s.poll("r", 0, 1, (0, 1), isolation="read_uncommitted")
    s.poll("r", 0, 1)


def bad_changed_outcome(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.commit("w", "T")
    s.abort("w", "T")


def good_changed_outcome(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.commit("w", "T", "info")
    s.end("w", "T", "committed", commit=False)  # an abort that came too late


def bad_precommitted_read(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.poll("w", 0, 1, (0, 1), txn="T")
    s.commit("w", "T")


def good_precommitted_read(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.poll("w", 0, 1, (0, 1), txn="T", isolation="read_uncommitted")
    s.commit("w", "T")


# -- rows that a read skipped -----------------------------------------------------------------------------------------


def bad_lost_write(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 2)


def good_lost_write(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 0)  # another open transaction holds it back
    s.poll("q", 0, 2, (0, 1))


def bad_ok_but_absent(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1)


def good_ok_but_absent(s: Story) -> None:
    s.send("w", 1, at=0)
    s.send("v", 3, status="info")
    s.poll("r", 3, 5, (3, 3), log_start=3)  # retention removed row 1; row 3 is from a send that never returned


def bad_unseen(s: Story) -> None:
    s.send("w", 1, txn="T")  # staged: its offset is unknown
    s.commit("w", "T")
    s.final(3)


def good_unseen(s: Story) -> None:
    s.send("w", 1, txn="T")
    s.commit("w", "T", "info")
    s.final(3)


def bad_view_drift(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1, (0, 1))
    s.poll("q", 0, 1)


def good_view_drift(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1, (0, 1))
    s.poll("q", 0, 3, log_start=2)


def bad_view_drift_digest(s: Story) -> None:
    s.inspect(Batch(base_offset=0, records=1, kind="data"), digest="a")
    s.inspect(Batch(base_offset=0, records=1, kind="data"), digest="b")


def good_view_drift_digest(s: Story) -> None:
    s.inspect(Batch(base_offset=0, records=1, kind="data"), digest="a")
    s.inspect(Batch(base_offset=1, records=1, kind="data"), digest="b")


def bad_g1b_range(s: Story) -> None:
    s.send("w", 1, 2, at=0, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 3, (0, 1))


def good_g1b_range(s: Story) -> None:
    s.send("w", 1, 2, at=0, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 1, (0, 1))
    s.poll("r", 1, 3, (1, 2))


def bad_torn_transaction(s: Story) -> None:
    s.send("w", 1, txn="T")
    s.send("w", 2, txn="T", partition=1)
    s.commit("w", "T", "info")
    s.final(2, (0, 1))
    s.final(2, partition=1)


def good_torn_transaction(s: Story) -> None:
    s.send("w", 1, txn="T")
    s.send("w", 2, txn="T", partition=1)
    s.commit("w", "T", "info")
    s.poll("r", 0, 2, (0, 1))  # partitions become visible one by one
    s.poll("r", 0, 0, partition=1)
    s.final(2, (0, 1))
    s.final(2, (0, 2), partition=1)


# -- compaction -------------------------------------------------------------------------------------------------------


def bad_compaction_loss(s: Story) -> None:
    s.compacted()
    s.send("w", 1, at=0, keys=("k",))
    s.send("w", 2, at=1, keys=("k",))
    s.poll("r", 0, 2, (0, 1))


def good_compaction_loss(s: Story) -> None:
    s.compacted()
    s.send("w", 1, at=0, keys=("k",))
    s.send("w", 2, at=1, keys=("k",))
    s.send("w", 3, at=2, keys=("l",), deletes=True)
    s.poll("r", 0, 3, (1, 2))


def bad_compaction_resurrect(s: Story) -> None:
    good_compaction_loss(s)
    s.assign("r")
    s.poll("r", 0, 3, (0, 1), (1, 2))


def good_compaction_resurrect(s: Story) -> None:
    s.compacted()
    s.send("w", 1, at=0, keys=("k",))
    s.send("w", 2, at=1, keys=("k",))
    s.poll("r", 0, 2, (0, 1), (1, 2))
    s.poll("q", 0, 2, (1, 2))
    s.poll("x", 0, 2, (0, 1), (1, 2))  # its view of the log is older
    s.send("v", 3, keys=("k",), txn="T", deletes=True, status="info")
    s.poll("q", 2, 4)
    s.poll("q", 0, 4, (1, 2), (2, 3), isolation="read_uncommitted")  # aborted, but no cleaning has run yet


# -- order ------------------------------------------------------------------------------------------------------------


def three_rows(s: Story) -> None:
    s.send("w", 1, 2, 3, at=0)


def bad_poll_skip(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 1, (0, 1))
    s.poll("r", 2, 3, (2, 3))


def good_poll_skip(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 1, (0, 1))
    s.assign("r")
    s.poll("r", 2, 3, (2, 3))


def bad_nonmonotonic_poll(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 2, (0, 1), (1, 2))
    s.poll("r", 1, 3, (1, 2), (2, 3))


def good_nonmonotonic_poll(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 2, (0, 1), (1, 2))
    s.poll("r", 2, 2, status="info")
    s.poll("r", 2, 3, (2, 3))


def bad_int_poll_skip(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 1, (0, 1), txn="T")
    s.poll("r", 2, 3, (2, 3), txn="T")


def good_int_poll_skip(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 1, (0, 1), txn="T")
    s.poll("r", 1, 3, (1, 2), (2, 3), txn="T")


def bad_int_nonmonotonic_poll(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 2, (0, 1), (1, 2), txn="T")
    s.poll("r", 0, 1, (0, 1), txn="T")


def good_int_nonmonotonic_poll(s: Story) -> None:
    three_rows(s)
    s.poll("r", 0, 2, (0, 1), (1, 2), txn="T")
    s.assign("r")
    s.poll("r", 0, 1, (0, 1), txn="T")


def bad_int_nonmonotonic_send(s: Story) -> None:
    s.send("w", 1, txn="T")
    s.send("w", 2, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 2, (0, 2), (1, 1))


def good_int_nonmonotonic_send(s: Story) -> None:
    s.send("w", 1, txn="T")
    s.send("w", 2, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 2, (0, 1), (1, 2))


def bad_nonmonotonic_send(s: Story) -> None:
    s.send("w", 1, status="info")
    s.send("w", 2, at=0)
    s.poll("r", 0, 2, (0, 2), (1, 1))


def good_nonmonotonic_send(s: Story) -> None:
    s.send("w", 1, status="info")
    s.send("v", 2, at=0)  # another process
    s.poll("r", 0, 2, (0, 2), (1, 1))


# -- the ends of the log ----------------------------------------------------------------------------------------------


def bad_append_order(s: Story) -> None:
    s.send("w", 1, at=5)
    s.send("v", 2, at=4)


def good_append_order(s: Story) -> None:
    operation = s.recorder.invoke("v", send := _send(2))
    s.send("w", 1, at=5)
    s.answer("v", operation, send)  # it began before the other one returned


def bad_leo_reuse(s: Story) -> None:
    s.ends("r", 0, 3, 3)
    s.send("w", 1, at=2)


def good_leo_reuse(s: Story) -> None:
    s.ends("r", 0, 3, 3)
    s.send("w", 1, at=3)


def bad_leo_reuse_back(s: Story) -> None:
    s.ends("r", 0, 3, 3)
    s.ends("q", 0, 3, 2)


def bad_stale_read(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 0, isolation="read_uncommitted", to_end=True)


def good_stale_read(s: Story) -> None:
    operation = s.recorder.invoke("w", send := _send(2))
    s.poll("r", 0, 0, isolation="read_uncommitted", to_end=True)
    s.answer("w", operation, send)
    s.poll("r", 0, 0, to_end=True, last_stable=0, log_end=5)  # an open transaction holds read_committed back


def bad_stale_read_ends(s: Story) -> None:
    s.send("w", 1, at=0)
    s.ends("r", 0, 0, 0)


def bad_stale_read_committed(s: Story) -> None:
    s.send("w", 1, at=0, txn="T")
    s.commit("w", "T")
    s.poll("r", 0, 0, to_end=True, last_stable=2, log_end=2)


def bad_lso_regress(s: Story) -> None:
    s.ends("r", 0, 4, 9)
    s.ends("r", 0, 3, 9)


def good_lso_regress(s: Story) -> None:
    s.ends("r", 0, 4, 9)
    s.ends("r", 0, 4, 9)


def bad_lso_regress_read_above(s: Story) -> None:
    s.send("w", 1, at=4, txn="T")
    s.commit("w", "T", "info")
    s.poll("r", 0, 5, (4, 1), last_stable=4, log_end=9)


# -- damage -----------------------------------------------------------------------------------------------------------


def bad_silent_gap(s: Story) -> None:
    s.send("w", 9, at=9)
    s.poll("r", 2, 10, (9, 9), log_start=8)


def good_silent_gap(s: Story) -> None:
    s.send("w", 9, at=9)
    s.poll("r", 2, -1, status="fail", error="OffsetOutOfRangeError: 2 is below 8")
    s.assign("r")
    s.poll("r", 8, 10, (9, 9), log_start=8)


def bad_silent_gap_told_before(s: Story) -> None:
    s.ends("q", 8, 10, 10)
    s.send("w", 9, at=10)
    s.poll("r", 2, 11, (10, 9))


def bad_deleted_but_visible(s: Story) -> None:
    s.send("w", 1, txn="T", schema_id=0)
    s.commit("w", "T")
    s.delete_topic(1)
    s.poll("r", 2, 3, (2, 1), log_start=2, deleted_version=1)


def good_deleted_but_visible(s: Story) -> None:
    s.send("w", 1, txn="T", schema_id=0)
    s.commit("w", "T")
    s.poll("r", 0, 1, (0, 1))
    s.delete_topic(1)
    s.send("w", 2, txn="U", schema_id=2)
    s.commit("w", "U")
    s.poll("r", 2, 3, (2, 2), log_start=2, deleted_version=1, final=True, to_end=True)


def bad_unseen_in_a_topic_made_anew(s: Story) -> None:
    s.delete_topic(1)
    s.send("w", 1, txn="T", schema_id=2)
    s.commit("w", "T")
    s.final(3, log_start=2, deleted_version=1)


def bad_written_to_deleted(s: Story) -> None:
    s.send("w", 1, txn="T", schema_id=0)
    s.delete_topic(1)
    s.commit("w", "T")


def good_written_to_deleted(s: Story) -> None:
    s.send("w", 1, txn="T", schema_id=0)
    commit = End(txn="T", commit=True, outcome="committed")
    asked = s.recorder.invoke("w", commit)
    s.send("v", 2, at=0, txn="U", schema_id=0)
    s.delete_topic(1)
    # The commit was requested before the deletion, and its rows are deleted with the topic.
    s.answer("w", asked, commit)
    s.commit("v", "U")
    s.send("v", 3, at=3, schema_id=2)


def bad_written_to_deleted_at_once(s: Story) -> None:
    s.delete_topic(1)
    s.send("w", 1, at=2, schema_id=0)


def bad_snapshot_hole(s: Story) -> None:
    s.poll("r", 0, -1, status="fail", error="MissingObjectError: t/0/rows/x.parquet is gone")


def good_snapshot_hole(s: Story) -> None:
    s.poll("r", 0, -1, status="fail", error="StorageError: try again")


def bad_snapshot_hole_out_of_range(s: Story) -> None:
    s.send("w", 1, at=0)
    s.poll("r", 0, 1, (0, 1))
    s.poll("q", 0, -1, status="fail", error="OffsetOutOfRangeError: 0")


# -- fences -----------------------------------------------------------------------------------------------------------


def bad_zombie_commit(s: Story) -> None:
    s.init("a", "x", 0)
    s.begin("a", "T", "x", 0)
    s.send("a", 1, at=0, txn="T")
    s.init("b", "x", 2)
    s.commit("a", "T")


def good_zombie_commit(s: Story) -> None:
    s.init("a", "x", 0)
    s.begin("a", "T", "x", 0)
    s.send("a", 1, at=0, txn="T")
    s.commit("a", "T", "info")
    s.init("b", "x", 2)
    s.commit("a", "T")  # the retry joins the first try, which had won


def bad_zombie_commit_in_table(s: Story) -> None:
    s.table(
        TransactionRecord(offset=0, transactional_id="x", producer_id=7, producer_epoch=2, state="EMPTY"),
        TransactionRecord(
            offset=1, transactional_id="x", producer_id=7, producer_epoch=1, last_epoch=0, state="PREPARE_COMMIT"
        ),
    )


def good_zombie_commit_in_table(s: Story) -> None:
    s.table(
        TransactionRecord(offset=0, transactional_id="x", producer_id=7, producer_epoch=2, state="EMPTY"),
        TransactionRecord(
            offset=1, transactional_id="x", producer_id=7, producer_epoch=3, last_epoch=2, state="PREPARE_COMMIT"
        ),
    )


def bad_fence_leak(s: Story) -> None:
    s.init("a", "x", 0)
    s.begin("a", "T", "x", 0)
    s.init("b", "x", 2)
    s.send("a", 1, at=0, txn="T")


def good_fence_leak(s: Story) -> None:
    s.init("a", "x", 0)
    s.begin("a", "T", "x", 0)
    s.init("b", "x", 2)
    s.send("a", 1, txn="T")  # staged: a file, and no record in the log
    s.commit("a", "T", "fail")


def bad_fence_leak_in_log(s: Story) -> None:
    s.inspect(
        Batch(base_offset=0, records=0, kind="abort", producer_id=7, producer_epoch=1),
        Batch(base_offset=1, records=1, kind="data", producer_id=7, producer_epoch=0),
    )


def good_fence_leak_in_log(s: Story) -> None:
    s.inspect(
        Batch(base_offset=0, records=0, kind="abort", producer_id=7, producer_epoch=1),
        Batch(base_offset=1, records=1, kind="data", producer_id=8, producer_epoch=0),
        Batch(base_offset=2, records=1, kind="data", producer_id=7, producer_epoch=1),
    )


def bad_hanging_txn(s: Story) -> None:
    s.inspect(opened=(OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3),), final=True)


def good_hanging_txn(s: Story) -> None:
    s.inspect(opened=(OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3),))


def bad_hanging_txn_holds_reader(s: Story) -> None:
    s.final(3, last_stable=3, log_end=5)


# -- groups -----------------------------------------------------------------------------------------------------------


def bad_double_consume(s: Story) -> None:
    s.send_offsets("a", "T", 0, 3)
    s.commit("a", "T")
    s.send_offsets("b", "U", 2, 5)
    s.commit("b", "U")


def good_double_consume(s: Story) -> None:
    s.send_offsets("a", "T", 0, 3)
    s.commit("a", "T")
    s.send_offsets("b", "U", 2, 5)
    s.abort("b", "U")
    s.send_offsets("b", "V", 3, 5)
    s.commit("b", "V")


def bad_shared_read(s: Story) -> None:
    s.send("p", 10, 11, 12, at=0)
    s.poll("a", 0, 2, (0, 10), (1, 11), group="g", generation=4, member="a")
    s.poll("b", 1, 3, (1, 11), (2, 12), group="g", generation=4, member="b")


def good_shared_read(s: Story) -> None:
    """The next generation, another group, and the next process of a static member read the rows again."""
    s.send("p", 10, 11, 12, at=0)
    s.poll("a", 0, 2, (0, 10), (1, 11), group="g", generation=4, member="a")
    s.poll("b", 0, 2, (0, 10), (1, 11), group="g", generation=5, member="b")
    s.poll("c", 0, 2, (0, 10), (1, 11), group="g", generation=5, member="b")
    s.poll("d", 0, 2, (0, 10), (1, 11), group="h", generation=5, member="d")
    s.poll("a", 2, 3, (2, 12), group="g", generation=5, member="a")


def bad_group_regress(s: Story) -> None:
    s.commit_offsets("a", 0, 5)
    s.fetch("a", 3)


def good_group_regress(s: Story) -> None:
    s.commit_offsets("a", 0, 5)
    s.commit_offsets("a", 0, 3, reset=True)
    s.fetch("a", 3)


def bad_offset_divergence(s: Story) -> None:
    s.send("a", 1, txn="T")
    s.send_offsets("a", "T", 0, 3)
    s.abort("a", "T")
    s.fetch("final", 3, final=True)  # the group has passed the input, and its output was aborted


def good_offset_divergence(s: Story) -> None:
    s.send("a", 1, txn="T")
    s.send_offsets("a", "T", 0, 3)
    s.abort("a", "T")
    s.send_offsets("a", "U", 0, 2)
    s.commit("a", "U", "info")
    s.fetch("final", 2, final=True)


def bad_offset_divergence_reverse(s: Story) -> None:
    s.send("a", 1, at=0, txn="T")
    s.send_offsets("a", "T", 0, 3)
    s.commit("a", "T", "info")
    s.poll("r", 0, 1, (0, 1))
    s.fetch("final", -1, final=True)


# -- cycles -----------------------------------------------------------------------------------------------------------


def bad_g1c(s: Story) -> None:
    s.send("a", 1, at=0, txn="T")
    s.send("b", 2, at=0, txn="U", partition=1)
    s.poll("a", 0, 1, (0, 2), txn="T", partition=1)
    s.poll("b", 0, 1, (0, 1), txn="U")
    s.commit("a", "T")
    s.commit("b", "U")


def good_g1c(s: Story) -> None:
    s.send("a", 1, at=0, txn="T")
    s.commit("a", "T")
    s.poll("b", 0, 1, (0, 1), txn="U")
    s.send("b", 2, at=0, txn="U", partition=1)
    s.commit("b", "U")
    s.poll("a", 0, 1, (0, 2), txn="V", partition=1)


def bad_g1c_process(s: Story) -> None:
    s.poll("a", 0, 1, (0, 1))
    s.send("a", 1, at=0, txn="T")
    s.commit("a", "T")


def bad_g1c_realtime(s: Story) -> None:
    s.poll("r", 0, 1, (0, 1))
    s.send("a", 1, at=0, txn="T")
    s.commit("a", "T")


def good_g1c_realtime(s: Story) -> None:
    operation = s.recorder.invoke("a", send := _send(1, 0))
    s.poll("r", 0, 1, (0, 1))
    s.answer("a", operation, send)


# -- the bank ---------------------------------------------------------------------------------------------------------


def leg(number: int, delta: int, legs: int = 2) -> str:
    return Leg(transfer="x", number=number, legs=legs, account=number, delta=delta).encode()


def transfer(s: Story, status: str = "ok") -> None:
    s.send("w", 1, at=0, txn="T", contents=(leg(0, -5),))
    s.send("w", 2, at=0, txn="T", partition=1, contents=(leg(1, 5),))
    s.commit("w", "T", status)


def bad_bank_total(s: Story) -> None:
    transfer(s, "info")
    s.poll("auditor", 0, 2, (0, 1, leg(0, -5)), audit="A")
    s.poll("auditor", 0, 0, partition=1, audit="A")
    s.audit("A", quiet=True)


def good_bank_total(s: Story) -> None:
    transfer(s, "info")
    s.poll("auditor", 0, 2, (0, 1, leg(0, -5)), audit="A")
    s.poll("auditor", 0, 0, partition=1, audit="A")
    s.audit("A", quiet=False)


def bad_bank_torn(s: Story) -> None:
    transfer(s)
    s.poll("auditor", 0, 2, (0, 1, leg(0, -5)), audit="A", last_stable=2, log_end=2)
    s.poll("auditor", 0, 0, partition=1, audit="A", last_stable=0, log_end=0)
    s.audit("A", quiet=False)


def good_bank_torn(s: Story) -> None:
    transfer(s)
    s.poll("auditor", 0, 2, (0, 1, leg(0, -5)), audit="A", last_stable=2, log_end=2)
    s.poll("auditor", 0, 0, partition=1, audit="A", last_stable=0, log_end=2)  # held back
    s.audit("A", quiet=False)


# -- notes ------------------------------------------------------------------------------------------------------------


def note_int_send_skip(s: Story) -> None:
    s.send("a", 1, at=0, txn="T")
    s.send("b", 2, at=1, txn="U")
    s.send("a", 3, at=2, txn="T")
    s.commit("a", "T")
    s.commit("b", "U")


def note_g0(s: Story) -> None:
    note_int_send_skip(s)


def note_g0_process(s: Story) -> None:
    s.send("a", 1, txn="T")
    s.commit("a", "T")
    s.send("a", 2, txn="U", partition=1)
    s.commit("a", "U")
    s.send("b", 3, txn="V", partition=1)
    s.send("b", 4, txn="V")
    s.commit("b", "V")
    s.poll("r", 0, 2, (0, 4), (1, 1))
    s.poll("r", 0, 2, (0, 2), (1, 3), partition=1)


def note_g0_realtime(s: Story) -> None:
    s.send("a", 1, txn="T")
    s.commit("a", "T")
    s.send("c", 2, txn="U")
    s.commit("c", "U")
    s.poll("r", 0, 2, (0, 2), (1, 1))


# -- all of them ------------------------------------------------------------------------------------------------------

BAD = {name: plant for name, plant in globals().items() if name.startswith("bad_")}
GOOD = {name: plant for name, plant in globals().items() if name.startswith("good_")}
NOTED = {name: plant for name, plant in globals().items() if name.startswith("note_")}


def _send(value: int, at: int = 4) -> Send:
    return Send(topic="t", partition=0, values=(value,), base_offset=at)


def named(function: str, names: dict[str, str]) -> str:
    """Return the anomaly of `bad_lost_write` or `bad_lost_write_in_log`: the longest name that fits."""
    words = function.split("_", 1)[1].replace("_", "-")
    fitting = [name for name in names if f"{words}-".startswith(f"{name.lower()}-")]
    return max(fitting, key=len)


def histories(plant: Callable[[Story], None]) -> Story:
    story = Story()
    plant(story)
    return story


@pytest.mark.parametrize("name", BAD)
def test_a_planted_anomaly_is_found(name):
    wanted = named(name, ANOMALIES)
    report = check(histories(BAD[name]).events)
    assert wanted in report.names, report
    for each in report.anomalies:
        assert each.events, each
        assert ANOMALIES[each.name]


@pytest.mark.parametrize("name", GOOD)
def test_the_near_miss_is_clean(name):
    report = check(histories(GOOD[name]).events)
    assert not report.anomalies, report


@pytest.mark.parametrize("name", NOTED)
def test_what_kafka_allows_is_noted(name):
    report = check(histories(NOTED[name]).events)
    assert not report.anomalies, report
    assert named(name, NOTES) in {each.name for each in report.notes}


def test_every_anomaly_is_planted_and_has_a_near_miss():
    assert {named(name, ANOMALIES) for name in BAD} == set(ANOMALIES)
    assert {named(name, ANOMALIES) for name in GOOD} >= set(ANOMALIES) - {"G1c-process"}
    assert {named(name, NOTES) for name in NOTED} == set(NOTES)


def test_a_reader_passes_over_what_was_compacted_away():
    story = Story()
    story.compacted()
    for value, key in ((1, "k"), (2, "k"), (3, "l"), (4, "k")):
        story.send("w", value, at=value - 1, keys=(key,))
    story.poll("r", 0, 1, (0, 1))
    story.poll("r", 1, 4, (2, 3), (3, 4))
    assert not check(story.events).anomalies


def test_what_nobody_saw_may_have_superseded_a_row():
    story = Story()
    story.compacted()
    story.send("w", 1, at=0, keys=("k",))
    story.send("v", 2, keys=("k",), deletes=True, status="info")
    story.poll("r", 0, 2)
    assert not check(story.events).anomalies
    # What was committed before it began is older, wherever it is.
    story = Story()
    story.compacted()
    story.send("v", 2, keys=("k",), txn="T")
    story.commit("v", "T")
    story.send("w", 1, at=2, keys=("k",))
    story.poll("r", 0, 3)
    assert check(story.events).names == {"compaction-loss": 1}


def test_a_history_without_anything_is_clean():
    assert str(check([])) == "no anomaly"


def test_the_worst_lag_is_a_figure():
    story = Story()
    story.send("w", 1, at=0)
    story.clock.advance_ms(500)
    story.poll("r", 0, 0)
    report = check(story.events)
    assert report.worst_lag_ms == 500
    assert not report.anomalies


def test_several_sources_are_ordered_by_their_clock_alone():
    # Two processes act within one millisecond: their order is unknown.
    one, two = Story(), Story()
    one.recorder.source, two.recorder.source = "one", "two"
    one.send("w", 1, at=5)
    two.send("v", 2, at=4)
    assert not check(merge(one.events, two.events)).anomalies
    two.clock.advance_ms(1)
    two.send("u", 3, at=3)
    assert check(merge(one.events, two.events)).names == {"append-order": 1}
