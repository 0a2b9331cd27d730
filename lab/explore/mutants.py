"""Is each rule needed, and does a scenario check it? Every mutant breaks one rule of the shipped code.

A mutant is a set of patches: places, and the code that replaces them. Its scenario must fail. If no scenario fails, the
rule is not checked, or not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args
from unittest.mock import patch

import msgspec

from lab.explore import client as calls
from txlog.core import (
    append_rules,
    chain,
    cleaning,
    compaction,
    envelope,
    members,
    names,
    publication,
    row_runs,
    segments,
    snapshot_state,
    state,
    transactions,
)
from txlog.core import groups as core_groups
from txlog.core.append_rules import Duplicate, Proceed, Refuse
from txlog.core.effects import Delete, NewId, Now, PutIfAbsent, PutOutcome, ReadClocks
from txlog.core.fates import walk_batches
from txlog.core.fetch_plan import plan_fetch
from txlog.core.groups import check_commit
from txlog.core.names import TopicPartition, batch_name, boundary_name
from txlog.core.records import NO_OFFSET, Boundary, Clean, Heartbeat, TransactionEntry, TransactionState
from txlog.core.segments import collect_aborted_txns
from txlog.core.transactions import Done, Skipped, Transit, judge_end, judge_init
from txlog.core.vacuum import Kind, Why, judge_producer, superseded_parts
from txlog.errors import CommitFailedError, StorageError
from txlog.protocol import (
    clean,
    compact,
    groups,
    load,
    put,
    seal,
    slot,
    table,
    topics,
    vacuum,
    vacuum_dead,
    vacuum_published,
)
from txlog.protocol import members as member_programs
from txlog.protocol import transactions as coordinator
from txlog.protocol.context import with_view
from txlog.publication import publish

HERE = "txlog.protocol."
CORE = "txlog.core."
SCRIPT = "lab.explore.client."
_KNOWLEDGE = {"f": "files", "t": "the table", "c": "the chain"}
CLEANER = "lab.explore.cleaner."
COPY = "lab.compacting."
PUBLISH = "txlog.publication.publish."


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken rule."""

    name: str
    scenario: str
    """The scenario that must fail."""
    rules: str
    """The rules that it breaks, by their numbers in PROTOCOL.md."""
    patches: dict[str, Any]

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


CHECK_MEMBER, CHECK_GENERATION = members.check_member, core_groups._check_generation
JUDGE_HEARTBEAT, JUDGE_SYNC, REGENERATE = members.judge_heartbeat, members.judge_sync, members._regenerate
CHANGE = member_programs._change
"""What the replacements below call: the shipped functions."""


# -- the replacements -------------------------------------------------------------------------------------------------


def _nothing(*_: Any, **__: Any) -> Any:
    return None


def _no_guard(*_: Any, **__: Any) -> Any:
    def guard(_: Any) -> Any:
        return None
        yield

    return guard


def _program_of(value: Any) -> Callable[..., Any]:
    def program(*_: Any, **__: Any) -> Any:
        return value
        yield

    return program


def _commit_of_any_generation(state: Any, group: str, member_id: str, _: int, *rest: Any, **more: Any) -> Any:
    member = members.find_member(state.groups[group].entry.value, member_id)
    return None if member is None else CHECK_MEMBER(state, group, member_id, member.generation, *rest, **more)


def _commit_for_any_partition(state: Any, group: str, condition: Any, _: Any, now_ms: int) -> Any:
    return CHECK_GENERATION(state, group, condition, (), now_ms)


def _commit_of_nobodys(
    state: Any, group: str, member_id: str, generation: int, tps: Any, *rest: Any, **more: Any
) -> Any:
    others = members.owned_by_others(state.groups[group].entry.value, member_id)
    return CHECK_MEMBER(state, group, member_id, generation, others.intersection(tps), *rest, **more)


def _commit_of_the_dead(
    state: Any, group: str, member_id: str, generation: int, tps: Any, now_ms: int, **_: Any
) -> Any:
    return CHECK_MEMBER(state, group, member_id, generation, tps, now_ms, alive=True)


def _beat_of_the_dead(row: Any, *, group: str, member_id: str, now_ms: int, **_: Any) -> Any:
    return JUDGE_HEARTBEAT(row, group=group, member_id=member_id, now_ms=now_ms, alive=True)


def _sync_of_the_dead(row: Any, *, member_id: str, now_ms: int, **more: Any) -> Any:
    if row is not None:
        mine = Heartbeat(member_id=member_id, timestamp=now_ms)
        row = msgspec.structs.replace(
            row, beats=tuple(mine if each.member_id == member_id else each for each in row.beats)
        )
    return JUDGE_SYNC(row, member_id=member_id, now_ms=now_ms, **more)


def _grant_at_once(value: Any, member_id: str, still: Any) -> Any:
    taken = frozenset(still) | members.partitions_of(members.find_member(value, member_id).assigned)  # type: ignore[union-attr]
    return msgspec.structs.replace(
        value,
        members=tuple(
            msgspec.structs.replace(each, generation=value.generation, owned=members.numbers_of(taken))
            if each.member_id == member_id
            else msgspec.structs.replace(each, owned=members.numbers_of(members.partitions_of(each.owned) - taken))
            for each in value.members
        ),
    )


def _regenerate_at_once(*given: Any) -> Any:
    value = REGENERATE(*given)
    return msgspec.structs.replace(
        value,
        members=tuple(
            msgspec.structs.replace(
                each, owned=members.numbers_of(members.partitions_of(each.owned) & members.partitions_of(each.assigned))
            )
            for each in value.members
        ),
    )


def _regenerate_in_place(value: Any, *given: Any) -> Any:
    after = REGENERATE(value, *given)
    return msgspec.structs.replace(after, generation=max(value.generation, 1))


def _is_over_soon(row: Any, member: Any, now_ms: int, quiet: Any = None) -> bool:
    return now_ms >= 0


def _apply_without_beats(self: Any, row: Any) -> None:
    self.groups.pop(row.entry.group, None)
    if row.entry.value is not None:
        self.groups[row.entry.group] = row


def _change_judged_once(ctx: Any, views: Any, group: str, judge: Any) -> Any:
    judged: list[Any] = []

    def once(row: Any, now_ms: int) -> Any:
        judged.append(judge(row, now_ms))
        return judged[0]

    return (yield from CHANGE(ctx, views, group, once))


def _walk_without_aborts(**given: Any) -> Any:
    return walk_batches(**{**given, "aborted": ()})


def _without_removed(*given: Any) -> Any:
    return replace(_ORIGINAL_COMPARE(*given), removed=())


def _without_copies(*given: Any) -> Any:
    return replace(_ORIGINAL_COMPARE(*given), copies=())


def _all_old(*given: Any) -> Any:
    old, new = _ORIGINAL_SPLIT(*given)
    every = row_runs.joined(sorted((*old, *new), key=lambda run: run.first_row))
    return (every, ()) if old else (old, new)


def _newest_alone(ctx: Any, topic: Any, kept: Any, **more: Any) -> Any:
    return (yield from _ORIGINAL_KEPT(ctx, topic, replace(kept, retention_ms=0), **more))


