"""Which objects of a partition can be made again from its records, and how are they restored?

A repair makes only what sealing makes of the chain as a pure function: `.snapshot`, and the `.txnindex` and `.index` of
generation 0, from the boundary on (PROTOCOL.md, C12). It follows the records from a valid state, each by the digest of
the one before. A segment is proven only if the record after it names the digest of its last record. A stored object
that equals the computed one is kept. A damaged one is deleted and created again, and a missing one is created. The
repair changes nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import msgspec

from txlog.core import chain, envelope, names
from txlog.core.effects import Delete, Gather, Get, List, Program
from txlog.core.names import NumberedName, SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord, stored_records
from txlog.core.records import Clean, DataFile, SegmentIndex, Snapshot, TxnIndex
from txlog.core.segments import aborted_txn_of, build_index
from txlog.core.snapshot_state import from_snapshot, to_snapshot
from txlog.core.state import PartitionState, kept_lso, kept_snapshot, replay
from txlog.errors import CorruptLogError, StorageError
from txlog.protocol.context import Context
from txlog.protocol.load import present, read_clean
from txlog.protocol.put import encode_readable, put_pure
from txlog.protocol.requests import get
from txlog.protocol.seal import write_inline

S = TypeVar("S", bound=msgspec.Struct)

_AT_ONCE = 16
"""Records that are fetched at once: one has up to 4 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One object of a partition that is damaged or missing, and what the repair did."""

    topic_partition: TopicPartition
    name: str
    is_made: bool = False
    """Whether it was made again, or would be in a dry run."""
    why: str
    """What was wrong with it. If it was not made, also why not."""
    segment: SegmentName
    """Its segment, or the part of the log that it is about."""

    @property
    def path(self) -> str:
        return self.topic_partition.folder + self.name


def repair_partition(ctx: Context, tp: TopicPartition, *, dry_run: bool = False) -> Program[tuple[Repair, ...]]:
    """Make every damaged or missing object of `tp` again that is a pure function of existing records.

    Return what was done. With `dry_run` nothing is written: return what would be done. Reads all records from the
    boundary on, with one segment in memory at a time. Raises UnsupportedStoreError for an object of a newer format, and
    StorageError, also if maintenance is faster again and again. Raises CorruptLogError if a `.clean` or two snapshots
    leave no place to begin.
    """
    for _ in range(ctx.max_loads):
        there = yield from _list(tp)
        followed = yield from _follow(tp, there)
        # Maintenance may have deleted what the LIST showed: then it is superseded, and not missing (R15).
        if not (followed.wrong or followed.broken) or there.is_as_in((yield from _list(tp))):
            break
    else:
        raise StorageError(
            f"{tp}: maintenance changed it in each of {ctx.max_loads} tries of a repair. hint: repeat it"
        )
    done = []
    for wrong in followed.wrong:
        if wrong.is_refused or (wrong.of_segment and wrong.segment.end_offset <= followed.state.log_start_offset):
            continue  # an object below the log start is superseded: the files that it would name may be deleted
        if not dry_run:
            yield from _make(ctx, wrong)
        done.append(replace(wrong, is_made=True))
    refused = [wrong for wrong in followed.wrong if wrong.is_refused]
    return (*done, *refused, *_out_of_reach(tp, there, followed))


def _list(tp: TopicPartition) -> Program[_There]:
    listed: Sequence[str] = yield List(tp.folder)
    listing = chain.parse_listing(listed, tp.folder)
    clean = None if listing.clean is None else (yield from read_clean(tp, listing.clean))
    return _There(listed=frozenset(listed), listing=listing, clean=clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class _There:
    """One LIST of the partition, and the highest `.clean`."""

    listed: frozenset[str]
    listing: chain.PartitionListing
    clean: Clean | None

    @property
    def sealed_end(self) -> int:
        return chain.sealed_end(self.listing, self.clean)

    def is_as_in(self, later: _There) -> bool:
        """Return whether a later LIST shows that maintenance has superseded nothing and begun no later boundary."""
        mine, its = self.listing, later.listing
        return (mine.boundary, mine.clean) == (its.boundary, its.clean) and self.listed <= later.listed

    def is_current(self, name: SegmentName) -> bool:
        """Return whether readers or the loader may need the index of this segment, without regard to the log start."""
        runs = self.clean.runs if self.clean is not None else ()
        return (
            self.listing.boundary <= name.base_offset
            and name.end_offset <= self.sealed_end
            and not any(run.base_offset <= name.base_offset and name.end_offset <= run.end_offset for run in runs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong(Repair):
    """An object that differs from its records, and all that is needed to make it."""

    of_segment: bool = False
    """Not needed once the log start has passed it."""
    is_refused: bool = False
    value: msgspec.Struct | None = field(default=None, repr=False)
    records: tuple[StoredRecord, ...] = field(default=(), repr=False)
    """Records of an index whose inline rows must be written first; `value` is then None."""
    after: PartitionState = field(repr=False)
    """State at the segment's end."""


