"""`txlog merge`: merge many small files into a few large ones, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.documents import MergeDocument
from txlog.cli.errors import raise_first
from txlog.cli.options import Partitions, Session, TopicsOption, TopicsOrPartitions, command
from txlog.cli.output import Output
from txlog.cli.partitions import choose_partitions
from txlog.cli.progress import progress_bar
from txlog.core.cleaning import DEFAULT_TARGET_BYTES, FileLayout, MergePolicy
from txlog.errors import CorruptLogError
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from txlog.maintenance.merge import Merged
    from txlog.protocol.clean import Merge


def register(app: typer.Typer, *, panel: str) -> None:
    """Add the command."""
    command(app, "merge", panel=panel)(merge)


def merge(
    session: Session,
    topic: TopicsOrPartitions = None,
    topic_option: TopicsOption = None,
    partitions: Partitions = None,
    target_bytes: Annotated[
        int,
        typer.Option(
            "--target-bytes",
            metavar="BYTES",
            min=1,
            help="Target size of a merged file. Files of at least half that size are not rewritten.",
        ),
    ] = DEFAULT_TARGET_BYTES,
    sort: Annotated[
        list[str] | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Sort the rows of each row group by this column, for smaller files and readers that skip pages; may be repeated. "
            "Offsets, and the order that txlog's readers return, stay.",
            show_default=False,
        ),
    ] = None,
    bloom: Annotated[
        list[str] | None,
        typer.Option(
            "--bloom",
            metavar="COLUMN",
            help="Write Bloom filters of this column, by which Spark skips row groups unless the topic has floats; may be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Only show what would be merged. Nothing is written.")
    ] = False,
) -> None:
    """Merge neighbouring sealed segments into files of the target size. No row that a reader sees changes.

    A merge leaves out rows of aborted transactions. Offsets and times do not change. It is safe beside writers, readers
    and other merges, and it can be killed at any point. The old files stay until vacuum deletes them.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.history import recorded
    from txlog.maintenance.merge import check_layout, merge_partition, plan_partition

    names = [*(topic or ()), *(topic_option or ())]
    wanted = choose_partitions(session.store, names, partitions)
    policy = MergePolicy(target_bytes=target_bytes)
    layout = FileLayout(sort=tuple(sort or ()), bloom=tuple(bloom or ()))
    runtime = session.store.runtime
    for name in {tp.topic for tp in wanted}:
        check_layout(runtime, runtime.topic(name), layout)
    reads = read_session(runtime)
    documents: list[MergeDocument] = []
    failed: list[CorruptLogError] = []
    with progress_bar("looking for small files", "rows") as progress, recorded(runtime, "merge") as history:
        for tp in wanted:
            try:
                if dry_run:
                    documents += [planned_document(each) for each in plan_partition(reads, tp, policy)]
                else:
                    with history.over(tp):
                        for each in merge_partition(runtime, reads, tp, policy, progress, layout):
                            history.add_merged(each)
                            documents.append(merge_document(each))
            except CorruptLogError as error:
                # Merge the other partitions. This one needs attention.
                failed.append(error)
            reads.forget([tp])
    session.out.show(documents, lambda out: show_merges(out, documents, dry_run=dry_run, failed=len(failed)))
    raise_first(failed)


def planned_document(merge: Merge) -> MergeDocument:
    """Return a run that would be made."""
    return MergeDocument(
        topic=merge.topic_partition.topic,
        partition=merge.topic_partition.partition,
        base_offset=merge.run.base_offset,
        end_offset=merge.run.end_offset,
        generation=merge.run.generation,
        outcome="planned",
        segments_before=len(merge.inputs),
        files_before=merge.files_before,
        bytes_before=merge.bytes_before,
    )


def merge_document(merged: Merged) -> MergeDocument:
    """Return a run that was made."""
    return MergeDocument(
        topic=merged.topic_partition.topic,
        partition=merged.topic_partition.partition,
        base_offset=merged.base_offset,
        end_offset=merged.end_offset,
        generation=merged.generation,
        outcome="merged" if merged.took_effect else "lost",
        segments_before=merged.segments_before,
        files_before=merged.files_before,
        bytes_before=merged.bytes_before,
        rows=merged.rows,
        files=merged.files,
        bytes=merged.bytes,
    )


def show_merges(out: Output, documents: Sequence[MergeDocument], *, dry_run: bool, failed: int) -> None:
    """Show a table of runs, and a sentence; `failed` partitions could not be merged."""
    if documents:
        out.table(
            ("partition", "offsets", "segments", "files", "bytes", "rows", "files after", "bytes after", "outcome"),
            [
                (
                    f"{each.topic}-{each.partition}",
                    f"{each.base_offset} to {each.end_offset - 1}",
                    each.segments_before,
                    each.files_before,
                    bytes_text(each.bytes_before),
                    each.rows,
                    each.files,
                    None if each.bytes is None else bytes_text(each.bytes),
                    each.outcome,
                )
                for each in documents
            ],
            empty="",
        )
        out.line()
    elif not failed:
        out.line(
            "Nothing to merge: what is sealed lies in files of the target size, or alone. The newest rows are sealed when segment.batches, "
            "segment.bytes or segment.ms are reached."
        )
        return
    made = [each for each in documents if each.outcome != "lost"]
    before = f"{count_text(sum(each.files_before for each in made), 'file')}, {bytes_text(sum(each.bytes_before for each in made))}"
    if dry_run:
        out.line(f"Would merge {before} into {count_text(len(made), 'file')}.")
    elif made:
        after = f"{count_text(sum(each.files or 0 for each in made), 'file')}, {bytes_text(sum(each.bytes or 0 for each in made))}"
        out.line(f"Merged {before} into {after}. What was merged stays until it is vacuumed.")
    if lost := len(documents) - len(made):
        out.line(f"{count_text(lost, 'run')} did not take effect: another clean-up of the same offsets was faster.")
