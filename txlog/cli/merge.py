"""`txlog merge`: merge many small files into a few large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from txlog.cli.documents import MergeDocument, document_of
from txlog.cli.options import Execute, Partitions, Session, TopicsOrPartitions, option
from txlog.cli.output import Output, progress_bar
from txlog.cli.partitions import choose_partitions
from txlog.core.cleaning import DEFAULT_TARGET_BYTES, FileLayout, MergePolicy
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from txlog.maintenance.merge import Merged
    from txlog.protocol.clean import Merge


def merge(
    session: Session,
    names: TopicsOrPartitions,
    partitions: Partitions = None,
    target_bytes: Annotated[
        int,
        option(
            "--target-bytes BYTES",
            "Target size of a merged file. Files of at least half that size are not rewritten.",
            min=1,
        ),
    ] = DEFAULT_TARGET_BYTES,
    sort: Annotated[
        list[str] | None,
        option(
            "--sort COLUMN",
            "Sort the rows of each row group by this column, for smaller files and readers that skip pages; may be "
            "repeated. Offsets, and the order that txlog's readers return, stay.",
        ),
    ] = None,
    bloom: Annotated[
        list[str] | None,
        option(
            "--bloom COLUMN",
            "Write Bloom filters of this column, by which Spark skips row groups unless the topic has "
            "floats; may be repeated.",
        ),
    ] = None,
    execute: Execute = False,
) -> None:
    """Merge neighbouring sealed segments into files of the target size. A dry run, unless --execute is given.

    No row that a reader sees changes, and no offset or time. A merge leaves out rows of aborted transactions. It is
    safe beside writers, readers and other merges, and it can be killed at any point. The old files stay until vacuum
    deletes them.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.history import record
    from txlog.maintenance.merge import check_layout, merge_partitions, plan_partition
    from txlog.maintenance.partition_loop import gather, look_over

    wanted = choose_partitions(session.store, names, partitions)
    policy = MergePolicy(target_bytes=target_bytes)
    layout = FileLayout(sort=tuple(sort or ()), bloom=tuple(bloom or ()))
    runtime = session.store.runtime
    for name in {tp.topic for tp in wanted}:
        check_layout(runtime, runtime.topic(name), layout)
    reads = read_session(runtime)
    with progress_bar("looking for small files", "rows") as progress:
        if execute:
            merging = merge_partitions(reads, wanted, policy, layout, session.workers(runtime), progress)
            merged, failed = gather(record(runtime, "merge", merging))
            documents = [merge_document(each) for each in merged]
        else:
            plans, failed = gather(look_over(reads, wanted, lambda tp: plan_partition(reads, tp, policy)))
            documents = [planned_document(each) for plan in plans for each in plan]
    session.show(documents, lambda out: show_merges(out, documents, executed=execute, failed=len(failed)), failed)


def planned_document(merge: Merge) -> MergeDocument:
    """Return a run that would be made."""
    sources = (merge, merge.run, merge.topic_partition)
    return document_of(MergeDocument, *sources, outcome="planned", segments_before=len(merge.inputs))


def merge_document(merged: Merged) -> MergeDocument:
    """Return a run that was made."""
    outcome = "merged" if merged.took_effect else "lost"
    return document_of(MergeDocument, merged, merged.topic_partition, outcome=outcome)


def show_merges(out: Output, documents: Sequence[MergeDocument], *, executed: bool, failed: int) -> None:
    """Show a table of runs, and a sentence; `failed` partitions could not be merged."""
    if documents:
        out.records(
            {
                "partition": f"{each.topic}-{each.partition}",
                "offsets": f"{each.base_offset} to {each.end_offset - 1}",
                "segments": each.segments_before,
                "files": each.files_before,
                "bytes": bytes_text(each.bytes_before),
                "rows": each.rows,
                "files after": each.files,
                "bytes after": None if each.bytes is None else bytes_text(each.bytes),
                "outcome": each.outcome,
            }
            for each in documents
        )
        out.line()
    elif not failed:
        out.line(
            "Nothing to merge: the files of sealed segments have the target size, or have no neighbour. The newest "
            "rows are sealed when segment.batches, segment.bytes or segment.ms is reached."
        )
        return
    made = [each for each in documents if each.outcome != "lost"]
    before = _amount(sum(each.files_before for each in made), sum(each.bytes_before for each in made))
    if not executed:
        out.line(f"Would merge {before} into {count_text(len(made), 'file')}. Add --execute to do it.")
    elif made:
        after = _amount(sum(each.files or 0 for each in made), sum(each.bytes or 0 for each in made))
        out.line(f"Merged {before} into {after}. The old files stay until vacuum deletes them.")
    show_lost(out, len(documents) - len(made))


def show_lost(out: Output, runs: int) -> None:
    """Say how many runs of merges or compactions did not take effect."""
    if runs:
        out.line(
            f"{count_text(runs, 'run')} did not take effect: another merge or compaction of the "
            "same offsets was faster."
        )


def _amount(files: int, size_bytes: int) -> str:
    return f"{count_text(files, 'file')}, {bytes_text(size_bytes)}"
