"""How is a partition merged, and how does the result take effect?

Planning reads indexes and the table of transactions; whoever plans copies the rows where it likes, here or on Spark; then
the run's `.txnindex` and `.index` are created, and the next `.clean` names it, or nobody ever sees it (PROTOCOL.md,
"Clean-up", C1 to C5). A cleaner that dies, sleeps or loses leaves objects that no chain names: vacuum's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from txlog.core import chain, cleaning, envelope, names
from txlog.core.cleaning import Kept, MergePolicy
from txlog.core.effects import Get, List, NewId, Now, Program, PutIfAbsent, PutOutcome, Sleep
from txlog.core.fetch_plan import Piece, plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, Clean, CleanedRun, IndexedFile, IndexEntry
from txlog.errors import CoordinatorContentionError
from txlog.protocol.context import Context, Views, with_view
from txlog.protocol.load import load, present
from txlog.protocol.put import encode_readable, put_pure
from txlog.protocol.read import ReadIndex, aborted_of_range, read_indexes
from txlog.protocol.requests import store_now
from txlog.protocol.snapshot import fold_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """One run to be: where its rows are now, and all that its index needs. Picklable, so that the rows can be copied elsewhere."""

    topic_partition: TopicPartition
    run: CleanedRun
    inputs: tuple[SegmentName, ...]
    pieces: tuple[Piece, ...] = field(repr=False)
    """The committed rows, in the order of offsets."""
    indexes: tuple[ReadIndex, ...] = field(repr=False)
    aborted: tuple[AbortedTxn, ...] = field(repr=False)
    """All that overlap the run."""
    log_start_offset: int
    settled: Mapping[int, int] = field(repr=False)
    """Producer id -> the highest epoch of a marker whose transaction had been COMPLETE before `told_from_ms`; ids that the
    table lacks are not in it."""
    told_from_ms: int
    """Transactions as young as this are told apart, whatever the table says: snapshots may be older."""
    removed_from_ms: int
    """... and those as young as this whose id the table lacks: it was removed some time after they began."""
    counted: tuple[int, ...] | None = field(default=None, repr=False)
    """`entry_rows`, where the indexes are not."""

    @property
    def path(self) -> str:
        """Of the run's Parquet, relative to the topic's folder."""
        return cleaning.run_file_path(self.topic_partition, self.run)

    @property
    def files_before(self) -> int:
        """Files of rows that the inputs name."""
        return sum(len(read.index.files) for read in self.indexes)

    @property
    def bytes_before(self) -> int:
        """Bytes of those files."""
        return sum(file.bytes for read in self.indexes for file in read.index.files)

    def written_as(self, unique: str) -> Merge:
        """The same run under another unique suffix: whoever copies rows anew may not use a name again (C1)."""
        return replace(self, run=msgspec.structs.replace(self.run, unique=unique))

    def rows_only(self) -> Merge:
        """What copying the rows needs; indexes are large, and publishing alone reads them."""
        return replace(self, indexes=(), aborted=(), settled={}, counted=self.entry_rows)

    @property
    def entry_rows(self) -> tuple[int, ...]:
        """How many rows each entry of the run's index will have: within these they may be sorted."""
        if self.counted is not None:
            return self.counted
        return cleaning.rows_of_entries([read.index for read in self.indexes], self.aborted, self.is_told)

    def is_told(self, entry: IndexEntry) -> bool:
        """Whether the run's index must tell this batch's transaction apart (C3)."""
        if entry.kind == "commit":
            marker_epoch = entry.producer_epoch
        elif entry.transactional:
            # A transaction of epoch e ends by a marker of epoch e + 1.
            marker_epoch = entry.producer_epoch + 1
        else:
            return False
        if entry.timestamp >= self.told_from_ms:
            return True
        settled = self.settled.get(entry.producer_id)
        return entry.timestamp >= self.removed_from_ms if settled is None else marker_epoch > settled


