"""Does a test fail for each rule? Every mutant breaks one rule of the shipped code.

The named scenario passes without the mutant, and must fail with it. If no scenario fails, no test covers the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

import msgspec
import pytest

from tests.protocol import test_groups as on_groups
from tests.protocol import test_load as on_load
from tests.protocol import test_read as on_read
from tests.protocol import test_seal as on_seal
from tests.protocol import test_slot as on_slot
from tests.protocol import test_transactions as on_transactions
from tests.protocol.harness import Cluster
from txlog.core import append_rules, record_checks, snapshot_state, state, transactions
from txlog.core.append_rules import Proceed
from txlog.core.effects import PutIfAbsent, PutOutcome
from txlog.core.groups import check_commit
from txlog.core.records import CommitRecord, TransactionState
from txlog.core.segments import collect_aborted_txns
from txlog.core.transactions import Done, Transit, judge_end, judge_init
from txlog.errors import StorageError
from txlog.protocol import seal, slot
from txlog.protocol.context import Context
from txlog.protocol.load import read_slot

HERE = "txlog.protocol."


class Mutant(NamedTuple):
    target: str
    becomes: Any
    scenario: Callable[[], Any]
    rules: str
    """The rules that it breaks, by their numbers in PROTOCOL.md."""


def nothing(*_: Any, **__: Any) -> Any:
    return None


def no_guard(*_: Any, **__: Any) -> Any:
    def guard(_: Any) -> Any:
        return None
        yield

    return guard


def newer_only(folded: state.PartitionState, pid: int, epoch: int) -> bool:
    entry = folded.producers.get(pid)
    return entry is not None and entry.producer_epoch > epoch


def always(value: Any) -> Any:
    def program(*_: Any, **__: Any) -> Any:
        return value
        yield

    return program


def keep_view(ctx: Any, view: Any, *_: Any) -> Any:
    return view
    yield


def complete_anything(current: Any, prepare: Any, *, now_ms: int, write_id: str) -> Any:
    return transactions.judge_complete(prepare, prepare, now_ms=now_ms, write_id=write_id)


def prepare_bumping(by: int) -> Any:
    original = transactions._prepare

    def prepare(current: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(current, *args, **kwargs)
        return msgspec.structs.replace(made, producer_epoch=current.producer_epoch + by)

    return prepare


def init_aborting_what_is_prepared(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "PREPARE_COMMIT":
        return Transit(msgspec.structs.replace(current, state="PREPARE_ABORT", write_id=kwargs["write_id"]))
    return judge_init(current, **kwargs)


def init_without_a_bump(current: Any, **kwargs: Any) -> Any:
    verdict = judge_init(current, **kwargs)
    if isinstance(verdict, Transit) and verdict.to.state == "EMPTY" and current is not None:
        return Transit(msgspec.structs.replace(verdict.to, producer_epoch=current.producer_epoch))
    return verdict


def abort_of_nothing_decides_nothing(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    if outcome == "abort" and current is not None and current.state in transactions.IDLE:
        return Done(current)
    return judge_end(current, txn, outcome, **kwargs)


def unknown_means_failed(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + f"{stored.record.base_offset:020d}.batch", stored.data)
    if outcome is PutOutcome.UNKNOWN:
        raise StorageError("a time-out, so it failed")
    return stored if outcome is PutOutcome.WRITTEN else (yield from read_slot(tp, stored.record.base_offset))


def conflict_means_lost(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    held = yield from slot_create(ctx, view, stored, write_id)
    assert held is not None
    path = view.topic_partition.folder + f"{stored.record.base_offset:020d}.batch"
    again = yield PutIfAbsent(path, stored.data)
    assert again is PutOutcome.CONFLICT
    return replace(held, record=msgspec.structs.replace(held.record, write_id="somebody else's"))


slot_create = slot._create_slot


def committed_alone(folded: Any, entries: Any, **kwargs: Any) -> Any:
    return check_commit(replace(folded, pending={}), entries, **kwargs)


def the_last_commit_wins(self: Any, row: Any) -> None:
    if row.entry.value is None:
        self.committed.pop(row.entry.key, None)
    else:
        self.committed[row.entry.key] = row


def blind_to_open(producers: Any, next_offset: int, log_start_offset: int, but: int | None = None) -> int:
    return next_offset


def search_one_index(txns: Any, **kwargs: Any) -> Any:
    return replace(collect_aborted_txns(txns, **kwargs), is_complete=True)


def rows_for_the_dead(folded: Any, draft: Any, **kwargs: Any) -> Any:
    return append_rules.next_marker(replace(folded, deleted_version=0), draft, **kwargs)


def without_pending(folded: Any) -> Any:
    return msgspec.structs.replace(snapshot_state.to_snapshot(folded), pending=())


def all_segments(view: Any) -> Any:
    return [*seal_finished(view), tuple(s for s in view.tail if s.record.segment_base == view.state.segment_base)]


seal_finished = seal.finished_segments


def fixed(test: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: test(*args)


def with_cluster(test: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: test(Cluster(), *args)


def guarded_once(view, end_offset):
    return end_offset is not None


MUTANTS = {
    "markers are compared with >": Mutant(
        HERE + "transactions.marker_is_there", newer_only, fixed(on_transactions.test_a_late_second_abort_leaves_the_next_transaction_alone, "orders/0/"), "W26"
    ),
    "a staged COMMIT is appended by everybody who rolls forward": Mutant(
        HERE + "transactions.marker_is_there", newer_only, fixed(on_transactions.test_rolled_forward_by_two_at_once, True, "two sweeps"), "W26"
    ),
    "no re-read before a marker": Mutant(
        HERE + "transactions.prepared_guard", no_guard, on_transactions.test_a_slow_roll_forward_after_the_partition_forgot_the_producer, "W21"
    ),
    "a re-read before a marker holds after an expire": Mutant(
        HERE + "slot._continues", guarded_once, on_transactions.test_a_slow_roll_forward_after_the_partition_forgot_the_producer, "W21"
    ),
    "a re-read before the first batch holds after an expire": Mutant(
        HERE + "slot._continues", guarded_once, on_transactions.test_a_zombie_s_first_append_after_the_partition_forgot_its_producer, "W21"
    ),
    "no re-read before the first batch": Mutant(
        HERE + "append.registered_guard", no_guard, on_transactions.test_a_zombie_s_first_append_after_the_partition_forgot_its_producer, "W21"
    ),
    "an unregistered batch is taken": Mutant(
        HERE + "append._check_transaction", nothing, with_cluster(on_slot.test_append_batch_takes_only_a_registered_transaction), "W22"
    ),
    "acknowledged without a look at the boundaries": Mutant(
        HERE + "slot._not_overtaken", always(True), with_cluster(on_slot.test_a_stale_put_is_not_acknowledged_and_is_tried_again), "W14"
    ),
    "a view never grows old": Mutant(
        "txlog.protocol.context.Context.max_view_age_ms", property(lambda _: 10**15), on_load.test_a_deleted_tail_is_not_the_end_of_the_log, "R7"
    ),
    "an opening believes slots that it slept over": Mutant(
        "txlog.protocol.context.Context.max_view_age_ms", property(lambda _: 10**15), fixed(on_load.test_opening_that_slept_between_its_list_and_its_gets_lists_again, 2), "R7"
    ),
    "an unknown write is taken for a failed one": Mutant(
        HERE + "slot._create_slot", unknown_means_failed, with_cluster(on_slot.test_an_unknown_write_is_settled_in_its_own_slot, "applied", 1), "W12, W13"
    ),
    "a conflict with oneself is taken for a lost race": Mutant(
        HERE + "slot._create_slot", conflict_means_lost, fixed(on_transactions.test_init_with_a_lost_reply_anywhere, "EMPTY", "hidden retry"), "W12"
    ),
    "everybody writes the same write_id": Mutant(
        "tests.protocol.harness.Cluster.unique", lambda _: "0" * 32, fixed(on_transactions.test_two_inits_at_once, "EMPTY"), "W4, W23"
    ),
    "a refusal counts on a stale tail": Mutant(
        HERE + "slot.refresh", keep_view, on_transactions.test_every_call_works_from_any_older_views, "W15"
    ),
    "sequences are not checked": Mutant(
        HERE + "append.check_batch", lambda *_: Proceed(), with_cluster(on_slot.test_what_cannot_be_settled_is_unknown_and_the_same_call_joins_it, True), "W17"
    ),
    "a drawn producer in doubt is decided by a fold that lacks it": Mutant(
        HERE + "slot._is_known", lambda *_: True, with_cluster(on_slot.test_a_drawn_producer_s_first_batch_that_the_fold_forgot_is_unknown), "W15"
    ),
    "records are not read back before the PUT": Mutant(
        HERE + "slot.stored_record", lambda data, tp, base: record_checks.StoredRecord(record=msgspec.json.decode(data.split(b"\n")[0], type=CommitRecord, strict=False), digest="", data=data),
        with_cluster(on_slot.test_a_record_that_readers_would_refuse_is_never_written), "W5",
    ),
    "COMPLETE without compare-and-set": Mutant(
        HERE + "transactions.judge_complete", complete_anything, fixed(on_transactions.test_a_late_second_abort_leaves_the_next_transaction_alone, "__transaction_state"), "W27"
    ),
    "an end bumps the epoch twice": Mutant(
        "txlog.core.transactions._prepare", prepare_bumping(2), on_transactions.test_abort_after_the_time_out_succeeds_and_the_producer_goes_on, "W24"
    ),
    "an end does not bump the epoch": Mutant(
        "txlog.core.transactions._prepare", prepare_bumping(0), fixed(on_transactions.test_once_init_returned_nothing_of_the_old_succeeds, "send"), "W24"
    ),
    "init does not bump the epoch": Mutant(
        HERE + "transactions.judge_init", init_without_a_bump, fixed(on_transactions.test_two_inits_at_once, "EMPTY"), "W24"
    ),
    "init aborts what was decided": Mutant(
        HERE + "transactions.judge_init", init_aborting_what_is_prepared, fixed(on_transactions.test_init_over_every_state, "PREPARE_COMMIT", 2, True), "W25"
    ),
    "an abort after an attempted commit decides nothing": Mutant(
        HERE + "transactions.judge_end", abort_of_nothing_decides_nothing, fixed(on_transactions.test_abort_after_an_unknown_prepare_commit, "after the abort", False), "W30"
    ),
    "the state machine does not look at versions": Mutant(
        "txlog.core.transactions.judge_version", nothing, on_transactions.test_two_runs_of_one_query, "W31"
    ),
    "an id with a version expires": Mutant(
        HERE + "expiry.may_expire", lambda txn, now, _: txn.state in transactions.IDLE, on_transactions.test_an_id_with_a_version_stays_until_an_operator_removes_it, "W32"
    ),
    "a producer expires whatever its transaction does": Mutant(
        HERE + "expiry.IDLE", frozenset(get_args(TransactionState)), on_transactions.test_a_producer_whose_marker_is_in_but_whose_transaction_is_not_complete_is_kept, "W33"
    ),
    "parts of one partition are not merged": Mutant(
        HERE + "transactions.merge_parts", tuple, with_cluster(on_slot.test_two_parts_of_one_partition_are_one_commit), "W29"
    ),
    "rows of a deleted topic are committed": Mutant(
        HERE + "transactions.next_marker", rows_for_the_dead, on_transactions.test_staged_rows_for_a_deleted_topic_are_skipped_and_markers_are_not, "W19"
    ),
    "the LSO passes an open transaction": Mutant(
        "txlog.core.state.lso_of", blind_to_open, fixed(on_read.test_levels, "d2, d1 2, d2, c2", [0], [0, 1, 2, 3], 100), "invariant 7"
    ),
    "a marker's LSO passes an open transaction": Mutant(
        "txlog.core.append_rules.lso_of", blind_to_open, on_read.test_early_stop, "R21"
    ),
    "aborted transactions are looked for in one segment": Mutant(
        HERE + "read.collect_aborted_txns", search_one_index, fixed(on_read.test_an_abort_that_spans_segments, 2), "R10"
    ),
    "offsets follow the order of commits": Mutant(
        "txlog.core.state._Fold._commit_offset", the_last_commit_wins, with_cluster(on_groups.test_the_later_send_wins_whatever_the_order_of_the_commits), "invariant 12"
    ),
    "conditions look at committed offsets alone": Mutant(
        "txlog.core.groups.check_commit", committed_alone, on_groups.test_two_jobs_that_took_one_range_cannot_both_commit, "W34"
    ),
    "a snapshot lacks pending offsets": Mutant(
        HERE + "seal.to_snapshot", without_pending, with_cluster(on_groups.test_offsets_survive_sealing_and_cleaning), "W38"
    ),
    "the active segment is sealed too": Mutant(
        HERE + "seal.finished_segments", all_segments, on_seal.test_appends_go_on_while_somebody_seals, "W37"
    ),
}  # fmt: skip


@pytest.fixture
def broken(request: pytest.FixtureRequest) -> Iterator[Mutant]:
    mutant: Mutant = MUTANTS[request.param]
    with ExitStack() as stack:
        stack.enter_context(patch(mutant.target, mutant.becomes))
        yield mutant


@pytest.mark.timeout(60)
@pytest.mark.parametrize("broken", MUTANTS, indirect=True)
def test_a_scenario_notices(broken: Mutant) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        broken.scenario()


# Scenarios are tests of other modules and run there too. The excluded mutant is slow.
@pytest.mark.parametrize("name", [name for name in MUTANTS if name != "conditions look at committed offsets alone"])
def test_the_scenario_passes_without_the_mutant(name: str) -> None:
    MUTANTS[name].scenario()


def test_the_context_is_whole_again() -> None:
    assert Context().max_view_age_ms == 8_640_000
