"""How is a partition merged, and how does the result take effect?

1. Planning reads indexes and the table of transactions.
2. The caller copies the rows, here or on Spark.
3. The run's `.txnindex` and `.index` are created.
4. The next `.clean` names the run. Without that no reader ever sees it (PROTOCOL.md, "Clean-up", C1 to C5).

If a merge dies, sleeps or loses a race, it leaves objects that no chain names. Vacuum deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

import msgspec

from txlog.core import chain, cleaning, envelope, names
from txlog.core.cleaning import Kept, MergePolicy
from txlog.core.effects import List, NewId, Now, Program, PutIfAbsent, PutOutcome, Sleep
from txlog.core.fetch_plan import Piece, plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, Clean, CleanedRun, IndexedFile, IndexEntry, SegmentIndex
from txlog.core.snapshots import epoch_shown_with
from txlog.errors import CoordinatorContentionError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import load, read_clean
from txlog.protocol.put import encode_readable, put_pure
from txlog.protocol.read import ReadIndex, aborted_of_range, read_indexes
from txlog.protocol.requests import store_now
from txlog.protocol.snapshot import fold_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A planned run: where its rows are now, and all that its index needs. It can be pickled."""

    topic_partition: TopicPartition
    run: CleanedRun
    inputs: tuple[SegmentName, ...]
    pieces: tuple[Piece, ...] = field(repr=False)
    """The committed rows, in the order of offsets."""
    counted: tuple[int, ...] | None = field(default=None, repr=False)
    """`entry_rows`, for a merge without its indexes."""
    indexes: tuple[ReadIndex, ...] = field(repr=False)
    """Indexes of the inputs."""
    aborted: tuple[AbortedTxn, ...] = field(repr=False)
    """All aborted transactions that overlap the inputs."""
    log_start_offset: int
    settled: Mapping[int, int] = field(repr=False)
    """Producer id -> the highest marker epoch whose transaction had been COMPLETE before `distinct_from_ms`; without
    ids that the table lacks."""
    distinct_from_ms: int
    """Transactions from this time on are kept distinct, whatever the table shows, because a snapshot may be older."""
    removed_from_ms: int
    """Transactions from this time on are kept distinct if the table lacks their id: it was removed some time after they
    began."""

    @property
    def path(self) -> str:
        """Return the path of the run's Parquet file, relative to the topic's folder."""
        return names.segment_file_path(self.topic_partition.partition, self.run.name)

    @property
    def files_before(self) -> int:
        """Return how many files of rows the inputs name."""
        return sum(len(read.index.files) for read in self.indexes)

    @property
    def bytes_before(self) -> int:
        """Return the bytes of those files."""
        return sum(file.bytes for read in self.indexes for file in read.index.files)

    def written_as(self, unique: str) -> Self:
        """Return the same run under another unique suffix: a second copy of the rows must not use a name again (C1)."""
        return replace(self, run=msgspec.structs.replace(self.run, unique=unique))

    def over(self, names: Sequence[SegmentName]) -> Merge:
        """Return the run over some of the inputs, which are neighbours."""
        first = self.inputs.index(names[0])
        indexes = self.indexes[first : first + len(names)]
        return replace(
            self,
            run=cleaning.merged_run(names, self.run.unique),
            inputs=tuple(names),
            pieces=committed_rows(self.topic_partition, indexes, self.aborted, names[0].base_offset),
            indexes=indexes,
        )

    def rows_only(self) -> Merge:
        """Return only what copying the rows needs. Indexes are large, and only publishing reads them."""
        return replace(self, indexes=(), aborted=(), settled={}, counted=self.entry_rows)

    @property
    def entry_rows(self) -> tuple[int, ...]:
        """Return how many rows each entry of the run's index will have. Rows may be sorted within an entry."""
        if self.counted is not None:
            return self.counted
        indexes = [read.index for read in self.indexes]
        return cleaning.rows_of_entries(self.topic_partition, indexes, self.aborted, self.keeps_distinct)

    def keeps_distinct(self, entry: IndexEntry) -> bool:
        """Return whether the run's index must keep this batch's transaction distinct (C3)."""
        epoch = epoch_shown_with(entry)
        if epoch is None:
            return False
        if entry.timestamp >= self.distinct_from_ms:
            return True
        settled = self.settled.get(entry.producer_id)
        return entry.timestamp >= self.removed_from_ms if settled is None else epoch > settled


Choose: TypeAlias = Callable[[PartitionView, Mapping[SegmentName, SegmentIndex]], Sequence[tuple[SegmentName, ...]]]
"""The groups of neighbours that become one run each, by the view and the indexes of its walk."""


def plan_merges(
    ctx: Context, views: Views, tp: TopicPartition, policy: MergePolicy
) -> Program[tuple[Views, tuple[Merge, ...]]]:
    """Return the merges that a partition needs now. Costs `plan_runs`."""

    def choose(view: PartitionView, indexes: Mapping[SegmentName, SegmentIndex]) -> Sequence[tuple[SegmentName, ...]]:
        return cleaning.choose_merges(
            view.walk,
            indexes,
            log_start_offset=view.state.log_start_offset,
            last_stable_offset=view.state.last_stable_offset,
            policy=policy,
        )

    return (yield from plan_runs(ctx, views, tp, choose))


