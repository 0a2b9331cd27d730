"""How is a topic's chain of publications read and continued, and what does a cut of the topic show in files?

A publication is decided by creating its object. Then the files of each format follow, which are a pure function of the
chain. So two publishers at once, or one that dies anywhere, end in the same tables (PROTOCOL.md, "Publication").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from txlog.core import envelope, names
from txlog.core.ages import ClockReading
from txlog.core.effects import Get, List, Program, ReadClocks, gathered
from txlog.core.names import TopicPartition
from txlog.core.publication import WHOLE_EVERY, ShownPartition, Tables, fold, shown_partition, whole
from txlog.core.published_checks import follow
from txlog.core.records import Publication
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidRequestError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import present, relisting
from txlog.protocol.put import create_or_read, encode_readable
from txlog.protocol.read import ReadIndexes, aborted_of_range, read_indexes
from txlog.protocol.requests import get, many
from txlog.protocol.snapshot import take_snapshot
from txlog.protocol.snapshot_as_of import hide_transactions, transactions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A topic's publications that are needed: from the last one that lists all files on, or from a known one."""

    tables: tuple[Tables, ...] = field(default=(), repr=False)
    """The tables after each of these publications, in order; empty if the topic was never published."""

    @property
    def newest(self) -> Tables | None:
        return self.tables[-1] if self.tables else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one cut of a topic shows in files."""

    partitions: tuple[ShownPartition, ...]
    cut_at: int
    indexes: Mapping[TopicPartition, ReadIndexes] = field(repr=False)
    """The indexes of the log at this cut. Pass them to the next call."""


def read_chain(topic: str, known: Tables | None = None) -> Program[Chain]:
    """Read a topic's publications. Costs one LIST, and a GET for each publication since the last one that is whole.

    `known` are the tables after an earlier publication. Then a GET shows that the store still has it, and only newer
    ones are read. Raises CorruptRecordError or MissingObjectError naming the object.
    """
    newest = yield from newest_number(topic)
    if newest is None:
        return Chain()
    if known is not None and first_whole(newest) <= known.number <= newest:
        stored = yield Get(names.publication_path(topic, known.number))
        if stored is not None and envelope.digest(stored) == known.digest:
            newer = yield from read_publications(topic, known.number + 1, newest, known)
            return Chain(tables=(known, *newer.tables))
    return (yield from read_publications(topic, first_whole(newest), newest))


def newest_number(topic: str) -> Program[int | None]:
    """Return the number of a topic's newest publication; None if there is none. Costs one LIST."""
    listed = yield List(f"{topic}/{names.PUBLICATION_FOLDER}")
    return max((number for name in listed if (number := names.parse_publication_name(name)) is not None), default=None)


def first_whole(number: int) -> int:
    """Return the last publication up to `number` that lists all files."""
    return number - number % WHOLE_EVERY


def read_publications(topic: str, first: int, last: int, before: Tables | None = None) -> Program[Chain]:
    """Read publications `first` to `last`.

    Without `before`, the tables one publication earlier, the first must be whole.
    """
    paths = [names.publication_path(topic, number) for number in range(first, last + 1)]
    found = yield from many([get(path) for path in paths])
    tables: list[Tables] = []
    for path, data in zip(paths, found, strict=True):
        stored = present(data, path)
        publication, _ = envelope.decode(stored, Publication, path)
        tables.append(follow(tables[-1] if tables else before, publication, envelope.digest(stored), path))
    return Chain(tables=tuple(tables))


def append_publication(ctx: Context, before: Tables | None, publication: Publication) -> Program[Tables | None]:
    """Create the next publication; return the tables after it, or None if another process has created that number.

    It is made whole if its number asks for it. Raises RecordTooLargeError if it names too many files,
    OutcomeUnknownError.
    """
    if before is not None and publication.number == first_whole(publication.number):
        publication = whole(before, publication)
    path = names.publication_path(publication.topic, publication.number)
    data = encode_readable(
        path, publication, instead="the tables stay as they are. hint: merge the topic's small files first"
    )

    def is_own(stored: bytes) -> bool:
        return stored == data or envelope.decode(stored, Publication, path)[0].write_id == publication.write_id

    won = yield from create_or_read(ctx, path, data, is_own, what="the publication")
    return fold(before, publication, envelope.digest(data)) if won else None