@dataclass(slots=True, kw_only=True)
class _Followed:
    """The chain, as far as the repair could follow it."""

    state: PartitionState
    wrong: list[_Wrong] = field(default_factory=list)
    broken: str = ""
    """Where the chain cannot be followed further, and why."""


def _follow(tp: TopicPartition, there: _There) -> Program[_Followed]:
    """Fold the records from the newest valid state from which they lead beyond the boundary."""
    boundary = there.listing.boundary
    bases = sorted(
        parsed.number
        for name in there.listed
        if isinstance(parsed := names.parse_partition_object(name), NumberedName) and parsed.kind == "batch"
    )
    best: _Followed | None = None
    for start in [*(number for number in reversed(there.listing.snapshots) if number <= boundary), 0]:
        state = PartitionState.empty(tp) if not start else (yield from _whole_snapshot(tp, start))
        if state is None:
            continue
        found = yield from _follow_from(tp, there, state, [base for base in bases if base >= start])
        if not found.broken or found.state.next_offset > boundary:
            return found
        if best is None or found.state.next_offset > best.state.next_offset:
            best = found
    assert best is not None  # the empty state at offset 0 always exists
    return best


def _whole_snapshot(tp: TopicPartition, offset: int) -> Program[PartitionState | None]:
    path = tp.folder + names.snapshot_name(offset)
    data = yield Get(path)
    try:
        found, _ = envelope.decode(present(data, path), Snapshot, path)
        names.check_own(found.partition, path)
    except CorruptLogError:
        return None
    return from_snapshot(found, tp) if found.offset == offset else None


def _follow_from(tp: TopicPartition, there: _There, state: PartitionState, bases: Sequence[int]) -> Program[_Followed]:
    found = _Followed(state=state)
    segment: list[StoredRecord] = []
    for first in range(0, len(bases), _AT_ONCE):
        window = bases[first : first + _AT_ONCE]
        answers: Sequence[bytes | None] = yield Gather(
            tuple(get(tp.folder + names.batch_name(base)) for base in window)
        )
        for base, data in zip(window, answers, strict=True):
            path = tp.folder + names.batch_name(base)
            try:
                if base != found.state.next_offset:
                    raise CorruptLogError(f"{tp.folder}{names.batch_name(found.state.next_offset)} is not there")
                stored = stored_records(present(data, path), tp, base)
                after = replay(found.state, stored)
            except CorruptLogError as error:
                found.broken = error.problem
                return found
            if segment and stored[0].record.segment_base == base:
                # The record that begins the next segment names the digest of this one's last record, so this segment is
                # proven.
                found.wrong += yield from _judge(tp, there, segment, found.state)
                segment = []
            segment += stored
            found.state = after
    if found.state.next_offset < there.sealed_end:
        found.broken = f"{tp.folder}{names.batch_name(found.state.next_offset)} is not there"
    return found


