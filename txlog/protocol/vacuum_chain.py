"""What does the chain of a partition show to vacuum: its folder, its cleaned runs, and every file that it names?

This is the third step of a pass (PROTOCOL.md, C8). It reads every list of cleaned runs, every index and every slot that
no index covers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from txlog.core import chain, names, vacuum
from txlog.core.effects import List, Modified, Program
from txlog.core.names import INTERNAL_TOPICS, SegmentName, TopicPartition
from txlog.core.records import Clean, CommitRecord
from txlog.core.state import PartitionState
from txlog.core.vacuum import Folder
from txlog.errors import MissingObjectError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, read_clean, read_slot, relisting
from txlog.protocol.read import read_plain_index
from txlog.protocol.requests import many


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
    # Another vacuum may be faster, and a LIST may race with a writer.
    view, content = yield from relisting(ctx, view, _content)
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
        for record in (yield from many([read_record(tp, base) for base in _unsealed(view, folder)])):
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


def read_record(tp: TopicPartition, base_offset: int) -> Program[CommitRecord]:
    """Return the record of a slot that was listed. Raises MissingObjectError if it is gone."""
    stored = yield from read_slot(tp, base_offset)
    if stored is None:
        raise MissingObjectError(f"{tp.folder}{names.batch_name(base_offset)}: it was listed, and it is gone")
    return stored.record