def take_shown(
    ctx: Context,
    views: Views,
    partitions: Sequence[TopicPartition],
    indexes: Mapping[TopicPartition, ReadIndexes] = MappingProxyType({}),
) -> Program[tuple[Views, Shown]]:
    """Take a cut of all `partitions` of a topic that ends before the rows that are not in files yet.

    It shows each transaction wholly or not at all. The views are fresh, so a cut that is taken later shows no less.
    Costs a snapshot, and a GET for each index that is not in `indexes`. Raises InvalidRequestError if a compaction was
    faster; a later call succeeds.
    """
    views, cut = yield from take_snapshot(ctx, views, partitions)
    found = {tp: _below_inline_rows(views[tp], cut.ends[tp]) for tp in partitions}
    cut = replace(
        hide_transactions(cut, [txn for *_, later in found.values() for txn in later]),
        ends={tp: end for tp, (end, *_) in found.items()},
    )
    shown = yield from gathered(_shown(ctx, views[tp], cut, indexes.get(tp, {})) for tp in partitions)
    views = with_view(views, *(view for view, _ in shown))
    # After the indexes were read: a merge may have joined batches of transactions that are older than the grace.
    now: ClockReading = yield ReadClocks()
    for tp, (end, inline_at, _) in found.items():
        if inline_at is not None and now.wall_ms - inline_at >= ctx.constants.delete_grace_ms:
            raise InvalidRequestError(
                f"{tp}: rows in commit records from offset {end} on are older than delete.grace.ms = "
                f"{ctx.constants.delete_grace_ms} ms and not in a file yet, so a cut cannot tell which "
                "transactions go on there. "
                "hint: seal them, with `txlog maintain --once`, and publish again"
            )
    return views, Shown(
        partitions=tuple(each for _, (each, _) in shown),
        cut_at=cut.taken_at.wall_ms,
        indexes={tp: known for tp, (_, (_, known)) in zip(partitions, shown, strict=True)},
    )


def _below_inline_rows(view: PartitionView, end: int) -> tuple[int, int | None, set[tuple[int, int]]]:
    """Return the first offset with inline rows, their time if any, and the transactions from there to `end`."""
    tail = [each.record for each in view.tail if each.record.base_offset < end]
    log_start = view.state.log_start_offset
    inline = next((each for each in tail if each.payload_bytes and each.end_offset > log_start), None)
    first = end if inline is None else min(inline.base_offset, end)
    later = transactions_of(each for each in tail if each.records and each.base_offset >= first)
    return first, None if inline is None else inline.timestamp, later


def _shown(
    ctx: Context, view: PartitionView, cut: SnapshotCut, indexes: ReadIndexes
) -> Program[tuple[PartitionView, tuple[ShownPartition, ReadIndexes]]]:
    tp = view.topic_partition
    end = cut.ends[tp]

    def find(found: PartitionView) -> Program[tuple[ShownPartition, ReadIndexes]]:
        start = found.state.log_start_offset
        chosen = [name for name in found.walk if name.end_offset > start and name.base_offset < end]
        # An index of a name never changes, so one that was read for an earlier view is still right.
        held = {name: indexes[name] for name in found.walk if name in indexes}
        known = yield from read_indexes(found, chosen, held)
        known, aborted = yield from aborted_of_range(found, chosen, known, start, end)
        cut.check_age((yield ReadClocks()), ctx.constants.delete_grace_ms)
        for name in chosen:
            cut.check_compacted(tp, known[name].index)
        shown = shown_partition(
            tp=tp,
            indexes=[known[name].index for name in chosen],
            tail=[each.record for each in found.tail],
            aborted=aborted,
            log_start_offset=start,
            end_offset=max(end, start),
            cut=cut,
        )
        return shown, known

    return (yield from relisting(ctx, view, find))
