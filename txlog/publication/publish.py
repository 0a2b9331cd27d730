"""How does a topic become, and stay, a table of other formats?

A publisher first completes what another one has begun, then takes a cut of the topic, and compares it with the tables.
What changed is decided by creating the next object of the topic's chain of publications; then the files of each format
are written. Any process may publish, several may at once, and each may die anywhere (PROTOCOL.md, "Publication").
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core import envelope
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Program
from txlog.core.features import PUBLICATION
from txlog.core.names import TopicPartition
from txlog.core.publication import (
    Changes,
    Copy,
    Tables,
    compare,
    is_compacted_ahead,
    unclear_files,
)
from txlog.core.records import DataFile, Publication, SchemaField, TopicMetadata
from txlog.core.records.publications import FormatName, PublishedFile, PublishedPartition
from txlog.core.row_runs import count_rows
from txlog.errors import (
    CoordinatorContentionError,
    InvalidRequestError,
    MissingObjectError,
    TableConflictError,
    UnsupportedStoreError,
)
from txlog.logs import log
from txlog.protocol.context import Context, Views, with_views
from txlog.protocol.publications import (
    Chain,
    Shown,
    append_publication,
    end_tails,
    first_whole,
    read_chain,
    read_publications,
    take_shown,
)
from txlog.protocol.topics import earlier_version
from txlog.publication.cache import PublicationCache
from txlog.publication.columns import named_columns, why_misread
from txlog.publication.file_rows import offsets_of, write_copy
from txlog.publication.formats import (
    check_writable,
    complete_version,
    first_version,
    is_written,
    table_conflict,
    write_version,
)
from txlog.storage.backends import canonical_url
from txlog.text import count_text

_LOG = logging.getLogger(__name__)

MAX_ROUNDS = 20
"""How often one call may begin again, because another publisher was faster or the topic changed, before it gives up."""
_MAX_CUTS = 5
"""How often one round may take its cut. It is refused if a compaction was faster, sealing fails or reading takes longer
than the grace. If this clock is ahead by more than the grace, a partition's first rows that come meanwhile refuse it,
too: once for each partition, because later records have this clock's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one call did for a topic."""

    topic: str
    number: int
    """The newest publication; -1 if there is none."""
    publications: int
    """How many this call has created."""
    files_added: int = 0
    files_removed: int = 0
    rows_added: int = 0
    rows_copied: int = 0
    """Rows among those added that are in new files, because their file had been published without them."""
    must_rewrite: tuple[Unreadable, ...] = ()
    """Files that other formats would misread. As long as there are any, the tables stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file that must be rewritten by a merge before the topic can be published."""

    topic_partition: TopicPartition
    path: str
    why: str


def formats_of(runtime: Runtime, topic: TopicMetadata) -> tuple[FormatName, ...]:
    """Return the formats in which a topic is published, by its settings; empty for none."""
    return runtime.settings.topic_config(topic).publish_formats  # type: ignore[return-value]


def publish_topic(
    session: Session, topic: TopicMetadata, cache: PublicationCache | None = None, *, copies: bool = False
) -> Published:
    """Bring the tables of one topic up to its newest stable cut. Without `publish.formats`, end its publication.

    `cache` keeps what was read from one call to the next, which then reads only what is new. `copies`: rows of files
    that a format would misread are copied, because a merge has left these files: it does not take files with rows at or
    behind the last stable offset.

    Raises InvalidRequestError for a topic that is not published, and UnsupportedStoreError in a store without the
    feature. Raises TableConflictError if another program wrote to a table, and CoordinatorContentionError if another
    publisher or a change of the topic was faster each time. Raises what reading raises, too. A note of the error has
    the number of publications that were created.
    """
    runtime = session.runtime
    if PUBLICATION not in runtime.require_store().features:
        raise UnsupportedStoreError(
            f"{runtime.where}: the store was made without the feature {PUBLICATION!r}, and programs that do not know "
            "it would delete files that a table names. "
            "hint: copy its topics to a new store"
        )
    runtime.ensure_writable()
    attempt = _Attempt(session, topic, PublicationCache() if cache is None else cache, copies)
    try:
        for _ in range(MAX_ROUNDS):
            try:
                made = attempt.run()
            except (TableConflictError, MissingObjectError):
                # Another publisher may have begun a format meanwhile, or vacuum has deleted versions before newer ones.
                if not attempt.is_overtaken():
                    raise
                continue
            if made is not None:
                return made
        raise CoordinatorContentionError(
            f"topic {topic.topic!r}: it changed, or other publishers were faster, each time in {MAX_ROUNDS} rounds of "
            "publishing, so its newest rows may not be in the tables. "
            "hint: publish again, or leave the topic to the other publishers"
        )
    except Exception as error:
        if attempt.made:
            error.add_note(
                f"Topic {topic.topic!r}: this call has created {count_text(attempt.made, 'publication')}. "
                f"The next `txlog publish {topic.topic} --once` writes what is missing."
            )
        raise