def _created_ms(topic: str, number: int, formats: Any) -> Any:
    return (yield from _ORIGINAL_SHOWN_MS(topic, max(number - 1, 0), formats))


def _decided_ms(topic: str, number: int, formats: Any) -> Any:
    return (yield from _ORIGINAL_SHOWN_MS(topic, number, {}))


def _cut_before_the_chain(self: Any) -> Any:
    self._formats = publish.formats_of(self._runtime, self._topic)
    shown = _ORIGINAL_CUT(self)
    self._shown = lambda: shown
    return _ORIGINAL_ATTEMPT(self)


def _remember_the_cut(self: Any) -> Any:
    self.newest_cut = _ORIGINAL_CUT(self)
    return self.newest_cut


def _replaced_with_a_new_cut(self: Any, before: Any, changes: Any, operation: str, *cut: Any) -> Any:
    if operation == "replace":
        shown = self.newest_cut
        cut = (tuple(each.cut for each in shown.partitions), shown.cut_at)
    return _ORIGINAL_APPEND(self, before, changes, operation, *cut)


def _won_whoever_won(ctx: Any, before: Any, made: Any) -> Any:
    data = envelope.encode(made)
    yield PutIfAbsent(names.publication_path(made.topic, made.number), data)
    return publication.fold(before, made, envelope.digest(data))


def _won_if_unknown(ctx: Any, before: Any, made: Any) -> Any:
    """Takes a publication of unknown outcome for its own, though another publisher may have that number."""
    data = envelope.encode(made)
    outcome = yield PutIfAbsent(names.publication_path(made.topic, made.number), data)
    return None if outcome is PutOutcome.CONFLICT else publication.fold(before, made, envelope.digest(data))


_ORIGINAL_COMPARE, _ORIGINAL_SPLIT = publication.compare, publication._split
_ORIGINAL_KEPT, _ORIGINAL_SHOWN_MS = vacuum_published.kept_files, vacuum_published._shown_ms
_ORIGINAL_CUT, _ORIGINAL_ATTEMPT, _ORIGINAL_APPEND = (
    publish._Attempt._shown,
    publish._Attempt.run,
    publish._Attempt._append,
)


def _newer_only(folded: state.PartitionState, pid: int, epoch: int) -> bool:
    entry = folded.producers.get(pid)
    return entry is not None and entry.producer_epoch > epoch


def _keep_view(ctx: Any, view: Any, *_: Any) -> Any:
    return view
    yield


def _complete_anything(current: Any, txn: Any, *, now_ms: int, write_id: str) -> Any:
    return Transit(msgspec.structs.replace(txn, updated_at=now_ms, write_id=write_id))


def _known_by_anybody(current: Any, txn: Any) -> bool:
    return current.state in transactions.PREPARED


def _remove_by_any_instance(ctx: Any, views: Any, txn: Any) -> Any:
    return (
        yield from table.put_tombstone(ctx, views, txn.transactional_id, lambda current, _: current.state != "ONGOING")
    )


def _first_marker(ctx: Any, views: Any, prepare: Any) -> Any:
    first = msgspec.structs.replace(prepare.value, partitions=prepare.value.partitions[:1])
    return (yield from _ORIGINAL_MARKERS(ctx, views, msgspec.structs.replace(prepare, value=first)))


def _all_markers(ctx: Any, views: Any, prepare: Any) -> Any:
    views = yield from _ORIGINAL_MARKERS(ctx, views, prepare)
    return (yield from coordinator._put_complete(ctx, views, coordinator._completed(prepare.value)))


_ORIGINAL_MARKERS = coordinator._put_markers


def _prepare_bumping(by: int) -> Any:
    original = transactions._prepare

    def prepare(current: Any, *args: Any, **kwargs: Any) -> Any:
        return msgspec.structs.replace(original(current, *args, **kwargs), producer_epoch=current.producer_epoch + by)

    return prepare


def _prepare_dropping_partitions(current: Any, *args: Any, **kwargs: Any) -> Any:
    made = _ORIGINAL_PREPARE(current, *args, **kwargs)
    return msgspec.structs.replace(made, partitions=made.partitions[:1])


_ORIGINAL_PREPARE = transactions._prepare