def plan_runs(
    ctx: Context, views: Views, tp: TopicPartition, choose: Choose
) -> Program[tuple[Views, tuple[Merge, ...]]]:
    """Return a run of all committed rows for each group of segments that `choose` returns.

    The table of transactions is folded first (C3), then the partition is read. Costs the GETs of the table, then one
    GET per sealed segment and per announced `.txnindex`.
    """
    views, rows, _ = yield from fold_table(ctx, views)
    # A view that followed the tail by name does not show which runs are current.
    view = yield from load(ctx, tp)
    indexes = yield from read_indexes(view, list(view.walk), {})
    groups = choose(view, {name: read.index for name, read in indexes.items()})
    if not groups:
        return with_view(views, view), ()
    distinct_from_ms, removed_from_ms = cleaning.distinct_bounds(
        (yield from store_now()), ctx.constants.delete_grace_ms
    )
    settled = cleaning.settled_epochs(rows, (read.index for read in indexes.values()), distinct_from_ms)
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
                pieces=committed_rows(tp, [indexes[name] for name in inputs], aborted, base),
                indexes=tuple(indexes[name] for name in inputs),
                aborted=aborted,
                log_start_offset=view.state.log_start_offset,
                settled=settled,
                distinct_from_ms=distinct_from_ms,
                removed_from_ms=removed_from_ms,
            )
        )
    return with_view(views, view), tuple(merges)


def committed_rows(
    tp: TopicPartition, indexes: Sequence[ReadIndex], aborted: Sequence[AbortedTxn], start: int
) -> tuple[Piece, ...]:
    """Return the committed rows of neighbours from offset `start` on, in the order of offsets."""
    found = [read.index for read in indexes]
    return plan_fetch(tp=tp, indexes=found, tail=(), aborted=aborted, start=start, end=found[-1].end_offset)


def publish(ctx: Context, merge: Merge, file: IndexedFile | None, kept: Kept | None = None) -> Program[bool]:
    """Create the run's objects and the `.clean` that names it (C4, invariant 13).

    Return whether it took effect; if not, vacuum deletes its objects. `file` holds the rows of `merge.pieces`, or those
    that a compaction `kept`, with their offsets, written under `merge.path`. Without rows there is no file. Raises
    CorruptLogError if the file does not have as many rows as the batches.
    """
    tp = merge.topic_partition
    index, txn_index = cleaning.merged_index(
        tp,
        merge.run,
        [(read.index, read.aborted) for read in merge.indexes],
        merge.aborted,
        file,
        log_start_offset=merge.log_start_offset,
        keeps_distinct=merge.keeps_distinct,
        kept=kept,
    )
    name = merge.run.name
    if txn_index is not None:
        yield from put_pure(ctx, tp.folder + name.txnindex, encode_readable(tp.folder + name.txnindex, txn_index))
    yield from put_pure(ctx, tp.folder + name.index, encode_readable(tp.folder + name.index, index))
    return (yield from _name_run(ctx, merge))


def _name_run(ctx: Context, merge: Merge) -> Program[bool]:
    """Create the next `.clean` with the run, unless an input is no longer current (C4).

    Return whether the run is in effect.
    """
    tp = merge.topic_partition
    for attempt in range(ctx.max_races):
        listing, before = yield from _cleaned(tp)
        if before is not None and merge.run in before.runs:
            # Vacuum may have freed that number, and an old publication of this run may have taken it after the LIST.
            # Then a higher number exists, so list again.
            if chain.parse_listing((yield List(tp.folder)), tp.folder).clean == listing.clean:
                return True
            continue
        made = cleaning.next_clean(before, listing, merge.run, merge.inputs, (yield Now()))
        if made is None:
            return False
        path = tp.folder + names.clean_name(made.number)
        outcome: PutOutcome = yield PutIfAbsent(path, envelope.encode(made))
        if outcome is not PutOutcome.WRITTEN:
            # The next LIST shows which process won, and whether this one did.
            yield Sleep(ctx.backoff_ms(min(attempt, 3)))
            continue
        # A process that slept may have created a number that vacuum had removed: only the highest of a later LIST
        # counts.
        listing, after = yield from _cleaned(tp)
        return listing.clean == made.number or (after is not None and merge.run in after.runs)
    raise CoordinatorContentionError(
        f"{tp}: lost {ctx.max_races} races to publish {merge.run.name.index} to other maintenance jobs; try again"
    )


def _cleaned(tp: TopicPartition) -> Program[tuple[chain.PartitionListing, Clean | None]]:
    listing = chain.parse_listing((yield List(tp.folder)), tp.folder)
    return listing, None if listing.clean is None else (yield from read_clean(tp, listing.clean))
