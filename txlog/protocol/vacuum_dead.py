"""Which objects of a partition are dead, why, and until when must they stay (PROTOCOL.md, C8 to C11)?

The third step of a pass reads what the chain shows: every list of cleaned runs, every index and every slot that no
index covers. So it knows every file that the chain names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txlog.core import chain, names, vacuum
from txlog.core.effects import List, Modified, Program
from txlog.core.names import INTERNAL_TOPICS, SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, Clean, CommitRecord, TransactionEntry, TransactionMetadata
from txlog.core.state import PartitionState
from txlog.core.vacuum import NOT_KNOWN_YET, Dead, Folder, Kind, Why
from txlog.errors import CorruptLogError, MissingObjectError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, read_clean, read_slot, relisting
from txlog.protocol.read import read_plain_index
from txlog.protocol.requests import many, modified


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContent:
    """What the chain of a partition shows."""

    view: PartitionView
    folder: Folder
    cleans: tuple[tuple[Clean, int | None], ...]
    """All lists of cleaned runs, lowest first, each with the time at which the store got it. The highest counts."""
    named: frozenset[str]
    """Files that a slot or an index names, relative to the topic's folder."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.view.topic_partition

    @property
    def state(self) -> PartitionState:
        return self.view.state

    @property
    def clean(self) -> Clean | None:
        return self.cleans[-1][0] if self.cleans else None


def read_chain(ctx: Context, views: Views, tp: TopicPartition) -> Program[tuple[Views, ChainContent]]:
    """Return what the chain shows, read after this call began.

    Raises MissingObjectError for an object that stays missing.
    """
    views, view = yield from get_fresh_view(ctx, views, tp)
    # Another vacuum may be faster, and a LIST may race with a writer. The LIST may also show clean-up above a log start
    # that moved after the view was read, which looks like damage until the view is read again.
    view, content = yield from relisting(ctx, view, _content, again=CorruptLogError)
    return with_view(views, view), content


def _content(view: PartitionView) -> Program[ChainContent]:
    # The view is older than the LIST. A slot of the view that was sealed since appears here as an index.
    tp = view.topic_partition
    folder = vacuum.sort_out((yield List(tp.folder)), tp.folder)
    cleans = yield from many([_read_clean(tp, number) for number in folder.cleans])
    internal = tp.topic in INTERNAL_TOPICS
    start = folder.listing.boundary if internal else view.state.log_start_offset
    for name in chain.walk(folder.listing, cleans[-1][0] if cleans else None, start):
        # A damaged chain does not show which files it names.
        if name not in folder.indexes:
            raise MissingObjectError(f"{tp.folder}{name.index}: the highest .clean names it, and it is gone")
    named = {file.path for stored in view.tail for file in stored.record.files}
    if not internal:
        for paths in (yield from many([_files_of_index(tp, name) for name in sorted(folder.indexes)])):
            named.update(paths)
        for record in (yield from read_records(tp, _unsealed(view, folder))):
            named.update(file.path for file in record.files)
    return ChainContent(view=view, folder=folder, cleans=tuple(cleans), named=frozenset(named))


def _unsealed(view: PartitionView, folder: Folder) -> list[int]:
    """Return slots that no index covers and that the view does not hold."""
    held = {stored.record.base_offset for stored in view.tail}
    # Segments are sorted and disjoint, so only the last one that begins at or below a slot can cover it.
    segments = folder.listing.segments
    found = []
    for base in folder.slots:
        at = bisect_right(segments, base, key=lambda name: name.base_offset) - 1
        if base not in held and not (at >= 0 and base < segments[at].end_offset):
            found.append(base)
    return found


def _read_clean(tp: TopicPartition, number: int) -> Program[tuple[Clean, int | None]]:
    return (yield from read_clean(tp, number)), (yield Modified(tp.folder + names.clean_name(number)))


def _files_of_index(tp: TopicPartition, name: SegmentName) -> Program[tuple[str, ...]]:
    index = yield from read_plain_index(tp, name)
    return tuple(file.path for file in index.files)


def read_records(tp: TopicPartition, slots: Iterable[int]) -> Program[list[CommitRecord]]:
    """Return the records of slots that were listed. Raises MissingObjectError if one is gone."""
    found = yield from many([_read_listed(tp, slot) for slot in slots])
    return [stored.record for records in found for stored in records]


def _read_listed(tp: TopicPartition, slot: int) -> Program[tuple[StoredRecord, ...]]:
    stored = yield from read_slot(tp, slot)
    if not stored:
        raise MissingObjectError(f"{tp.folder}{names.batch_name(slot)}: it was listed, and it is gone")
    return stored


def judge_drawn(files: Sequence[str], known: ChainContent, now_ms: int, grace_ms: int) -> Program[dict[str, Why]]:
    """Return those unnamed files of drawn producer ids that are dead, each with the reason (C9)."""
    wanted = []
    for path in files:
        parsed = names.parse_rows_path(path)
        if parsed is not None and parsed.producer_id >= FIRST_DRAWN_PRODUCER_ID and path not in known.named:
            wanted.append(path)
    if not wanted:
        return {}
    tp = known.topic_partition
    last = known.view.last
    last_slot_ms = None if last is None else (yield Modified(tp.folder + names.batch_name(last.slot)))
    times = yield from many([modified(f"{tp.topic}/{path}") for path in wanted])
    found = {}
    for path, modified_ms in zip(wanted, times, strict=True):
        why = vacuum.judge_drawn(modified_ms, last_slot_ms, now_ms, grace_ms)
        if why is not None:
            found[path] = why
    return found