def _init_aborting_what_is_prepared(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "PREPARE_COMMIT":
        return Transit(msgspec.structs.replace(current, state="PREPARE_ABORT", write_id=kwargs["write_id"]))
    return judge_init(current, **kwargs)


def _init_over_what_is_prepared(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state.startswith("PREPARE"):
        current = msgspec.structs.replace(current, state="COMPLETE_" + current.state[8:])
    return judge_init(current, **kwargs)


def _init_over_what_is_open(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "ONGOING":
        current = msgspec.structs.replace(current, state="COMPLETE_ABORT")
    return judge_init(current, **kwargs)


def _init_without_a_bump(current: Any, **kwargs: Any) -> Any:
    verdict = judge_init(current, **kwargs)
    if isinstance(verdict, Transit) and verdict.to.state == "EMPTY" and current is not None:
        return Transit(msgspec.structs.replace(verdict.to, producer_epoch=current.producer_epoch))
    return verdict


def _time_out_of_decisions(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "PREPARE_COMMIT":
        return Transit(
            msgspec.structs.replace(
                current, state="PREPARE_ABORT", last_outcome="abort", staged=(), write_id=kwargs["write_id"]
            )
        )
    return transactions.judge_abort_by_others(current, **kwargs)


def _abort_of_nothing_decides_nothing(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    if outcome == "abort" and current is not None and current.state in transactions.IDLE:
        return Done(current)
    return judge_end(current, txn, outcome, **kwargs)


def _end_by_anybody(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    if (
        current is not None
        and current.state in transactions.IDLE | {"ONGOING"}
        and current.producer_epoch > txn.producer_epoch
    ):
        txn = current
    return judge_end(current, txn, outcome, **kwargs)


def _end_by_the_version_of_init(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    version = kwargs.pop("version", None)
    if version is not None and current is not None and current.producer_epoch == txn.producer_epoch:
        if txn.txn_version >= version.version:
            return Skipped(current)
        # Ignores the record that it replaces: only the record that init found counts.
        current = msgspec.structs.replace(current, txn_version=-1)
    return judge_end(current, txn, outcome, version=version, **kwargs)


def _init_remembering_the_version_before(
    ctx: Any, views: Any, transactional_id: str, timeout_ms: int, **kw: Any
) -> Any:
    views, view = yield from load.get_fresh_view(ctx, views, table.state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    before = row.value.txn_version if row is not None else -1
    views, txn = yield from _ORIGINAL_INIT(ctx, views, transactional_id, timeout_ms, **kw)
    return views, msgspec.structs.replace(txn, txn_version=before)


_ORIGINAL_INIT = coordinator.init_producer


def _unknown_means_failed(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + batch_name(stored.record.base_offset), stored.data)
    if outcome is PutOutcome.UNKNOWN:
        raise StorageError("a time-out, so it failed")
    return stored if outcome is PutOutcome.WRITTEN else (yield from load.read_slot(tp, stored.record.base_offset))


def _conflict_means_lost(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + batch_name(stored.record.base_offset), stored.data)
    if outcome is PutOutcome.WRITTEN:
        return stored
    held = yield from load.read_slot(tp, stored.record.base_offset)
    if held is None:
        return (yield from _ORIGINAL_CREATE(ctx, view, stored, write_id))
    return replace(held, record=msgspec.structs.replace(held.record, write_id="somebody else's"))


def _unknown_means_free(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    """Does not look for an unknown write in its own slot: the loop continues as if another writer had the slot."""
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + batch_name(stored.record.base_offset), stored.data)
    if outcome is PutOutcome.UNKNOWN:
        return None
    return stored if outcome is PutOutcome.WRITTEN else (yield from load.read_slot(tp, stored.record.base_offset))


def _slot_alone_decides(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    """After an unknown outcome, trusts the record in the slot, wherever the boundary is."""
    tp, number = view.topic_partition, stored.record.base_offset
    while True:
        outcome = yield PutIfAbsent(tp.folder + batch_name(number), stored.data)
        if outcome is PutOutcome.WRITTEN:
            return stored if (yield from slot._not_overtaken(ctx, view, number)) else None
        holder = yield from load.read_slot(tp, number)
        if holder is not None:
            return holder


_ORIGINAL_CREATE = slot._create_slot


def _transit_without_ids(ctx: Any, views: Any, transactional_id: str, judge: Any) -> Any:
    def same_id(folded: Any, current: Any, now_ms: int, _: str) -> Any:
        return judge(folded, current, now_ms, "0" * 32)

    tp = table.state_partition(ctx, transactional_id)
    views, view = yield from load.get_view(ctx, views, tp)

    def decide(folded: Any, now_ms: int) -> Any:
        row = folded.transactions.get(transactional_id)
        judgement = same_id(folded, row.value if row is not None else None, now_ms, "")
        if not isinstance(judgement, Transit):
            return slot.Stop(judgement)
        entry = TransactionEntry(key=transactional_id, value=judgement.to)
        return table._table_record(ctx, folded, entry, now_ms, "0" * 32)

    view, outcome = yield from slot.append_slot(ctx, view, decide, write_id="0" * 32)
    result = (
        outcome.value if isinstance(outcome, slot.Stop) else table.Written(view.state.transactions[transactional_id])
    )
    return with_view(views, view), result


def _register_in_memory(ctx: Any, views: Any, txn: Any, partitions: Any, version: Any = None) -> Any:
    return views, msgspec.structs.replace(txn, partitions=tuple(sorted({*txn.partitions, *partitions})))
    yield


def _check_without_epochs(folded: Any, draft: Any) -> Any:
    verdict = append_rules.check_batch(folded, draft)
    entry = folded.producers.get(draft.producer_id)
    if isinstance(verdict, Refuse) and entry is not None and draft.producer_epoch < entry.producer_epoch:
        return Proceed()
    return verdict


def _check_without_duplicates(folded: Any, draft: Any) -> Any:
    verdict = append_rules.check_batch(folded, draft)
    if isinstance(verdict, Duplicate):
        forgotten = {pid: msgspec.structs.replace(entry, batches=()) for pid, entry in folded.producers.items()}
        return append_rules.check_batch(replace(folded, producers=forgotten), draft)
    return verdict


def _committed_alone(folded: Any, entries: Any, **kwargs: Any) -> Any:
    return check_commit(replace(folded, pending={}), entries, **kwargs)


def _plain_commits_are_free(folded: Any, entries: Any, **kwargs: Any) -> Any:
    return None if kwargs["producer_id"] is None else check_commit(folded, entries, **kwargs)


def _staged_condition(offset: int | None, *, expected: bool, group: str = "g", staged: bool = False) -> Any:
    """Checks a condition only when the offsets are sent. They are staged, and the commit does not check them again."""

    def call(client: calls.Client) -> Any:
        tp = TopicPartition("orders", 0)
        _, found = yield from groups.fetch_offsets(client.ctx, client.views, group, [tp])
        held = found[tp]
        if (held.offset if held is not None else None) != client.started:
            return (yield from calls._failed(client, CommitFailedError("another job took this range")))
        return (yield from _ORIGINAL_SEND_OFFSETS(offset, expected=False, group=group, staged=True)(client))

    return call


_ORIGINAL_SEND_OFFSETS = calls.send_offsets


def _the_last_commit_wins(self: Any, row: Any) -> None:
    if row.entry.value is None:
        self.committed.pop(row.entry.key, None)
    else:
        self.committed[row.entry.key] = row


def _offsets_at_once(self: Any, record: Any, pending_of: int | None) -> None:
    _ORIGINAL_ENTRIES(self, record, None)


_ORIGINAL_ENTRIES = state._Fold._apply_entries


def _apply_with_a_clock(self: Any, stored: Any) -> None:
    _ORIGINAL_APPLY(self, stored)
    for pid, entry in list(self.producers.items()):
        if stored.record.timestamp - entry.timestamp >= 3_600_000:
            del self.producers[pid]
            self.opened.pop(pid, None)


_ORIGINAL_APPLY = state._Fold.apply


def _unlinked(self: Any, record: Any) -> None:
    previous, self.last_digest = self.last_digest, record.previous
    try:
        _ORIGINAL_LINK(self, record)
    finally:
        self.last_digest = previous


_ORIGINAL_LINK = state._Fold._check_link


def _blind_to_open(producers: Any, next_offset: int, log_start_offset: int, but: int | None = None) -> int:
    return next_offset


def _search_one_index(txns: Any, **kwargs: Any) -> Any:
    return replace(collect_aborted_txns(txns, **kwargs), is_complete=True)


def _search_until_this_marker(txns: Any, *, fetch_offset: int, upper_bound_offset: int) -> Any:
    """Stops at the first marker at or behind the end of the range."""
    found = []
    for txn in txns:
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
            found.append(txn)
        if txn.last_offset >= upper_bound_offset:
            return replace(
                collect_aborted_txns((), fetch_offset=0, upper_bound_offset=1), aborted=tuple(found), is_complete=True
            )
    return replace(collect_aborted_txns((), fetch_offset=0, upper_bound_offset=1), aborted=tuple(found))


def _index_of_those_that_began_here(tp: Any, records: Any, last_digest: str, file: Any) -> Any:
    index, txn_index = _ORIGINAL_INDEX(tp, records, last_digest, file)
    if txn_index is None:
        return index, None
    kept = tuple(txn for txn in txn_index.aborted if txn.first_offset >= index.base_offset)
    index = msgspec.structs.replace(index, aborted_txns=len(kept))
    return index, msgspec.structs.replace(txn_index, aborted=kept) if kept else None


_ORIGINAL_INDEX = segments.build_index


def _abort_without_its_first_offset(folded: Any, draft: Any, **kwargs: Any) -> Any:
    return msgspec.structs.replace(append_rules.next_marker(folded, draft, **kwargs), first_offset=NO_OFFSET)


def _without_pending(folded: Any) -> Any:
    return msgspec.structs.replace(snapshot_state.to_snapshot(folded), pending=())


def _without_producers(folded: Any) -> Any:
    return msgspec.structs.replace(snapshot_state.to_snapshot(folded), producers=())


def _no_snapshots(ctx: Any, path: str, data: bytes) -> Any:
    if not path.endswith(".snapshot"):
        yield from put.put_pure(ctx, path, data)


def _all_segments(view: Any) -> Any:
    finished = _ORIGINAL_FINISHED(view)
    active = tuple(each for each in view.tail if each.record.segment_base == view.state.segment_base)
    return [*finished, active] if active else finished


_ORIGINAL_FINISHED = seal.finished_segments


def _seal_with_one_name(ctx: Any, view: Any, stored: Any) -> Any:
    """Lets every sealer of a segment give its file the same name."""
    program = _ORIGINAL_SEAL(ctx, view, stored)
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = "5ea1" * 8 if isinstance(effect, NewId) else (yield effect)


_ORIGINAL_SEAL = seal._seal_one


_ORIGINAL_LISTING = chain.parse_listing


def _without_boundaries(listed: Any, folder: str = "") -> Any:
    return _ORIGINAL_LISTING([name for name in listed if not name.endswith(".boundary")], folder)


def _without_clean(listed: Any, folder: str = "") -> Any:
    return replace(_ORIGINAL_LISTING(listed, folder), clean=None)


def _refresh_by_name(ctx: Any, view: Any, max_age_ms: int | None = None) -> Any:
    """Accepts a slot that is found by name, however long the request took."""
    if view.age_ms((yield ReadClocks())) >= ctx.max_view_age_ms:
        return (yield from load.load(ctx, view.topic_partition))
    while (stored := (yield from load.read_slot(view.topic_partition, view.state.next_offset))) is not None:
        view = view.extended(stored)
    return view


def _unproven(_: Any, view: Any) -> Any:
    return view
    yield


def _unchecked(_: Any) -> Any:
    return None
    yield


def _loaded(ctx: Any, view: Any) -> Any:
    return (yield from load.load(ctx, view.topic_partition))


def _stubborn(ctx: Any, view: Any, find: Any) -> Any:
    return view, (yield from find(view))


def _complete_first(ctx: Any, views: Any, prepare: Any) -> Any:
    views = yield from coordinator._put_complete(ctx, views, coordinator._completed(prepare.value))
    return (yield from _ORIGINAL_ROLL(ctx, views, prepare))


_ORIGINAL_ROLL = coordinator.roll_forward


def _condition_unchecked(folded: Any, entries: Any, **kwargs: Any) -> Any:
    wrong = check_commit(folded, entries, **kwargs)
    return None if isinstance(wrong, CommitFailedError) else wrong


def _rows_for_the_dead(folded: Any, draft: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_MARKER(replace(folded, deleted_version=0), draft, **kwargs)


_ORIGINAL_MARKER = append_rules.next_marker


def _check_of_the_living(folded: Any, draft: Any) -> Any:
    return append_rules.check_batch(replace(folded, deleted_version=0), draft)


def _lso_below_the_start(producers: Any, next_offset: int, log_start_offset: int, but: int | None = None) -> int:
    return _ORIGINAL_LSO(producers, next_offset, 0, but)


_ORIGINAL_LSO = state.lso_of


def _closed_by_retention(self: Any, stored: Any) -> None:
    _ORIGINAL_APPLY(self, stored)
    for pid, entry in self.producers.items():
        if 0 <= entry.txn_first_offset < self.log_start_offset:
            self.producers[pid] = msgspec.structs.replace(entry, txn_first_offset=-1)
            self.opened.pop(pid, None)


def _never_opened_anew(self: Any, stored: Any) -> None:
    """Keeps the transaction's first offset below the log start."""
    before = self.producers.get(stored.record.producer_id)
    _ORIGINAL_APPLY(self, stored)
    if stored.record.kind == "data" and before is not None and before.txn_first_offset >= 0:
        after = self.producers[before.producer_id]
        old = msgspec.structs.replace(after, txn_first_offset=before.txn_first_offset)
        self.producers[before.producer_id] = self.opened[before.producer_id] = old


def _end_without_refusal(
    ctx: Any, views: Any, txn: Any, commit: Any, staged: Any = (), version: Any = None, refusal: Any = None
) -> Any:
    return _ORIGINAL_END(ctx, views, txn, commit, staged, version)


_ORIGINAL_END = coordinator.end_transaction


def _newest_of_the_name(topic: str, schema_id: int, known: Any) -> Any:
    newest: Any = yield from _ORIGINAL_FIND(topic)
    return newest if not newest.deleted else (yield from _ORIGINAL_REFRESH(topic, schema_id, known))


_ORIGINAL_FIND, _ORIGINAL_REFRESH = topics.find_topic, topics.refresh_topic_of_rows


def _may_expire_with_versions(txn: Any, now_ms: int, constants: Any) -> bool:
    return txn.state in transactions.IDLE and txn.updated_at <= now_ms - constants.transactional_id_expiration_ms


def _may_expire_after_hanging(txn: Any, now_ms: int, constants: Any) -> bool:
    return txn.txn_version < 0 and _may_expire_with_versions(txn, now_ms, constants)


def _index_without_aborts(tp: Any, run: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Drops the transactions of the aborted rows that the merge removes, although rows in older segments may belong to them."""
    return _ORIGINAL_MERGED(tp, run, [(index, ()) for index, _ in inputs], *args, **kwargs)


def _index_of_what_began_above_the_start(tp: Any, run: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Forgets a transaction that began below the log start, even if parts of it are above."""
    start = kwargs["log_start_offset"]
    kept = [(index, tuple(txn for txn in txns if txn.first_offset >= start)) for index, txns in inputs]
    return _ORIGINAL_MERGED(tp, run, kept, *args, **kwargs)


def _index_of_all_rows(tp: Any, run: Any, inputs: Any, aborted: Any, *args: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_MERGED(tp, run, inputs, (), *args, **kwargs)


_ORIGINAL_MERGED = cleaning.merged_index


def _fetch_of_all_rows(**kwargs: Any) -> Any:
    return plan_fetch(**{**kwargs, "aborted": ()})


def _clean_whatever_is_current(before: Any, listing: Any, run: Any, inputs: Any, now_ms: int) -> Any:
    """Lets the run replace everything that it overlaps."""
    others = [
        each
        for each in (before.runs if before is not None else ())
        if each.end_offset <= run.base_offset or run.end_offset <= each.base_offset
    ]
    runs = tuple(sorted((*others, run), key=lambda each: each.base_offset))
    return Clean(number=0 if before is None else before.number + 1, runs=runs, created_at=now_ms)


def _named_by_the_put(ctx: Any, merge: Any) -> Any:
    """Assumes that a number that was written took effect, without another LIST."""
    program = _ORIGINAL_NAME_RUN(ctx, merge)
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield effect
        if isinstance(effect, PutIfAbsent) and answer is PutOutcome.WRITTEN:
            return True


_ORIGINAL_NAME_RUN = clean._name_run


def _named_first(ctx: Any, merge: Any, file: Any) -> Any:
    took_effect = yield from _ORIGINAL_NAME_RUN(ctx, merge)
    yield from _ORIGINAL_PUBLISH(ctx, merge, file)
    return took_effect


_ORIGINAL_PUBLISH = clean.publish


def _merges_over_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_CHOICE(walk, indexes, **{**kwargs, "last_stable_offset": 2**62})


_ORIGINAL_CHOICE = cleaning.choose_merges


def _run_with_one_name(inputs: Any, unique: str) -> Any:
    return _ORIGINAL_RUN(inputs, "5ea1" * 8)


_ORIGINAL_RUN = cleaning.merged_run


def _distinct_by_the_table_alone(merge: Any, entry: Any) -> bool:
    return bool(_ORIGINAL_DISTINCT(replace(merge, distinct_from_ms=2**62, removed_from_ms=2**62), entry))


def _distinct_by_age_alone(merge: Any, entry: Any) -> bool:
    return bool(_ORIGINAL_DISTINCT(replace(merge, settled={}, removed_from_ms=2**62), entry))


def _settled_by_now(table: Any, indexes: Any, before_ms: int) -> Any:
    return _ORIGINAL_SETTLED(table, (), 2**62)


_ORIGINAL_SETTLED = cleaning.settled_epochs


_ORIGINAL_DISTINCT = clean.Merge.keeps_distinct


def _dirt_with_aborted_rows(plan: compact.CompactionPlan) -> Any:
    return _ORIGINAL_DIRT(replace(plan, aborted=()))


_ORIGINAL_DIRT: Any = compact.CompactionPlan.dirty_pieces.fget  # type: ignore[attr-defined]


def _cleanable_beyond_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_CLEANABLE(walk, indexes, **{**kwargs, "last_stable_offset": 2**62, "complete": None})


def _cleanable_below_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    """Ignores what the table of transactions shows."""
    return _ORIGINAL_CLEANABLE(walk, indexes, **{**kwargs, "complete": None})


def _cleanable_from_the_first_dirt(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    """Skips a segment with nothing to clean, wherever it is."""
    found = _ORIGINAL_CLEANABLE(walk, indexes, **kwargs)

    def has_dirt(name: Any) -> bool:
        compacted = indexes[name].compacted
        due = () if compacted is msgspec.UNSET else compacted.tombstones
        return bool(
            name.end_offset > found.first_dirty_offset or any(item.delete_at <= kwargs["now_ms"] for item in due)
        )

    first = next((at for at, name in enumerate(found.names) if has_dirt(name)), len(found.names))
    return replace(found, names=found.names[first:], is_due=found.is_due and first < len(found.names))


_ORIGINAL_CLEANABLE = compaction.find_cleanable


class _HastySelection(compaction.Selection):
    """Removes a tombstone together with the rows that it supersedes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_due[:] = True


def _end_of_all(names: Any, **_: Any) -> Any:
    """Treats a full map as a map of everything."""
    return tuple(names), names[-1].end_offset


def _index_without_emptied_batches(*args: Any, **kwargs: Any) -> Any:
    index, txn_index = _ORIGINAL_MERGED(*args, **kwargs)
    return msgspec.structs.replace(index, entries=tuple(each for each in index.entries if each.records)), txn_index


def _all_was_compacted(inputs: Any) -> Any:
    found = _ORIGINAL_COMPACTED(inputs)
    return found if found is msgspec.UNSET else msgspec.structs.replace(found, end_offset=inputs[-1].end_offset)


_ORIGINAL_COMPACTED = cleaning._compacted


def _vacuum_knowing(order: str) -> Any:
    """Returns a vacuum that reads files (f), the table (t) and the chain (c) in that order."""

    def vacuum_topics(ctx: Any, views: Any, topics: Any, *, dry_run: bool = False, **_: Any) -> Any:
        now_ms = yield from vacuum.read_store_clock()
        files: Any = None
        table_rows: Any = None
        deleted: list[Any] = []
        for step in tuple(order):
            if step == "f":
                files = yield from vacuum.list_files(topics[0])
            elif step == "t":
                views, table_rows = yield from vacuum.read_table(ctx, views)
            else:
                tp = TopicPartition(topics[0], 0)
                views, known = yield from _ORIGINAL_KNOW(ctx, views, tp)
                views = {**views, _HELD: known}
        views, plans = yield from vacuum.plan_topic(ctx, views, files, table_rows, now_ms=now_ms)
        for plan in plans:
            deleted += yield from vacuum.sweep(ctx, plan, dry_run=False, sizes=False)
        return {tp: view for tp, view in views.items() if tp != _HELD}, tuple(deleted)

    return {CLEANER + "vacuum_topics": vacuum_topics, HERE + "vacuum.read_chain": _known_before}


def _known_before(ctx: Any, views: Any, tp: Any) -> Any:
    if _HELD in views:
        return views, views[_HELD]
    return (yield from _ORIGINAL_KNOW(ctx, views, tp))


_HELD = TopicPartition("held", 0)
_ORIGINAL_KNOW = vacuum_dead.read_chain


def _dead_at_a_later_epoch(producer_id: int, producer_epoch: int, table: Any) -> Any:
    txn = table.get(producer_id)
    if txn is not None and txn.producer_epoch > producer_epoch:
        return Why.LATER_EPOCH
    return _ORIGINAL_JUDGE(producer_id, producer_epoch, table)


def _dead_if_nothing_names_it(producer_id: int, producer_epoch: int, table: Any) -> Any:
    return Why.LATER_EPOCH


_ORIGINAL_JUDGE = judge_producer


def _drawn_by_age(modified_ms: Any, last_timestamp_ms: int, now_ms: int, grace_ms: int) -> Any:
    return Why.DRAWN if now_ms - modified_ms > grace_ms else None


def _own_clock() -> Any:
    return (yield Now())


def _since_by_the_monotonic_clock(now: Any, earlier: Any) -> int:
    return int(now.monotonic_ms - earlier.monotonic_ms)


def _since_by_the_wall_clock(now: Any, earlier: Any) -> int:
    return int(now.wall_ms - earlier.wall_ms)


def _boundary_last(ctx: Any, plan: Any, *, dry_run: bool, sizes: bool) -> Any:
    """Deletes the slots before it raises the boundary."""
    bound = plan.boundary if plan.boundary is not None else plan.folder.listing.boundary
    for dead in plan.dead:
        if dead.waits_until_ms is None and (
            dead.kind is not Kind.SLOT or int(dead.path.rpartition("/")[2].partition(".")[0]) < bound
        ):
            yield Delete(dead.path)
    yield from vacuum._raise_boundary(plan)
    return ()


def _boundary_unseen(plan: Any) -> Any:
    """Does not check that the created object exists."""
    if plan.boundary is not None:
        tp = plan.topic_partition
        yield PutIfAbsent(
            tp.folder + boundary_name(plan.boundary), envelope.encode(Boundary(offset=plan.boundary, created_at=0))
        )
        return plan.boundary
    return plan.folder.listing.boundary


_ORIGINAL_BOUNDARY = vacuum._next_boundary


def _boundary_at_once(tp: Any, known: Any, now_ms: int, grace_ms: int) -> Any:
    return (yield from _ORIGINAL_BOUNDARY(tp, known, now_ms, 0))


def _no_wait(since_ms: Any, now_ms: int, grace_ms: int) -> Any:
    return None


def _superseded_with_its_rows(folder: Any, runs: Any, gone_below: int, named: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_SUPERSEDED(folder, runs, gone_below, (), **kwargs)


_ORIGINAL_SUPERSEDED = superseded_parts


def _all_but_current(folder: Any, runs: Any, gone_below: int, named: Any, **kwargs: Any) -> Any:
    """Treats a run that no `.clean` names as dead, although its cleaner may be about to publish it."""
    found = _ORIGINAL_SUPERSEDED(folder, runs, gone_below, named, **kwargs)
    current = {run.name for run in runs}
    lost = {part: Why.LOST_RUN for part in folder.parts if part.segment.generation and part.segment not in current}
    return {**found, **lost}


def _guarded_once(view: Any, end_offset: int | None) -> bool:
    return end_offset is not None


def _no_guard_of_age(ctx: Any, tp: Any, begun_ms: int) -> Any:
    return _no_guard()


def _hidden_by_own_epoch(cut: Any, batch: Any) -> bool:
    mine = bool(batch.transactional or batch.kind == "commit")
    return mine and not bool(cut.shows(batch.producer_id, batch.producer_epoch))


def _shown_if_unknown(cut: Any, producer_id: int, marker_epoch: int) -> bool:
    return bool(marker_epoch <= cut.settled.get(producer_id, marker_epoch))


__all__ = ["MUTANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        # The slot
        ("sequences are not checked", "slot", "W17", {HERE + "append.check_batch": lambda *_: Proceed()}),
        ("a duplicate is not recognised", "slot", "W16, W17", {HERE + "append.check_batch": _check_without_duplicates}),
        ("an unknown write is taken for a failed one", "slot", "W12, W13", {HERE + "slot._create_slot": _unknown_means_failed}),
        ("a conflict with oneself is taken for a lost race", "slot", "W12", {HERE + "slot._create_slot": _conflict_means_lost}),
        ("a refusal counts on a stale tail", "slot", "W15", {HERE + "slot.refresh": _keep_view}),
        ("the digest of the record before is not checked", "swapped", "R6", {CORE + "state._Fold._check_link": _unlinked}),
        ("acknowledged without the boundary check", "stale", "W14", {HERE + "slot._not_overtaken": _program_of(True)}),
        ("a view never grows old", "stale", "W14, R7", {HERE + "context.Context.max_view_age_ms": property(lambda _: 10**15)}),
        ("boundaries are ignored", "stale", "R5", {CORE + "chain.parse_listing": _without_boundaries}),
        ("what is found by name counts, however old the view", "deleted tail", "R7", {HERE + "slot.refresh": _refresh_by_name}),
        ("the slot is read instead of the state", "stale", "W12", {HERE + "slot._create_slot": _slot_alone_decides}),
        ("a drawn producer in doubt is decided by a fold that lacks it", "forgotten", "W15", {HERE + "slot._is_known": lambda *_: True}),
        # Fencing, registration, expiry
        ("epochs are not checked", "fencing", "W17", {HERE + "append.check_batch": _check_without_epochs}),
        ("partitions are registered in memory", "fencing", "W22", {HERE + "transactions.add_partitions": _register_in_memory, HERE + "append.registered_guard": _no_guard}),
        ("no re-read before the first batch", "expiry", "W21", {HERE + "append.registered_guard": _no_guard}),
        ("the re-read is of what is held", "expiry", "W21", {HERE + "table.get_fresh_view": load.get_view}),
        ("the re-read holds after an expire", "expiry", "W21", {HERE + "slot._continues": _guarded_once}),
        ("the re-read before a marker holds after an expire", "slow marker", "W21", {HERE + "slot._continues": _guarded_once}),
        ("no re-read before a marker", "slow marker", "W21", {HERE + "transactions.prepared_guard": _no_guard}),
        ("a producer expires whatever its transaction does", "slow marker", "W33", {HERE + "expiry.IDLE": frozenset(get_args(TransactionState))}),
        ("producers expire by the clock", "pause", "W33", {CORE + "state._Fold.apply": _apply_with_a_clock}),
        # Epochs and decisions
        ("markers are compared with >", "late abort", "W26", {HERE + "transactions.marker_is_there": _newer_only}),
        ("a staged COMMIT is appended by everybody who rolls forward", "staged", "W26", {HERE + "transactions.marker_is_there": _newer_only}),
        ("COMPLETE without compare-and-set", "late abort", "W27", {HERE + "transactions.judge_complete": _complete_anything}),
        ("COMPLETE before the markers", "commit", "W27", {HERE + "transactions.roll_forward": _complete_first}),
        ("anybody may pass over what is prepared", "late abort", "W25", {CORE + "transactions.is_completed_by": _known_by_anybody}),
        ("anybody may remove what is prepared", "forgets", "W25", {HERE + "expiry.remove_own": _remove_by_any_instance}),
        ("an end returns before the last marker", "goes on", "W27", {HERE + "transactions._put_markers": _first_marker, HERE + "transactions.roll_forward": _all_markers}),
        ("a COMPLETE is written over a newer record", "completes", "W27", {HERE + "transactions.judge_complete": _complete_anything}),
        ("a decision drops partitions", "commit", "W25", {CORE + "transactions._prepare": _prepare_dropping_partitions}),
        ("an end does not bump the epoch", "fencing", "W24", {CORE + "transactions._prepare": _prepare_bumping(0)}),
        ("an end bumps the epoch twice", "late abort", "W24", {CORE + "transactions._prepare": _prepare_bumping(2)}),
        ("init does not bump the epoch", "inits", "W24", {HERE + "transactions.judge_init": _init_without_a_bump}),
        ("an epoch is owned without write_id", "inits", "W23", {HERE + "transactions.transit": _transit_without_ids}),
        ("init aborts what was decided", "commit", "W25", {HERE + "transactions.judge_init": _init_aborting_what_is_prepared}),
        ("init passes over what was decided", "commit", "W25", {HERE + "transactions.judge_init": _init_over_what_is_prepared}),
        ("init leaves an open transaction", "fencing", "invariant 4", {HERE + "transactions.judge_init": _init_over_what_is_open}),
        ("the time-out revokes a decision", "staged", "W25, W28", {HERE + "transactions.judge_abort_by_others": _time_out_of_decisions}),
        ("an end does not compare epochs", "fencing", "invariant 8", {HERE + "transactions.judge_end": _end_by_anybody}),
        ("an abort is answered after an attempted commit", "unsure", "W30", {HERE + "transactions.judge_end": _abort_of_nothing_decides_nothing}),
        ("versions are not compared", "version", "W31", {CORE + "transactions.judge_version": _nothing}),
        ("a version is checked before init", "version", "W31", {HERE + "transactions.init_producer": _init_remembering_the_version_before, HERE + "transactions.judge_end": _end_by_the_version_of_init}),
        ("an id with a version expires", "replay", "W32", {HERE + "expiry.may_expire": _may_expire_with_versions}),
        # Offsets
        ("conditions look at committed offsets alone", "offsets", "W34", {CORE + "groups.check_commit": _committed_alone}),
        ("the starting offset is not compared", "offsets", "W34", {CORE + "groups.check_commit": _condition_unchecked}),
        ("conditional offsets are staged", "offsets", "W34", {SCRIPT + "send_offsets": _staged_condition}),
        ("a plain commit overtakes conditional offsets", "pending", "W35", {CORE + "groups.check_commit": _plain_commits_are_free}),
        ("offsets follow the order of commits", "order", "invariant 12", {CORE + "state._Fold._commit_offset": _the_last_commit_wins}),
        ("offsets do not wait for their transaction", "pending", "W34", {CORE + "state._Fold._apply_entries": _offsets_at_once}),
        ("generations are not compared", "generations", "W34, W36", {CORE + "groups._check_generation": _nothing}),
        # Members of a group
        ("the generation of a member is not compared", "members", "W55", {CORE + "groups.check_member": _commit_of_any_generation}),
        ("any member commits for any partition", "members", "W55", {CORE + "groups._check_generation": _commit_for_any_partition}),
        ("a member commits what nobody owns", "members", "W55", {CORE + "groups.check_member": _commit_of_nobodys}),
        ("a consumer commits beside members", "outsider", "W55", {CORE + "groups._check_empty": _nothing}),
        ("a commit does not look at the session", "member sleeps", "W54", {CORE + "groups.check_member": _commit_of_the_dead}),
        ("a heartbeat wakes the dead", "member sleeps", "W54", {CORE + "members.judge_heartbeat": _beat_of_the_dead}),
        ("a sync wakes the dead", "member sleeps", "W54", {CORE + "members.judge_sync": _sync_of_the_dead}),
        ("a member takes what another one still owns", "members", "W52", {CORE + "members._grant": _grant_at_once}),
        ("a join takes from the others what is not assigned to them", "members", "W52", {CORE + "members._regenerate": _regenerate_at_once}),
        ("live members are removed", "members", "W53", {CORE + "members.is_over": _is_over_soon}),
        ("a group entry forgets heartbeats", "two leaders", "W53", {CORE + "state._Fold._apply_group": _apply_without_beats}),
        ("a change of the members is judged once", "two leaders", "W51", {HERE + "members._change": _change_judged_once}),
        ("a join keeps the generation", "members", "W51", {CORE + "members._regenerate": _regenerate_in_place}),
        ("the bearer before stays a member", "static member", "W51", {CORE + "members._is_bearer": lambda member, joining: False}),
        # Retention and deletion
        ("the LSO lies below the log start", "retention", "invariant 7", {CORE + "state.lso_of": _lso_below_the_start}),
        ("retention closes a transaction", "retention", "invariant 7", {CORE + "state._Fold.apply": _closed_by_retention}),
        ("rows of a deleted topic are committed", "deletion", "W19", {HERE + "transactions.next_marker": _rows_for_the_dead}),
        ("a staged commit decides whatever became of its topics", "made anew", "W46", {HERE + "transactions.end_transaction": _end_without_refusal}),
        ("a topic that was made anew is taken for the old one", "made anew", "W46", {HERE + "topics.refresh_topic_of_rows": _newest_of_the_name}),
        ("a transaction of a deleted topic holds the LSO", "open over", "invariant 7", {CORE + "state._holds_back": lambda entry, _: entry.txn_first_offset >= 0}),
        ("a transaction goes on in a topic made anew as if it had never ended", "open over", "invariant 7", {CORE + "state._Fold.apply": _never_opened_anew}),
        ("a deleted topic still takes batches", "deletion", "W19", {HERE + "append.check_batch": _check_of_the_living}),
        # Snapshots
        ("a snapshot shows all that is prepared", "snapshot", "invariant 17", {HERE + "snapshot.marker_is_there": lambda *_: True}),
        ("a snapshot shows all below the log ends", "snapshot", "invariant 17", {CORE + "snapshots.SnapshotCut.shows": lambda *_: True}),
        ("a snapshot takes rows for their marker", "snapshot", "invariant 17", {CORE + "snapshots.SnapshotCut.hides": _hidden_by_own_epoch}),
        ("a snapshot shows ids that its table lacks", "snapshot new", "invariant 17", {CORE + "snapshots.SnapshotCut.shows": _shown_if_unknown}),
        # Merged
        ("a .txnindex goes with the merged rows", "merge", "C3", {CORE + "cleaning.merged_index": _index_without_aborts}),
        ("a .txnindex forgets what began below the log start", "retention merge", "C3", {CORE + "cleaning.merged_index": _index_of_what_began_above_the_start}),
        ("a merge copies aborted rows", "merge", "C2", {HERE + "clean.plan_fetch": _fetch_of_all_rows, CORE + "cleaning.merged_index": _index_of_all_rows}),
        ("a run passes an open transaction", "merge", "C1", {CORE + "cleaning.choose_merges": _merges_over_the_lso}),
        ("a run is named before it is there", "merge", "C4", {CLEANER + "publish": _named_first}),
        ("a run is published whatever became of its inputs", "two merges", "C4", {CORE + "cleaning.next_clean": _clean_whatever_is_current}),
        ("two mergers share a name", "two merges", "C1", {CORE + "cleaning.merged_run": _run_with_one_name}),
        ("a run took effect because its number was written", "late merge", "C4", {HERE + "clean._name_run": _named_by_the_put}),
        ("a run tells no transaction apart", "merge looks", "C3", {HERE + "clean.Merge.keeps_distinct": lambda *_: False}),
        ("a run tells a transaction apart until it is complete", "merge looks", "C3", {HERE + "clean.Merge.keeps_distinct": _distinct_by_the_table_alone, CORE + "cleaning.settled_epochs": _settled_by_now}),
        ("an old batch need not be told apart, however lately its transaction was complete", "merge looks late", "C3", {CORE + "cleaning.settled_epochs": _settled_by_now}),
        ("an id expires as soon as its hung commit is finished", "merge looks, forgotten", "W32", {HERE + "expiry.may_expire": _may_expire_after_hanging}),
        ("a run tells a transaction apart for the grace", "merge looks late", "C3", {HERE + "clean.Merge.keeps_distinct": _distinct_by_age_alone}),
        # Compacted
        ("an aborted row supersedes a committed one", "compaction", "C2", {HERE + "compact.CompactionPlan.dirty_pieces": property(_dirt_with_aborted_rows)}),
        ("a compaction passes an open transaction", "compaction", "C1, C2", {HERE + "compact.find_cleanable": _cleanable_beyond_the_lso}),
        ("a compaction goes by the last stable offset alone", "compaction hides", "C2c", {HERE + "compact.find_cleanable": _cleanable_below_the_lso}),
        ("a snapshot is read on runs that were compacted since", "compaction hides", "R19", {CORE + "snapshots.SnapshotCut.check_compacted": lambda *_: None}),
        ("a tombstone goes with what it supersedes", "compaction merge", "C2a", {COPY + "Selection": _HastySelection}),
        ("a tombstone goes from a run that does not start at the log start", "tombstone", "C2a", {HERE + "compact.find_cleanable": _cleanable_from_the_first_dirt}),
        ("a merge says that all of it was compacted", "tombstone", "C2b", {CORE + "cleaning._compacted": _all_was_compacted}),
        ("a compaction is published whatever became of its inputs", "two compactions", "C4", {CORE + "cleaning.next_clean": _clean_whatever_is_current}),
        ("a full map of keys is taken for a whole one", "two compactions", "C2b", {COPY + "choose_end": _end_of_all}),
        ("a run forgets whose the rows were that a compaction took", "compaction looks", "C3", {CORE + "cleaning.merged_index": _index_without_emptied_batches}),
        # Vacuumed
        *(
            (f"vacuum learns of {' , '.join(_KNOWLEDGE[step] for step in order)}".replace(" ,", ","), "slow prepare", "C8", _vacuum_knowing(order))
            for order in ("fct", "tfc", "tcf", "cft", "ctf")
        ),
        ("vacuum takes what a PREPARE_* names", "slow prepare", "C8", {CORE + "vacuum.judge_producer": _dead_at_a_later_epoch}),
        ("vacuum takes what no log names", "slow append", "C8", {CORE + "vacuum.judge_producer": _dead_if_nothing_names_it}),
        ("vacuum goes by the age of a drawn producer's file alone", "slow drawn", "C9", {CORE + "vacuum.judge_drawn": _drawn_by_age}),
        ("a drawn producer names an old file", "slow drawn", "W8", {HERE + "append._young_files_guard": _no_guard_of_age}),
        ("a boundary is created after the slots were deleted", "stale writer", "C6", {HERE + "vacuum.sweep": _boundary_last}),
        ("a boundary is not looked for before slots are deleted", "stale writer", "C6", {HERE + "vacuum._raise_boundary": _boundary_unseen}),
        ("a boundary stands above what was sealed just now", "stale writer", "C6", {HERE + "vacuum._next_boundary": _boundary_at_once}),
        # Time
        ("a vacuum goes by its own clock", "skewed vacuum", "W48", {HERE + "vacuum.store_now": _own_clock}),
        ("a merge goes by its own clock", "merge looks, skewed", "W48", {HERE + "clean.store_now": _own_clock}),
        ("a run allows for no error of the clocks", "merge looks, skewed", "C3", {CORE + "cleaning.MAX_CLOCK_ERROR_MS": 0}),
        ("a view's age counts by the monotonic clock alone", "machine slept", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_monotonic_clock}),
        ("a view's age counts by the monotonic clock alone, and the host's is set", "host set forward", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_monotonic_clock}),
        ("a view's age counts by the wall clock alone", "writer set back", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_wall_clock}),
        ("what is superseded goes at once", "vacuum reader", "C10", {HERE + "vacuum_dead._wait": _no_wait}),
        ("the rows of a superseded segment go before its index", "vacuum reader", "C10", {CORE + "vacuum.superseded_parts": _superseded_with_its_rows, HERE + "vacuum_dead._KINDS": dict(reversed(vacuum_dead._KINDS.items()))}),
        ("a run that is not published yet is vacuumed", "merge vacuum", "C10", {CORE + "vacuum.superseded_parts": _all_but_current}),
        # Published
        ("vacuum does not look at publications", "publish vacuum", "C13", {HERE + "vacuum_published.KeptFiles.judge": lambda kept, topic, dead: dead}),
        ("vacuum keeps the newest version alone", "publish vacuum", "C13", {HERE + "vacuum.kept_files": _newest_alone}),
        ("the age of a version counts from when it was created", "publish vacuum", "C13", {HERE + "vacuum_published._shown_ms": _created_ms}),
        ("a version is replaced although the formats of the next one are not written", "publish vacuum", "C13", {HERE + "vacuum_published._shown_ms": _decided_ms}),
        ("vacuum does not take the number of a publisher that sleeps", "publish sleeps", "C13", {HERE + "vacuum_published._append_nothing": _program_of(None)}),
        ("a publisher takes its cut before it reads the chain", "publish sleeps", "W58", {PUBLISH + "_Attempt.run": _cut_before_the_chain}),
        ("a publisher shows what goes on in commit records behind its cut", "publish txn", "W58", {HERE + "publications.hide_transactions": lambda cut, later: cut}),
        ("a publisher shows all below the log ends", "publish txn", "W58", {CORE + "snapshots.SnapshotCut.shows": lambda *_: True}),
        ("a publisher shows aborted rows", "two publishers", "W58", {CORE + "publication.walk_batches": _walk_without_aborts}),
        ("the formats of a publication are not written before the next one", "two publishers", "W58", {PUBLISH + "roll_forward": _nothing}),
        ("a number that is taken counts as created", "two publishers", "W58", {PUBLISH + "append_publication": _won_whoever_won}),
        ("a publication of unknown outcome counts as created", "two publishers", "W58", {PUBLISH + "append_publication": _won_if_unknown}),
        ("rows that come into the cut later are forgotten", "two publishers", "W58", {PUBLISH + "compare": _without_copies}),
        ("a replacement changes the cut", "publish merge", "W58", {PUBLISH + "_Attempt._shown": _remember_the_cut, PUBLISH + "_Attempt._append": _replaced_with_a_new_cut}),
        ("a file that replaces others shows its new rows at once", "publish merge", "W58", {CORE + "publication._split": _all_old}),
        ("files that left the log stay in the tables", "publish retention", "W58", {PUBLISH + "compare": _without_removed}),
        # Restored, created again
        ("a writer goes on behind a record that is gone", "put back", "W47", {HERE + "slot.prove": _unproven}),
        ("a reader takes an older log for the log", "put back", "R20", {HERE + "load.prove": _unproven}),
        ("a log that is listed anew is not compared with what was seen", "put back", "R20", {HERE + "slot.reload": _loaded}),
        ("a partition of another store is opened", "replaced", "W47", {HERE + "load.check_store": _unchecked}),
        # Sealed and read
        ("the LSO passes an open transaction", "seal txn", "invariant 7", {CORE + "state.lso_of": _blind_to_open}),
        ("a marker's LSO passes an open transaction", "two aborts", "R21", {CORE + "append_rules.lso_of": _blind_to_open}),
        ("the search for aborts ends at a marker behind the range", "two aborts", "R10", {HERE + "read.collect_aborted_txns": _search_until_this_marker}),
        ("aborted transactions are looked for in one segment", "seal txn", "R10", {HERE + "read.collect_aborted_txns": _search_one_index}),
        ("a .txnindex lacks those that began earlier", "seal txn", "W38", {HERE + "seal.segments.build_index": _index_of_those_that_began_here}),
        ("an ABORT does not say where its transaction began", "abort", "W5, R21", {HERE + "transactions.next_marker": _abort_without_its_first_offset}),
        ("the active segment is sealed too", "seal", "W37", {HERE + "seal.finished_segments": _all_segments}),
        ("two sealers share a file name", "seal", "W4", {HERE + "seal._seal_one": _seal_with_one_name}),
        ("a segment is declared sealed without its snapshot", "reader", "W38", {HERE + "seal.put_pure": _no_snapshots}),
        ("cleaned runs are not current", "reader", "R5", {CORE + "chain.parse_listing": _without_clean}),
        ("nobody lists again when an index is gone", "reader", "R15", {HERE + "read.relisting": _stubborn}),
        ("a snapshot lacks producers", "seal", "W38, C11", {HERE + "seal.to_snapshot": _without_producers}),
        ("a snapshot lacks pending offsets", "internal", "W38", {HERE + "seal.to_snapshot": _without_pending}),
    )
)  # fmt: skip
"""Each rule and the scenario that checks it."""