class _Attempt:
    """From reading the chain to writing the formats. It runs again if another publisher was faster."""

    def __init__(self, session: Session, topic: TopicMetadata, cache: PublicationCache, copies: bool) -> None:
        self._session = session
        self._runtime = session.runtime
        self._topic = topic
        self._formats: tuple[FormatName, ...] = ()
        self._cache = cache
        self._copies = copies
        self.made = 0
        """Publications that this call has created."""
        self._newest: Tables | None = None
        """The tables after the newest publication that this attempt knows."""
        self._done = Counter[str]()
        """Counts of Published by name, over all publications of this call."""

    def run(self) -> Published | None:
        runtime = self._runtime
        # The chain is read before the partitions are listed: otherwise a publisher that slept could name deleted files
        # (W58, C13). A look at the end of a log does not show what a merge has superseded since the LIST.
        look = self._cache.looks.pop(self._topic.topic, None)
        chain = runtime.run(read_chain(self._topic.topic, None if look is None else look.tables))
        before = self._newest = chain.newest
        self._session.forget([tp for tp in self._session.views if tp.topic == self._topic.topic])
        # Settings and columns are those of the moment (W45), so the tables never go back to older ones.
        topic = self._topic = runtime.topic(self._topic.topic, 0)
        self._formats = formats_of(runtime, topic)
        # Before anything is written: nobody could complete a publication here whose format cannot be written.
        check_writable(self._formats, topic, canonical_url(runtime.where))
        is_complete = look is not None and before is not None and look.tables.digest == before.digest
        self.roll_forward(chain, is_complete=is_complete)
        self._check_new_formats(before)
        if not self._formats:
            return self._end(before)
        if before is None:
            # Vacuum takes the next number from a publisher that sleeps, and there is none yet. So number 0 names no
            # file: a cut that is taken before it exists is of no use (W58, C13).
            nothing = tuple(PublishedPartition(end_offset=0) for _ in range(topic.partitions))
            self._append(None, Changes(), "append", nothing, runtime.clock.now_ms())
            return None
        is_new_look = before.newest.topic_version != topic.schema_id or set(before.newest.formats) != set(self._formats)
        if look is not None and (look.tables.digest, look.topic_id) == (before.digest, topic.topic_id):
            self._session.keep({}, look.views)
            if look.shows_all and not is_new_look and len(look.views) == topic.partitions:
                views = self._session.fresh_views(list(look.views), "looking at a topic")
                if look.is_at(views):
                    self._cache.looks[topic.topic] = replace(look, views=views)
                    return Published(topic=topic.topic, number=before.number, publications=self.made)
        shown = self._shown()
        newest = runtime.topic(topic.topic, 0)
        if (newest.topic_id, newest.partitions, newest.schema_id) != (
            topic.topic_id,
            topic.partitions,
            topic.schema_id,
        ):
            # The cut lacks a partition to which its transactions may have written, or files have other columns.
            return None
        misread = self._misread(before, shown)
        if misread and not self._copies:
            sources = tuple({each.path: each for each in misread.values()}.values())
            return Published(topic=topic.topic, number=before.number, publications=self.made, must_rewrite=sources)
        offsets = {each.file.path: offsets_of(runtime, topic, each) for each in unclear_files(before, shown.partitions)}
        changes = compare(before, shown.partitions, offsets, misread)
        if is_compacted_ahead(before, shown.partitions) and not is_new_look:
            # Until the replacement the tables have some keys twice, as the log had before the compaction. Then take
            # another cut, as below.
            self._add(before, shown, changes)
            return None
        has_new_rows = bool(changes.added or changes.copies)
        tables: Tables | None = before
        if changes.replaced or changes.removed or changes.moved or is_new_look:
            replaced = (*changes.replaced, *self._copied(changes.moved, before))
            moved = Changes(replaced=replaced, removed=changes.removed)
            tables = self._append(before, moved, "replace", before.newest.partitions, before.newest.cut_at)
            if tables is not None:
                self._done["files_added"] += len(replaced)
                self._done["files_removed"] += len(changes.removed)
            if has_new_rows:
                # The cut is older than this publication, and vacuum goes by the age of the newest one. So take another
                # cut: the files of this one may be deleted before the next number is created (W58, C13).
                return None
        elif has_new_rows:
            tables = self._add(before, shown, changes)
        else:
            views = {tp: view for tp, view in self._session.views.items() if tp.topic == topic.topic}
            self._cache.keep(topic.topic_id, before, views, shown)
        if tables is None:
            return None
        return Published(topic=topic.topic, number=tables.number, publications=self.made, **self._done)  # type: ignore[arg-type]

    def is_overtaken(self) -> bool:
        """Return whether another process has created a publication since the last look at the chain."""
        newest = self._runtime.run(read_chain(self._topic.topic)).newest
        return newest is not None and (self._newest is None or newest.digest != self._newest.digest)

    def _add(self, before: Tables, shown: Shown, changes: Changes) -> Tables | None:
        """Create a publication with the new rows and the cut; None if another publisher was faster."""
        copies = self._copied(changes.copies, before)
        files = (*changes.added, *copies)
        cuts = tuple(each.cut for each in shown.partitions)
        tables = self._append(before, Changes(added=files), "append", cuts, shown.cut_at)
        if tables is not None:
            self._done["files_added"] += len(files)
            self._done["rows_added"] += sum(file.rows - count_rows(file.removed) for file in files)
            self._done["rows_copied"] += sum(file.rows for file in copies)
        return tables

    def _end(self, before: Tables | None) -> Published | None:
        """Create a publication without formats. A format that is added later begins a new table."""
        topic = self._topic.topic
        if before is None or not before.newest.formats:
            raise InvalidRequestError(
                f"topic {topic!r} is not published. "
                f"hint: set its formats first, with `txlog topics alter {topic} --set publish.formats=iceberg,delta`"
            )
        tables = self._append(before, Changes(), "replace", before.newest.partitions, before.newest.cut_at)
        return None if tables is None else Published(topic=topic, number=tables.number, publications=self.made)

    def _check_new_formats(self, before: Tables | None) -> None:
        """Raise TableConflictError if a format begins where a table lies already, which it would continue wrongly."""
        topic = self._topic.topic
        for name in self._formats:
            if before is not None and name in before.newest.formats:
                continue
            path = self._runtime.run(first_version(name, topic))
            if path is not None:
                raise TableConflictError(
                    f"{path}: topic {topic!r} is to be published as {name} from now on, and a table lies there "
                    "already: an earlier publication or another program made it. "
                    f"hint: move or delete {path.rpartition('/')[0]}/, and publish again"
                )

    def _shown(self) -> Shown:
        # Transactions that go on in commit records must be known until then: merges keep them for the grace.
        constants, config = self._runtime.constants, self._runtime.settings.topic_config(self._topic)
        lag_ms = min(config.publish_max_lag_ms, constants.delete_grace_ms // 2)
        for _ in range(_MAX_CUTS - 1):
            try:
                return self._cut(lag_ms)
            except InvalidRequestError:
                # A compaction has used rows of a transaction that goes on in commit records, or rows in these became
                # too old meanwhile. Give all of them a file: the writer's clock may be ahead, and this one behind.
                lag_ms = -2 * MAX_CLOCK_ERROR_MS
        return self._cut(lag_ms)

    def _cut(self, lag_ms: int) -> Shown:
        """Take a cut after rows in commit records that are older than `lag_ms` have a file."""
        runtime, topic = self._runtime, self._topic
        partitions = [TopicPartition(topic.topic, number) for number in range(topic.partitions)]
        older_than_ms = runtime.clock.now_ms() - lag_ms
        self._session.fresh_views(partitions, "looking at a topic")

        def program(ctx: Context, views: Views) -> Program[tuple[Views, Shown]]:
            oldest = {
                tp: next((each.record.timestamp for each in views[tp].tail if each.record.payload_bytes), None)
                for tp in partitions
            }
            late = [tp for tp, at_ms in oldest.items() if at_ms is not None and at_ms < older_than_ms]
            views = yield from end_tails(ctx, views, late, lambda record: record.payload_bytes > 0)
            return (yield from take_shown(ctx, views, partitions, self._cache.indexes))

        shown = self._session.call("taking a cut", program)
        self._cache.indexes.update(shown.indexes)
        return shown

    def _misread(self, before: Tables, shown: Shown) -> dict[str, Unreadable]:
        """Return the files that a format would misread. What a merge must rewrite for a copy is its source."""
        topic = self._topic
        files: list[tuple[int, DataFile, int, str]] = [
            (each.partition, each.file, each.schema_id, each.file.path)
            for partition in shown.partitions
            for each in partition.files
        ]
        log = {path for *_, path in files}
        held = before.files.values()
        files += [(each.partition, each, each.schema_id, each.source) for each in held if each.source in log]
        written = self._runtime.written_schemas(topic, {schema_id for _, _, schema_id, _ in files})
        named = named_columns([*(written[number].fields for number in sorted(written)), topic.schema])
        return {
            file.path: Unreadable(topic_partition=TopicPartition(topic.topic, partition), path=source, why=why)
            for partition, file, schema_id, source in files
            if (why := why_misread(topic.schema, written[schema_id], file, self._formats, named)) is not None
        }

    def _append(
        self, before: Tables | None, changes: Changes, operation: str, partitions: tuple[object, ...], cut_at: int
    ) -> Tables | None:
        """Create the next publication and write its formats; None if another publisher was faster."""
        runtime, topic = self._runtime, self._topic
        number = 0 if before is None else before.number + 1
        known = {} if before is None else before.newest.formats
        listed = (
            msgspec.structs.replace(file, since=number, group=number) for file in changes.replaced or changes.added
        )
        publication = Publication(
            number=number,
            topic=topic.topic,
            # A topic that is created again continues the tables, and formats take this id for that of the table.
            topic_id=topic.topic_id if before is None else before.newest.topic_id,
            topic_version=topic.schema_id,
            formats={name: known.get(name, number) for name in self._formats},
            operation=operation,  # type: ignore[arg-type]
            partitions=partitions,  # type: ignore[arg-type]
            cut_at=cut_at,
            added=tuple(sorted(listed, key=lambda file: file.path)),
            removed=changes.removed,
            whole=before is None,
            created_at=runtime.clock.now_ms(),
            write_id=runtime.ids.new_id(),
            previous=envelope.digest(topic.topic.encode()) if before is None else before.digest,
        )
        tables = self._session.call(
            "publishing", lambda ctx, views: with_views(views, append_publication(ctx, before, publication))
        )
        if tables is not None:
            self._newest = tables
            self.made += 1
            self._write(before, tables)
        else:
            text = "topic %r: another publisher created publication %d first; this one begins again"
            log(_LOG, logging.INFO, "publication_conflict", text, topic.topic, number, topic=topic.topic)
        return tables

    def _copied(self, copies: Sequence[Copy], before: Tables) -> list[PublishedFile]:
        return [write_copy(self._runtime, self._topic, copy, before.number + 1) for copy in copies]

    def roll_forward(self, chain: Chain, *, is_complete: bool = False) -> None:
        """Write the topic's formats of the newest publications, if whoever created these has not done so.

        A format that the topic does not have any more is left where it stands. `is_complete`: this process has
        completed the newest version before. Raises TableConflictError if the newest version that is there is another
        one.
        """
        if chain.newest is None:
            return
        tables = list(chain.tables)
        late = len(tables)
        while late and not self._is_written(tables[late - 1]):
            late -= 1
            if not late and tables[0].number > 0:
                earlier = self._before(tables[0])
                tables, late = [*earlier, *tables], len(earlier)
        if late and not (is_complete and late == len(tables)):
            # A publisher that died in the middle of a version has left this one, or one that is written below.
            last = tables[late - 1]
            for name in self._both(last):
                columns = earlier_version(last.newest.topic, last.newest.topic_version)
                self._runtime.run(complete_version(name, last, columns, retention_ms=self._retention_ms))
        for at in range(late, len(tables)):
            self._write(tables[at - 1] if at else None, tables[at])

    def _before(self, tables: Tables) -> tuple[Tables, ...]:
        """Return the tables before a publication whose version in one of the formats is missing."""
        topic, last = tables.newest.topic, tables.number - 1
        try:
            return self._runtime.run(read_publications(topic, first_whole(last), last)).tables
        except MissingObjectError as error:
            # Vacuum deletes them only after this version was written (C13).
            missing = [name for name in self._both(tables) if not self._runtime.run(is_written(name, tables))]
            if not missing:
                raise
            raise table_conflict(missing[0], topic, tables.path_of(missing[0])) from error

    def _is_written(self, tables: Tables) -> bool:
        return all(self._runtime.run(is_written(name, tables)) for name in self._both(tables))

    def _write(self, before: Tables | None, after: Tables) -> None:
        """Write the files of each format after one more publication, by the settings of now."""
        runtime, newest = self._runtime, after.newest
        columns = runtime.run(earlier_version(newest.topic, newest.topic_version))
        # Tables name the store not as the caller spelled the URL.
        url = canonical_url(runtime.where)
        for name in self._both(after):
            known = before if newest.number > newest.formats[name] else None
            written = self._written(after, columns) if name == "iceberg" else ()
            retention_ms = self._retention_ms
            runtime.run(write_version(name, known, after, columns, url=url, retention_ms=retention_ms, written=written))

    def _written(self, tables: Tables, topic: TopicMetadata) -> list[Sequence[SchemaField]]:
        """Return the columns of the files of a publication, in order. `topic` is the version that it names.

        A later version may be of a topic that was created again.
        """
        found = self._runtime.written_schemas(topic, {file.schema_id for file in tables.files.values()})
        return [found[number].fields for number in sorted(found)]

    def _both(self, tables: Tables) -> list[FormatName]:
        return [name for name in tables.newest.formats if name in self._formats]

    @property
    def _retention_ms(self) -> int:
        return self._runtime.settings.topic_config(self._topic).publish_retention_ms