def plan_merges(
    ctx: Context, views: Views, tp: TopicPartition, policy: MergePolicy
) -> Program[tuple[Views, tuple[Merge, ...]]]:
    """What is worth merging in a partition now. The table of transactions is folded first (C3), then the partition read.

    Costs the table's GETs, then one GET a sealed segment and one a `.txnindex` that one announces.
    """
    views, rows, _ = yield from fold_table(ctx, views)
    # A view that followed the tail by name does not know which runs are current.
    view = yield from load(ctx, tp)
    indexes = yield from read_indexes(tp, list(view.walk), {})
    groups = cleaning.choose_merges(
        view.walk,
        {name: read.index for name, read in indexes.items()},
        log_start_offset=view.state.log_start_offset,
        last_stable_offset=view.state.last_stable_offset,
        policy=policy,
    )
    if not groups:
        return with_view(views, view), ()
    bounds = cleaning.told_bounds((yield from store_now()), ctx.constants.delete_grace_ms)
    settled = cleaning.settled_epochs(rows, (read.index for read in indexes.values()), bounds.told_from_ms)
    merges = []
    for inputs in groups:
        base, end = inputs[0].base_offset, inputs[-1].end_offset
        indexes, aborted = yield from aborted_of_range(view, list(inputs), indexes, base, end)
        unique = yield NewId()
        merges.append(
            Merge(
                topic_partition=tp,
                run=cleaning.merged_run(inputs, unique),
                inputs=inputs,
                pieces=plan_fetch(
                    tp=tp,
                    indexes=[indexes[name].index for name in inputs],
                    tail=(),
                    aborted=aborted,
                    start=base,
                    end=end,
                ),
                indexes=tuple(indexes[name] for name in inputs),
                aborted=aborted,
                log_start_offset=view.state.log_start_offset,
                settled=settled,
                told_from_ms=bounds.told_from_ms,
                removed_from_ms=bounds.removed_from_ms,
            )
        )
    return with_view(views, view), tuple(merges)


def publish(ctx: Context, merge: Merge, file: IndexedFile | None, kept: Kept | None = None) -> Program[bool]:
    """Creates the run's objects, and the `.clean` that names it (C4, invariant 13). -> whether it took effect; else its objects are vacuum's.

    `file` holds the rows of `merge.pieces`, or those of them that a compaction `kept`, with their offsets, written under
    `merge.path`; None if there are none. Raises CorruptLogError if it holds another number of them.
    """
    tp = merge.topic_partition
    index, txn_index = cleaning.merged_index(
        tp,
        merge.run,
        [(read.index, read.aborted) for read in merge.indexes],
        merge.aborted,
        file,
        log_start_offset=merge.log_start_offset,
        is_told=merge.is_told,
        kept=kept,
    )
    name = merge.run.name
    if txn_index is not None:
        yield from put_pure(ctx, tp.folder + name.txnindex, encode_readable(tp.folder + name.txnindex, txn_index))
    yield from put_pure(ctx, tp.folder + name.index, encode_readable(tp.folder + name.index, index))
    return (yield from _name_run(ctx, merge))


def _name_run(ctx: Context, merge: Merge) -> Program[bool]:
    """The next `.clean` with the run, unless an input is not current any more (C4)."""
    tp = merge.topic_partition
    for attempt in range(ctx.max_races):
        listing, before = yield from _cleaned(tp)
        if before is not None and merge.run in before.runs:
            # That number may have been free again, and this very run in it only since the LIST: then a higher one is there.
            if chain.parse_listing((yield List(tp.folder)), tp.folder).clean == listing.clean:
                return True
            continue
        made = cleaning.next_clean(before, listing, merge.run, merge.inputs, (yield Now()))
        if made is None:
            return False
        path = tp.folder + names.clean_name(made.number)
        outcome: PutOutcome = yield PutIfAbsent(path, envelope.encode(made))
        if outcome is not PutOutcome.WRITTEN:
            # Whoever won, and whether this one did, the next LIST shows.
            yield Sleep(ctx.backoff_ms(min(attempt, 3)))
            continue
        # A cleaner that slept may have created a number that vacuum had removed: only the highest of a later LIST counts.
        listing, after = yield from _cleaned(tp)
        return listing.clean == made.number or (after is not None and merge.run in after.runs)
    raise CoordinatorContentionError(
        f"{tp}: {ctx.max_races} others published clean-ups while {merge.run.name.index} was to be; try again"
    )


def _cleaned(tp: TopicPartition) -> Program[tuple[chain.PartitionListing, Clean | None]]:
    listing = chain.parse_listing((yield List(tp.folder)), tp.folder)
    if listing.clean is None:
        return listing, None
    path = tp.folder + names.clean_name(listing.clean)
    clean, _ = envelope.decode(present((yield Get(path)), path), Clean, path)
    chain.check_clean(clean, listing.clean, path)
    return listing, clean