def dead_files(
    files: Iterable[str], known: ChainContent, drawn: Mapping[str, Why], table: Mapping[int, TransactionMetadata]
) -> list[Dead]:
    found = []
    for path in files:
        parsed = names.parse_rows_path(path)
        if parsed is None or path in known.named:
            continue
        why = drawn.get(path) or vacuum.judge_producer(parsed.producer_id, parsed.producer_epoch, table)
        if why is not None:
            found.append(Dead(path=f"{known.topic_partition.topic}/{path}", kind=Kind.ROWS, why=why))
    return found


def dead_staged_lists(
    staged_lists: Sequence[str], known: ChainContent, table: Mapping[int, TransactionMetadata]
) -> Program[list[Dead]]:
    whys = {}
    for name in staged_lists:
        parsed = names.parse_staged_list_name(name)
        why = None if parsed is None else vacuum.judge_producer(parsed[0], parsed[1], table)
        if why is not None:
            whys[name] = why
    if not whys:
        return []
    tp = known.topic_partition
    records = [stored.record for stored in known.view.tail]
    held = {record.base_offset for record in records}
    records += yield from read_records(tp, [base for base in known.folder.slots if base not in held])
    named = {
        entry.value.staged_object.name
        for record in records
        for entry in record.entries
        if isinstance(entry, TransactionEntry) and entry.value is not None and entry.value.staged_object is not None
    }
    return [
        Dead(path=tp.folder + name, kind=Kind.STAGED_LIST, why=why) for name, why in whys.items() if name not in named
    ]


def dead_waiting(known: ChainContent) -> Program[list[Dead]]:
    """Return the records that wait for a slot which is sealed (W69). If one is not settled, its writer tries again."""
    folder = known.topic_partition.folder + names.WAITING_FOLDER
    listed: tuple[str, ...] = (yield List(folder)) if known.folder.has_waiting else ()
    found = ((name, names.parse_waiting_name(name)) for name in listed)
    return [
        Dead(path=folder + name, kind=Kind.WAITING, why=Why.SETTLED)
        for name, parsed in found
        if parsed is not None and parsed[0] < known.view.sealed_end
    ]


_KINDS = {"index": Kind.INDEX, "txnindex": Kind.TXNINDEX, "parquet": Kind.SEGMENT_ROWS}


def dead_parts(
    known: ChainContent, bounds_ms: Mapping[int, int | None], boundary: int, now_ms: int, grace_ms: int
) -> tuple[list[Dead], frozenset[str]]:
    """Return superseded objects of segments and runs, indexes first.

    The second value holds the names of those that no `.clean` lists yet.
    """
    tp, folder = known.topic_partition, known.folder
    internal = tp.topic in INTERNAL_TOPICS
    runs = known.clean.runs if known.clean is not None else ()
    prefix = f"{tp.partition}/"
    named = {path.removeprefix(prefix) for path in known.named}
    gone_below = folder.listing.boundary if internal else known.state.log_start_offset
    superseded = vacuum.superseded_parts(folder, runs, gone_below, named, internal=internal)
    notes = vacuum.collect_notes(known.cleans)
    marks = set()
    found = []
    # An index is deleted before its transaction index. A reader that finds the index missing lists again, but an index
    # that announces a missing `.txnindex` is damage.
    for part in sorted(superseded, key=lambda each: (list(_KINDS).index(each.kind), each.segment)):
        why = superseded[part]
        if internal:
            since = vacuum.first_above(folder.boundaries, bounds_ms, part.segment.end_offset)
        else:
            since = vacuum.noted_since(part, notes)
            if since is None:
                marks.add(vacuum.note_of(part, why))
        waits = _wait(since, now_ms, grace_ms)
        if part.segment.generation == 0 and part.segment.end_offset > boundary:
            # The index's own age shows when the slots may be deleted, so it stays until then.
            waits = waits or NOT_KNOWN_YET
        found.append(
            Dead(path=tp.folder + vacuum.part_name(part), kind=_KINDS[part.kind], why=why, waits_until_ms=waits)
        )
    return found, frozenset(marks)


def dead_numbers(known: ChainContent, bounds_ms: Mapping[int, int | None], now_ms: int, grace_ms: int) -> list[Dead]:
    """Return superseded snapshots, boundaries and lists of cleaned runs."""
    folder = known.folder
    cleans_ms = {clean.number: modified_ms for clean, modified_ms in known.cleans}
    return [
        Dead(
            path=known.topic_partition.folder + name_of(number),
            kind=kind,
            why=why,
            waits_until_ms=_wait(times_ms.get(higher), now_ms, grace_ms),
        )
        for name_of, kind, why, old, times_ms in (
            (names.snapshot_name, Kind.SNAPSHOT, Why.OLD_SNAPSHOT, vacuum.old_snapshots(folder), bounds_ms),
            (names.boundary_name, Kind.BOUNDARY, Why.OLD_BOUNDARY, vacuum.old_numbers(folder.boundaries), bounds_ms),
            (names.clean_name, Kind.CLEAN, Why.OLD_CLEAN, vacuum.old_numbers(folder.cleans), cleans_ms),
        )
        for number, higher in old.items()
    ]


def _wait(since_ms: int | None, now_ms: int, grace_ms: int) -> int | None:
    """Return until when an object that was superseded at `since_ms` must stay; None if it may be deleted now."""
    if since_ms is None or since_ms == NOT_KNOWN_YET:
        return NOT_KNOWN_YET
    return None if now_ms - since_ms >= grace_ms else since_ms + grace_ms
