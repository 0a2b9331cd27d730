"""`txlog seal`: end the active segments of topics, so that clean-up can take their rows."""

from __future__ import annotations

from txlog.cli.documents import SealedDocument
from txlog.cli.options import Partitions, Session, TopicsOrPartitions
from txlog.cli.output import Output
from txlog.cli.partitions import choose_partitions
from txlog.text import count_text


def seal(session: Session, names: TopicsOrPartitions, partitions: Partitions = None) -> None:
    """End the active segment of each partition, and seal it.

    Merges, compaction and retention take sealed segments only. A segment ends by itself with the next write after
    segment.batches, segment.bytes or segment.ms. A partition without new rows stays as it is.
    """
    wanted: dict[str, list[int]] = {}
    for tp in choose_partitions(session.store, names, partitions):
        wanted.setdefault(tp.topic, []).append(tp.partition)
    found = {tp: end for topic, numbers in wanted.items() for tp, end in session.admin.seal(topic, numbers).items()}
    documents = [
        SealedDocument(topic=tp.topic, partition=tp.partition, sealed_end=end) for tp, end in sorted(found.items())
    ]

    def text(out: Output) -> None:
        out.records(
            {"partition": f"{each.topic}-{each.partition}", "sealed up to": each.sealed_end} for each in documents
        )
        out.line(f"Sealed {count_text(len(documents), 'partition')}.")

    session.show(documents, text, [])
