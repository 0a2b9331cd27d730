"""`txlog publish`: make topics tables of other formats, and keep them up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from txlog.cli.documents import PublishDocument, PublishedDocument, PublishedFileDocument, TopicDocument, document_of
from txlog.cli.errors import notes_of
from txlog.cli.interrupts import Interrupts
from txlog.cli.options import Session, argument, option
from txlog.cli.output import Output
from txlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    RetriableError,
    StoreChangedError,
    TxlogError,
    UnknownTopicOrPartitionError,
    split_hint,
)
from txlog.text import bytes_text, count_text, duration_text, shorten, time_text

if TYPE_CHECKING:
    from txlog.core.records import TopicMetadata

_INTERVAL_MS = 10_000


def publish(
    session: Session,
    names: Annotated[list[str], argument("TOPIC", "Only these topics; all with publish.formats if none is named.")],
    once: Annotated[bool, option("--once", "Publish what is committed now, then end.")] = False,
    daemon: Annotated[bool, option("--daemon", "Publish again and again until a signal ends the program.")] = False,
    files: Annotated[
        bool, option("--files", "Only show the files of the newest publication, for engines that take a list of files.")
    ] = False,
    interval_ms: Annotated[
        int, option("--interval-ms MS", "With --daemon: the pause between two rounds.", min=0)
    ] = _INTERVAL_MS,
) -> None:
    """Make topics tables of other formats: Delta Lake, Iceberg. No row is copied, their metadata name the topic's
    files.

    The setting publish.formats of a topic says which formats. The tables show the rows of one snapshot of the topic:
    each transaction wholly or not at all, and no row of an open or aborted one. Rows in commit records get a file when
    they are older than publish.max.lag.ms. Any number of publishers may run beside writers and maintenance, and each
    may be killed at any point. `txlog maintain` publishes, too.
    """
    runtime = session.store.runtime
    if once + daemon + files != 1:
        raise InvalidRequestError("give one of --once for one round, --daemon for one round after another, or --files")
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.publish import publish_topics
    from txlog.publication.cache import PublicationCache
    from txlog.publication.outcome import Published

    if files:
        _show_files(session, names)
        return
    reads = read_session(runtime)
    workers = session.workers(runtime)
    cache = PublicationCache()
    with Interrupts() as interrupts:
        while True:
            made: list[PublishDocument] = []
            failed: list[TxlogError] = []
            try:
                for name, found in _found(session, names, deleted=True):
                    outcome: object = found
                    if not isinstance(found, TxlogError):
                        if found.topic_id in cache.emptied:
                            continue
                        ((_, outcome),) = publish_topics(reads, [found], workers, cache=cache)
                        if found.deleted and isinstance(outcome, Published) and not outcome.publications:
                            continue
                    if isinstance(outcome, UnknownTopicOrPartitionError) and not names:
                        continue  # it was deleted meanwhile
                    if isinstance(outcome, TxlogError):
                        failed.append(outcome)
                    made.append(_document(session, name, found, outcome))
                    if interrupts.received is not None:
                        break
            except RetriableError as error:
                if once:
                    raise
                failed.append(error)
            if once:
                session.show(made, lambda out: show_published(out, made), failed)  # noqa: B023  shown at once
                interrupts.check()
                return
            _tell(session, made, failed)
            interrupts.sleep(runtime.clock, interval_ms)
            if interrupts.received is not None:
                return


def show_published(out: Output, documents: Sequence[PublishDocument]) -> None:
    """Show a table of topics, and sentences."""
    if not documents:
        out.line(
            "Nothing is published: no topic has publish.formats. "
            "`txlog topics alter TOPIC --set publish.formats=delta,iceberg` sets it."
        )
        return
    if len(documents) == 1 and documents[0].error is not None:
        return  # the error is shown after this
    some_failed = any(each.error is not None for each in documents)
    some_in_catalog = any(each.catalog_commits is not None for each in documents)
    out.records(
        {
            "topic": each.topic,
            "formats": ", ".join(each.formats),
            "publication": each.publication if each.error is None else None,
            "new rows": each.rows_added if each.error is None else None,
            "of them copied": each.rows_copied if each.error is None else None,
            "files added": each.files_added if each.error is None else None,
            "files removed": each.files_removed if each.error is None else None,
            **({"commits in catalog": each.catalog_commits} if some_in_catalog else {}),
            **({"failed": each.error and shorten(split_hint(each.error)[0], 80)} if some_failed else {}),
        }
        for each in documents
    )
    for each in documents:
        if each.must_rewrite:
            out.line(
                f"{each.topic}: {count_text(each.must_rewrite, 'file')} must be rewritten for other formats, and a "
                "transaction that is still open holds them. The tables stay as they are until then."
            )


def published(session: Session, document: TopicDocument) -> PublishedDocument | None:
    """Return how far the tables of a topic are; None if it has none. Costs one LIST, or two for a published topic."""
    from txlog.protocol.publications import read_chain

    runtime = session.store.runtime
    tables = runtime.run(read_chain(document.topic)).newest
    if tables is None or not tables.newest.formats:
        return None
    newest = tables.newest
    ends = tuple(each.end_offset for each in newest.partitions)
    shown = dict(enumerate(ends))
    behind = any(each.last_stable_offset > shown.get(each.partition, 0) for each in document.ends)
    return PublishedDocument(
        formats={name: tables.version_of(name) for name in newest.formats},
        publication=tables.number,
        cut_at=newest.cut_at,
        ends=ends,
        behind_ms=max(0, runtime.clock.now_ms() - newest.cut_at) if behind else 0,
    )


def describe_published(out: Output, document: PublishedDocument) -> None:
    """Show how far the tables of a topic are."""
    out.heading("Published")
    out.fields(
        [
            ("tables", ", ".join(f"{name} version {version}" for name, version in document.formats.items())),
            ("publication", document.publication),
            ("shows rows below", ", ".join(f"{number}: {end}" for number, end in enumerate(document.ends))),
            ("as of", time_text(document.cut_at)),
            ("behind", duration_text(document.behind_ms) if document.behind_ms else "no committed row"),
        ]
    )


def _found(
    session: Session, names: Sequence[str], *, deleted: bool = False
) -> Iterator[tuple[str, TopicMetadata | TxlogError]]:
    """Yield each topic that is to be published, or why it cannot be: one that is damaged must not stop the others.

    Without `names` also `deleted` ones.
    """
    from txlog.publication.publish import formats_of

    runtime = session.store.runtime
    damaged: list[CorruptLogError] = []
    every = list(dict.fromkeys(names)) or runtime.list_topics(damaged, deleted=deleted)
    for error in damaged:
        yield "", error
    for each in every:
        name = each if isinstance(each, str) else each.topic
        try:
            topic = runtime.topic(each, 0) if isinstance(each, str) else each
            is_due = bool(names or formats_of(runtime, topic))
        except StoreChangedError:
            raise
        except TxlogError as error:
            yield name, error
            continue
        if is_due:
            yield name, topic


def _document(session: Session, name: str, topic: object, made: object) -> PublishDocument:
    from txlog.core.records import TopicMetadata
    from txlog.publication.outcome import Published
    from txlog.publication.publish import formats_of

    done = made if isinstance(made, Published) else Published(topic=name, number=-1, publications=0)
    return document_of(
        PublishDocument,
        done,
        formats=formats_of(session.store.runtime, topic) if isinstance(topic, TopicMetadata) and done is made else (),
        publication=done.number,
        must_rewrite=len(done.must_rewrite),
        error=" ".join((str(made), *notes_of(made))) if isinstance(made, TxlogError) else None,
    )


def _tell(session: Session, made: Sequence[PublishDocument], failed: Sequence[TxlogError]) -> None:
    """Print a line for each topic of which something was published, or that could not be."""
    out, now_ms = session.out, session.store.runtime.clock.now_ms()
    for each in made:
        if each.publications:
            if out.is_json:
                out.show(each, lambda _: None)
            else:
                out.line(
                    f"{time_text(now_ms)}  {each.topic}: publication {each.publication}, "
                    f"{count_text(each.rows_added, 'new row')} in {count_text(each.files_added, 'file')}"
                )
    for error in failed:
        again = "; the next round tries again" if isinstance(error, RetriableError) else ""
        out.note(f"{time_text(now_ms)}  {error}{again}")
        for note in notes_of(error):
            out.note(f"  {note}")
    out.flush()


def _show_files(session: Session, names: Sequence[str]) -> None:
    from txlog.core.row_runs import removed_runs
    from txlog.protocol.publications import read_chain

    runtime = session.store.runtime
    newest = {}
    for name, found in _found(session, names):
        if isinstance(found, TxlogError):
            raise found
        newest[name] = runtime.run(read_chain(name)).newest
    documents = [
        document_of(
            PublishedFileDocument,
            file,
            topic=topic,
            url=f"{runtime.url}/{topic}/{file.path}",
            removed=tuple((run.first_row, run.end_row) for run in removed_runs(file)),
        )
        for topic, tables in newest.items()
        if tables is not None
        for file in tables.files.values()
    ]
    session.out.show(
        documents,
        lambda out: out.records(
            {
                "topic": each.topic,
                "partition": each.partition,
                "rows": each.rows - sum(end - first for first, end in each.removed),
                "without rows": ", ".join(f"{first} to {end - 1}" for first, end in each.removed) or None,
                "bytes": bytes_text(each.bytes),
                "file": each.url,
            }
            for each in documents
        ),
    )