def _judge(
    tp: TopicPartition, there: _There, stored: Sequence[StoredRecord], after: PartitionState
) -> Program[list[_Wrong]]:
    """Return the objects of a finished segment that differ from its records; `after` is the state at its end."""
    records = [each.record for each in stored]
    name = SegmentName(records[0].base_offset, records[-1].end_offset, 0)
    differs = partial(_Wrong, topic_partition=tp, segment=name, after=after)
    wrong: list[_Wrong] = []
    if there.listing.boundary <= name.end_offset <= there.sealed_end:
        snapshot = names.snapshot_name(name.end_offset)
        why = yield from _look(tp, snapshot, to_snapshot(after))
        if why:
            wrong.append(differs(name=snapshot, why=why, value=to_snapshot(after)))
    if records[0].segment_base != name.base_offset or not there.is_current(name):
        return wrong
    others = [each.index for each in there.listing.segments if each.base_offset == name.base_offset and each != name]
    if others:
        why = f"{others[0]} begins at the same offset, and the records say that the segment ends at {name.end_offset}"
        return [*wrong, differs(name=others[0], why=why, is_refused=True)]
    aborted = tuple(txn for txn in map(aborted_txn_of, records) if txn is not None)
    if aborted:
        expected = TxnIndex(partition=str(tp), aborted=aborted)
        why = yield from _look(tp, name.txnindex, expected)
        if why:
            wrong.append(differs(name=name.txnindex, why=why, value=expected, of_segment=True))
    why, index = yield from _look_at_index(tp, name, stored, after)
    if why:
        records_needed = () if index is not None else tuple(stored)
        wrong.append(differs(name=name.index, why=why, value=index, records=records_needed, of_segment=True))
    return wrong


def _look(tp: TopicPartition, name: str, expected: msgspec.Struct) -> Program[str]:
    """Return what is wrong with an object; empty if it is right."""
    why, found = yield from _read(tp, name, type(expected))
    if isinstance(expected, Snapshot) and isinstance(found, Snapshot):
        expected = kept_snapshot(expected, found)
    return "" if found == expected else why


def _read(tp: TopicPartition, name: str, kind: type[S]) -> Program[tuple[str, S | None]]:
    """Return an object, and what is wrong with it if it is not what its records say; None if it cannot be read."""
    path = tp.folder + name
    data = yield Get(path)
    if data is None:
        return "it is not there", None
    try:
        return "it is not what its records say", envelope.decode(data, kind, path)[0]
    except CorruptLogError as error:
        return error.problem.removeprefix(f"{path}: "), None


def _look_at_index(
    tp: TopicPartition, name: SegmentName, stored: Sequence[StoredRecord], after: PartitionState
) -> Program[tuple[str, SegmentIndex | None]]:
    """Return what is wrong with an index, and the right index unless it needs a new file of inline rows."""
    why, found = yield from _read(tp, name.index, SegmentIndex)
    file: DataFile | None = None
    lso = after.last_stable_offset
    if found is not None:
        lso = kept_lso(after, found.last_stable_offset)
        # Only the index shows which of several equal files has the inline rows.
        its = next((each for each in found.files if each.offset_column), None)
        file = None if its is None else DataFile(**its.file_fields)
    try:
        index = _index(tp, stored, file, lso)
    except CorruptLogError:
        return why, None
    if found == index:
        return "", index
    return why, index if file is None else None


def _index(
    tp: TopicPartition, stored: Sequence[StoredRecord], file: DataFile | None, last_stable_offset: int
) -> SegmentIndex:
    index, _ = build_index(tp, [each.record for each in stored], stored[-1].digest, file)
    return msgspec.structs.replace(index, last_stable_offset=last_stable_offset)


def _make(ctx: Context, wrong: _Wrong) -> Program[None]:
    """Create the object. A damaged one is deleted only when everything that replaces it is ready."""
    tp, path = wrong.topic_partition, wrong.path
    value = wrong.value
    if value is None:
        file = yield from write_inline(tp, wrong.segment, wrong.records)
        value = _index(tp, wrong.records, file, wrong.after.last_stable_offset)
    data = encode_readable(path, value)
    if wrong.value is not None:
        why = yield from _look(tp, wrong.name, wrong.value)
    else:
        why, _ = yield from _look_at_index(tp, wrong.segment, wrong.records, wrong.after)
    if not why:
        # Another repair already recreated this object. Deleting that copy and then crashing would leave a gap.
        return
    # Deleting a missing object is not an error. Whichever process creates it first, equivalent bytes are stored.
    yield Delete(path)
    yield from put_pure(ctx, path, data)


def _out_of_reach(tp: TopicPartition, there: _There, followed: _Followed) -> list[Repair]:
    """Return the objects after the break of a broken chain. The repair cannot judge them."""
    end = followed.state.next_offset
    if not followed.broken or end >= there.sealed_end:
        return []
    why = f"what lies behind offset {end} cannot be made again: {followed.broken}"
    return [Repair(topic_partition=tp, name="", why=why, segment=SegmentName(end, there.sealed_end, 0))]
