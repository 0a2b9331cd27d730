"""Does every invariant of PROTOCOL.md hold here? A message names the broken one, and begins with its number.

Each is a function of the store's objects and of the answers that clients got. Partitions are judged once for each
content, and stores once for each set of objects, so a rule may be slow. The shipped fold and reader run too, over the
present store, and must agree with the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.explore.alone import run_alone
from lab.explore.client import Client, Note, Word
from lab.explore.eraser import finish_all, is_erased
from lab.explore.keeper_calls import read_all
from lab.explore.keys import Compacted, is_removable, wrong_rows, wrong_runs
from lab.explore.oracle import Truth, read_chain
from lab.explore.past_oracle import wrong_past
from lab.explore.published import published_words, wrong_tables
from lab.explore.publisher import publish_alone, retention_of
from lab.explore.read_oracle import due, erased_rows, shown_again, wrong_read
from lab.explore.store_rules import (
    current_runs,
    highest_clean,
    missing_markers,
    of_older,
    unregistered_batch,
    wrong_decisions,
    wrong_markers,
    wrong_references,
)
from lab.explore.version_oracle import decided_too_late, wrong_change, wrong_versions
from lab.explore.world import GHOST, START_MS, WRITTEN_AT, World
from txlog.core import names
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import NewProducerId, Program
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.core.snapshot_state import to_snapshot
from txlog.core.state import PartitionState, replay
from txlog.errors import TxlogError
from txlog.protocol import expiry, transactions
from txlog.protocol.append import append_batch
from txlog.protocol.context import Context
from txlog.protocol.load import load


@dataclass(slots=True)
class _Partition:
    truth: Truth
    wrong: str | None
    rows: dict[int, str] = field(default_factory=dict)
    """The rows that a reader of a compacted partition gets."""


@dataclass(slots=True)
class Rules:
    """The invariants over one scenario's world."""

    world: World
    ctx: Context
    transactional_ids: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    """Partitions of user topics; a lone writer must be able to append to each."""
    exclusive: tuple[str, ...] = ()
    """Prefixes of words: at most one word with the prefix may ever be committed, for two jobs that took one range."""
    times: tuple[int, ...] = (START_MS,)
    looks: bool = False
    recovers: bool = True
    judges: bool = True
    expects: dict[str, set[str]] = field(default_factory=dict)
    compacted: Mapping[TopicPartition, Compacted] = field(default_factory=dict)
    """Compacted partitions, which keep only the newest row of a key."""
    erased: bool = False
    """Whether words are erased. A reader may miss them at any time, and sees none of them after an erasure."""
    publisher: Client | None = None
    """A client that has opened the published topic, if there is one."""
    publishes: bool = True
    """Whether a lone publisher goes on from every store, also if the scenario does not recover."""
    _partitions: dict[tuple[TopicPartition, frozenset[int]], _Partition] = field(default_factory=dict)
    _stores: dict[int, str | None] = field(default_factory=dict)
    _changes: dict[tuple[frozenset[int], frozenset[int]], str | None] = field(default_factory=dict)
    recoveries: int = 0

    # -- in every state -----------------------------------------------------------------------------------------------

    def state(self, store: int, clients: Sequence[Client]) -> str | None:
        """Return the faults of this store, given the answers that clients got."""
        if store not in self._stores:
            self._stores[store] = self._store(store)
        if (wrong := self._stores[store]) is not None:
            return wrong
        owners: set[tuple[int, int]] = set()
        for client in clients:
            returned: set[Word] = set()
            for number, note in enumerate(client.notes):
                if (wrong := self._note(store, note)) is not None:
                    return wrong
                if note.kind == "erased" and (wrong := self._erased(store, note)) is not None:
                    return wrong
                if self.erased and (wrong := shown_again(client.notes[: number + 1])) is not None:
                    return wrong
                if note.kind == "looked back":
                    earlier = tuple(each for each in client.notes[:number] if each.kind == note.kind)
                    truths = {tp: self._truth(store, tp) for tp in self.partitions}
                    if (wrong := self._looked(store, note) or wrong_past(truths, note, earlier)) is not None:
                        return wrong
                if note.kind == "committed":
                    returned |= set(note.words)
                missing = returned - set(note.words) if note.kind == "looked" else set()
                if any(not self._is_superseded(store, note, tp, word) for tp, word in missing):
                    return f"17 snapshots: {note.words} are shown, and {sorted(returned)} had been committed before by the same client"
                if note.kind == "ready":
                    epoch = (note.producer_id, note.producer_epoch)
                    if epoch in owners:
                        return f"8 fencing: two instances were given producer {epoch[0]}, epoch {epoch[1]}"
                    owners.add(epoch)
        return None

    def change(self, before: int, after: int, clients: Sequence[Client]) -> str | None:
        """Return the fault of one step, whatever state it leads to."""
        for tp in self._all(after):
            old, new = self._folder(before, tp), self._folder(after, tp)
            if old == new:
                continue
            if (old, new) not in self._changes:
                self._changes[old, new] = self._partition_change(tp, old, new)
            if (wrong := self._changes[old, new]) is not None:
                return wrong
            if (wrong := self._fenced(tp, new - old, after, clients)) is not None:
                return wrong
            truths = self._truth(before, tp), self._truth(after, tp)
            if self.looks and (wrong := decided_too_late(self._objects(before), *truths)) is not None:
                return wrong
        return None

    def ended(self, clients: dict[str, Client]) -> str | None:
        """Return the faults of the end state, in which no actor can take a step any more."""
        for name, kinds in self.expects.items():
            last = clients[name].notes[-1] if clients[name].notes else None
            if last is None or last.kind not in kinds:
                said = f"{last.kind} ({last.text})" if last is not None else "nothing"
                return f"15 liveness: {name} was told {said} in the end, and {' or '.join(sorted(kinds))} was due"
        return None

    def alone(self, store: int, ticks: int) -> str | None:
        """Invariants 11 and 15: from here, a process that runs alone finishes everything and continues.

        Invariant 18 depends on the time, so it is checked here, too.
        """
        if (wrong := self._tables(store, ticks)) is not None:
            return wrong
        if not self.recovers:
            return self._publish(store, ticks) if self.publishes else None
        self.recoveries += 1
        try:
            after, _ = run_alone(self.world, store, self.times[ticks], self._recover())
        except (TxlogError, AssertionError) as error:
            return f"11 recovery: a lone writer cannot finish: {type(error).__name__}: {error}"
        if (wrong := self.state(after, ()) or self.change(store, after, ())) is not None:
            return f"11 recovery: after a lone writer finished: {wrong}"
        for tp in self._all(after):
            truth = self._truth(after, tp)
            if truth.open:
                return f"11 recovery: {tp}: a transaction is still open after a lone writer finished: {truth.open}"
        latest: dict[str, TransactionMetadata | None] = {}
        for tp in self._all(after):
            latest |= {key: value for _, key, value in self._truth(after, tp).table}
        unfinished = [key for key in self.transactional_ids if (txn := latest.get(key)) and txn.state != "EMPTY"]
        if unfinished:
            return f"11 recovery: {unfinished} are not at rest after init_transactions"
        return self._publish(after, ticks)

    def _tables(self, store: int, ticks: int) -> str | None:
        """Invariant 18: readers of the published tables find what they may read at this time."""
        if self.publisher is None:
            return None
        (topic,) = self.publisher.topics
        truths = {tp: self._truth(store, tp) for tp in self._all(store)}
        return wrong_tables(
            topic.topic, self._objects(store), truths, self.times[ticks], retention_of(topic).retention_ms,
            is_compacted=any(tp.topic == topic.topic for tp in self.compacted),
        )  # fmt: skip

    def _publish(self, store: int, ticks: int) -> str | None:
        """Invariants 11 and 18: from here, a publisher that runs alone publishes everything that is finished."""
        if self.publisher is None:
            return None
        try:
            after, _ = run_alone(self.world, store, self.times[ticks], publish_alone(self.publisher))
        except (TxlogError, AssertionError) as error:
            return f"11 recovery: a lone publisher cannot finish: {type(error).__name__}: {error}"
        if (wrong := self._tables(after, ticks)) is not None:
            return f"11 recovery: after a lone publisher finished: {wrong}"
        (topic,) = self.publisher.topics
        shown = published_words(topic.topic, self._objects(after)) or set()
        due: set[str] = set()
        expired: set[str] = set()
        hidden: set[str] = set()
        for tp in self._all(after):
            if tp.topic == topic.topic:
                truth = self._truth(after, tp)
                # Rows in commit records end a cut. Transactions that go on there are hidden.
                end = min(
                    (each.record.base_offset for each in truth.stored if each.payload), default=truth.log_end_offset
                )
                due |= {word for at, word in truth.stable.items() if at < end}
                expired |= {word for at, word in truth.words.items() if at < truth.log_start_offset}
                hidden |= {word[0] for at, word in truth.words.items() if at >= end}
        if expired & shown:
            return f"11 recovery: a lone publisher left rows below the log start: {sorted(expired & shown)}"
        late = {word for word in due - shown if word[0] not in hidden} if self.recovers and not self.compacted else ()
        return f"11 recovery: a lone publisher left {sorted(late)} out" if late else None

    def _objects(self, store: int) -> dict[str, bytes]:
        return dict(self.world.objects[number] for number in self.world.stores[store])

    def _recover(self) -> Program[None]:
        views: Any = {}
        for transactional_id in self.transactional_ids:
            views, _ = yield from transactions.init_producer(self.ctx, views, transactional_id, 60_000)
        views, _ = yield from expiry.expire(self.ctx, views)
        if self.erased:
            views = yield from finish_all(self.ctx, views)
        for tp in self.partitions:
            pid = yield NewProducerId()
            draft = BatchDraft(
                records=1, producer_id=pid, producer_epoch=0, base_sequence=0, payload=f'["alone {tp}"]'.encode()
            )
            views, _ = yield from append_batch(self.ctx, views, tp, draft)

    # -- one store ----------------------------------------------------------------------------------------------------

    def _store(self, store: int) -> str | None:
        truths: dict[TopicPartition, Truth] = {}
        for tp in self._all(store):
            judged = self._judge(store, tp)
            if judged.wrong is not None:
                return judged.wrong
            truths[tp] = judged.truth
        table = [row for tp, truth in truths.items() if tp.topic == TRANSACTION_STATE_TOPIC for row in truth.table]
        if (wrong := wrong_versions(self._objects(store), truths)) is not None:
            return wrong
        for rule in (wrong_decisions, wrong_markers, missing_markers, unregistered_batch):
            if (wrong := rule(table, truths)) is not None:
                return wrong
        for prefix in self.exclusive:
            taken = {word for truth in truths.values() for word in truth.committed.values() if word.startswith(prefix)}
            if len(taken) > 1:
                return f"12 offsets: two jobs took one range, and both committed: {sorted(taken)}"
        return None

    def _all(self, store: int) -> list[TopicPartition]:
        found = set()
        for path in self.world.files(store):
            parts = path.removeprefix(GHOST).split("/")
            if len(parts) > 2 and parts[1].isdecimal() and not path.startswith(WRITTEN_AT):
                found.add(TopicPartition(parts[0], int(parts[1])))
        return sorted(found)

    def _folder(self, store: int, tp: TopicPartition) -> frozenset[int]:
        """Return the objects of a partition. Sessions are judged by the times at which records were written, if known."""
        found = self.world.folder(store, tp.folder)
        return found | self.world.times(store, tp.folder) if tp.topic == CONSUMER_OFFSETS_TOPIC else found

    def _truth(self, store: int, tp: TopicPartition) -> Truth:
        return self._judge(store, tp).truth

    def _judge(self, store: int, tp: TopicPartition) -> _Partition:
        key = (tp, self._folder(store, tp))
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = self._judge_partition(tp, key[1])
        return found

    def _judge_partition(self, tp: TopicPartition, objects: frozenset[int]) -> _Partition:
        """Check one partition by itself: the oracle's truth, and whether shipped code agrees."""
        files = dict(self.world.objects[number] for number in objects)
        truth = read_chain(files, tp)
        wrong = truth.wrong or wrong_references(tp, files)
        rows: dict[int, str] = {}
        if wrong is None and self.judges:
            wrong = self._seen(tp, objects, truth)
            if wrong is None and (policy := self.compacted.get(tp)) is not None:
                rows = self._shown(tp, objects, "read_committed")
                batches = [
                    each.record
                    for each in truth.stored
                    if each.record.base_offset in truth.committed
                    and (each.record.transactional or each.record.kind == "commit")
                ]
                claim = wrong_runs(current_runs(tp, files), rows, batches, policy)
                wrong = None if claim is None else f"13 clean-up: {tp}: {claim}"
        return _Partition(truth, wrong, rows)

    def _shown(self, tp: TopicPartition, objects: frozenset[int], isolation: str) -> dict[int, str]:
        program = read_all(self.ctx, tp, isolation)
        return dict(run_alone(self.world, self.world.store_id(objects), self.times[0], program)[1])

    def _seen(self, tp: TopicPartition, objects: frozenset[int], truth: Truth) -> str | None:
        store = self.world.store_id(objects)
        now_ms = self.times[0]
        try:
            _, view = run_alone(self.world, store, now_ms, load(self.ctx, tp))
        except TxlogError as error:
            return f"13 clean-up: {tp} cannot be opened: {type(error).__name__}: {error}"
        state = view.state
        whole = replay(PartitionState.empty(tp), truth.stored)
        if state.next_offset != truth.log_end_offset:
            return f"1 chain: {tp}: a reader finds the log end at {state.next_offset}, it is at {truth.log_end_offset}"
        if state.last_stable_offset != truth.last_stable_offset:
            return f"7 lso: {tp}: a reader finds {state.last_stable_offset}, it is {truth.last_stable_offset} (log end {truth.log_end_offset})"
        if to_snapshot(state) != to_snapshot(whole):
            return f"13 clean-up: {tp}: the state differs from that of the whole chain: {to_snapshot(state)} and {to_snapshot(whole)}"
        offsets = {key: row.entry.value.offset for key, row in state.committed.items() if row.entry.value is not None}
        if offsets != truth.offsets:
            return f"12 offsets: {tp}: a reader finds {offsets}, committed are {truth.offsets}"
        if tp.topic in names.INTERNAL_TOPICS:
            return None
        for isolation, expected in (("read_committed", truth.stable), ("read_uncommitted", truth.kept(truth.words))):
            try:
                rows = dict(run_alone(self.world, store, now_ms, read_all(self.ctx, tp, isolation))[1])
            except (TxlogError, AssertionError) as error:
                return f"13 clean-up: {tp} cannot be read: {type(error).__name__}: {error}"
            policy = self.compacted.get(tp)
            if policy is not None:
                committed = truth.kept(truth.stable if isolation == "read_committed" else truth.committed)
                committed = due(committed, rows, erased=self.erased)
                shown = {at: word for at, word in rows.items() if at in truth.committed}
                if isolation == "read_committed":
                    shown = rows
                elif not rows.items() <= expected.items():
                    return f"5 atomic: {tp}: {isolation} returns {rows}, and the log holds {expected}"
                if (what := wrong_rows(shown, committed, truth.stable, policy)) is not None:
                    return f"13 clean-up: {tp}: {isolation}: {what}"
                continue
            expected = due(expected, rows, erased=self.erased)
            wrong = rows != expected
            if isolation == "read_uncommitted":
                # Maintenance removes aborted rows.
                committed = due(truth.kept(truth.committed), rows, erased=self.erased)
                wrong = not (rows.items() <= expected.items() and committed.items() <= rows.items())
            if wrong:
                return f"5 atomic: {tp}: {isolation} returns {rows}, committed are {expected}"
        if any(marker.kind == "abort" for marker in truth.markers):
            # A search for aborted transactions ends at the end of the range.
            for end in range(truth.log_start_offset + 1, truth.last_stable_offset):
                rows = dict(run_alone(self.world, store, now_ms, read_all(self.ctx, tp, "read_committed", end))[1])
                expected = {at: word for at, word in truth.stable.items() if at < end}
                expected = due(expected, rows, erased=self.erased)
                if policy is not None:
                    what = wrong_rows(rows, expected, truth.stable, policy)
                    if what is not None:
                        return f"13 clean-up: {tp}: read_committed up to {end}: {what}"
                elif rows != expected:
                    return f"5 atomic: {tp}: read_committed up to {end} returns {rows}, committed are {expected}"
        twice = [word for word in truth.words.values() if list(truth.words.values()).count(word) > 1]
        return f"3 once: {tp}: rows are there twice: {sorted(set(twice))}" if twice else None

    # -- answers that clients got -------------------------------------------------------------------------------------

    def _note(self, store: int, note: Note) -> str | None:
        if note.kind == "broken":
            return f"15 liveness: a call failed with {note.text}"
        if note.kind == "appended":
            assert note.tp is not None
            found = self._truth(store, note.tp).words
            for number, (tp, word) in enumerate(note.words):
                if found.get(note.offset + number) != word:
                    return f"2 acknowledged: {tp}: {word!r} was acknowledged at offset {note.offset + number}, and {found.get(note.offset + number)!r} is there"
        if note.kind == "refused":
            for tp, word in note.words:
                if word in self._truth(store, tp).words.values():
                    return f"2 acknowledged: {tp}: {word!r} was refused, and it is in the log"
        if note.kind in ("committed", "aborted", "failed", "skipped"):
            return self._outcome(store, note)
        if note.kind == "looked":
            return self._looked(store, note)
        if note.kind == "changed":
            return wrong_change(self._objects(store), note)
        if note.kind in ("merged", "compacted"):
            return self._merged(store, note)
        if note.kind == "read":
            assert note.tp is not None
            return wrong_read(note, self._truth(store, note.tp), self.compacted.get(note.tp), erased=self.erased)
        return None

    def _erased(self, store: int, note: Note) -> str | None:
        assert note.tp is not None
        for isolation in ("read_committed", "read_uncommitted"):
            if left := erased_rows(self._shown(note.tp, self._folder(store, note.tp), isolation)):
                return f"13 clean-up: {note.tp}: {left} were erased, and {isolation} shows them"
        return None

    def _looked(self, store: int, note: Note) -> str | None:
        """Invariant 17. The words of one transaction begin with the same letter; aborted ones are never returned."""
        truths = {tp: self._truth(store, tp) for tp in self.partitions}
        for letter in {word[0] for _, word in note.words}:
            shown = {each for each in note.words if each[1][0] == letter}
            there = {
                (tp, word) for tp, truth in truths.items() for word in truth.committed.values() if word[0] == letter
            }
            missing = {each for each in there - shown if not self._is_superseded(store, note, *each)}
            if missing or not shown <= there:
                return f"17 snapshots: a transaction is shown as {sorted(shown)}, and it is {sorted(there)}"
        for tp, end in note.ends:
            plain = {
                each.record.base_offset
                for each in truths[tp].stored
                if not each.record.transactional and each.record.kind == "data"
            }
            for at, word in truths[tp].kept(truths[tp].committed).items():
                if (
                    at < end
                    and at in plain
                    and (tp, word) not in note.words
                    and not self._is_superseded(store, note, tp, word)
                ):
                    return f"17 snapshots: {tp}: {word!r} at offset {at} is not shown, and nothing that is shown has its key"
        return None

    def _is_superseded(self, store: int, note: Note, tp: TopicPartition, word: str) -> bool:
        """Return whether a compaction, for a later row of its key that is shown, or an erasure may have taken a row."""
        if tp not in self.compacted:
            return self.erased and is_erased(word)
        return is_removable(tp, word, note.words, self._truth(store, tp).committed, self.compacted[tp])

    def _merged(self, store: int, note: Note) -> str | None:
        """A run that took effect is current, or listed as superseded until vacuum has deleted it."""
        assert note.tp is not None
        path = note.tp.folder + note.text
        if path not in self.world.files(store):
            return None
        objects = self.world.folder(store, note.tp.folder)
        clean = highest_clean(frozenset(self.world.objects[number] for number in objects))
        known = {run.name.index for run in clean.runs} | {each.name for each in clean.superseded} if clean else set()
        if note.text in known:
            return None
        return f"13 clean-up: {note.tp}: a merger was told that {note.text} took effect, and the highest .clean knows {sorted(known)}"

    def _outcome(self, store: int, note: Note) -> str | None:
        committed = note.kind == "committed"
        for tp, word in note.words:
            truth = self._truth(store, tp)
            # A transaction that commits after its topic was deleted omits the topic's rows.
            if truth.deleted_version and committed:
                continue
            if (word in truth.committed.values()) is not committed:
                return f"5 atomic: {tp}: the client was told {note.kind!r}, and {word!r} is {'not ' if committed else ''}committed"
        for partition, offset in note.offsets:
            told = (note.producer_id, ("g", "orders", partition), offset)
            commits = [
                self._truth(store, tp).offset_commits for tp in self._all(store) if tp.topic == CONSUMER_OFFSETS_TOPIC
            ]
            if any(told in each for each in commits) is not committed:
                return f"12 offsets: the client was told {note.kind!r}, and its offset {offset} is {'not ' if committed else ''}committed"
        return None

    # -- one step -----------------------------------------------------------------------------------------------------

    def _partition_change(self, tp: TopicPartition, old: frozenset[int], new: frozenset[int]) -> str | None:
        before, after = self._judged(tp, old), self._judged(tp, new)
        if after.wrong is not None:
            return after.wrong
        if after.truth.last_stable_offset < before.truth.last_stable_offset:
            return (
                f"7 lso: {tp}: it went back from {before.truth.last_stable_offset} to {after.truth.last_stable_offset}"
            )
        lso = before.truth.last_stable_offset
        if after.truth.kept(before.truth.stable) != {at: word for at, word in after.truth.stable.items() if at < lso}:
            return f"6 stable: {tp}: what read_committed returned below {lso} has changed"
        back = {at: word for at, word in after.rows.items() if at < lso and at not in before.rows}
        if back:
            return f"6 stable: {tp}: what a compaction had taken away is shown again: {back}"
        if after.truth.stored[: len(before.truth.stored)] != before.truth.stored:
            return f"1 chain: {tp}: a published batch has changed or is gone"
        return None

    def _judged(self, tp: TopicPartition, objects: frozenset[int]) -> _Partition:
        key = (tp, objects)
        if key not in self._partitions:
            self._partitions[key] = self._judge_partition(tp, objects)
        return self._partitions[key]

    def _fenced(self, tp: TopicPartition, added: frozenset[int], after: int, clients: Sequence[Client]) -> str | None:
        """Invariant 8: no record of an older instance enters the log after the init of a newer one returned."""
        ready = [note for client in clients for note in client.notes if note.kind == "ready"]
        truth = self._truth(after, tp)
        for number in added if ready else ():
            path = self.world.objects[number][0]
            mine = [
                each.record for each in truth.stored if path == tp.folder + names.batch_name(each.record.base_offset)
            ]
            for record in mine:
                for note in ready:
                    if (what := of_older(record, note)) is not None:
                        return f"8 fencing: {tp}: {what} got in at offset {record.base_offset} after init had returned epoch {note.producer_epoch}"
        return None
