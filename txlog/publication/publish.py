"""How does a topic become, and stay, a table of other formats?

A publisher first completes what another one has begun, then takes a cut of the topic, and compares it with the tables.
What changed is decided by creating the next object of the topic's chain of publications; then the files of each format
are written. Any process may publish, several may at once, and each may die anywhere (PROTOCOL.md, "Publication").
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.topics.row_writer import keys_of_latest
from txlog.core import envelope
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Program
from txlog.core.features import PUBLICATION, PUBLISHED_LATEST
from txlog.core.names import TopicPartition
from txlog.core.publication import (
    Changes,
    Copy,
    Tables,
    compare,
    is_compacted_ahead,
    unclear_files,
)
from txlog.core.records import Publication, SchemaField, TopicMetadata
from txlog.core.records.publications import FormatName, PublishedFile, PublishedPartition
from txlog.core.row_runs import count_rows
from txlog.errors import (
    CoordinatorContentionError,
    InvalidRequestError,
    MissingObjectError,
    TableConflictError,
)
from txlog.logs import log
from txlog.protocol.context import Context, Views, with_views
from txlog.protocol.expiry import end_tails
from txlog.protocol.publications import (
    Chain,
    Shown,
    append_publication,
    first_whole,
    read_chain,
    read_publications,
    take_shown,
)
from txlog.protocol.topics import earlier_version
from txlog.protocol.vacuum_published import append_nothing, emptied
from txlog.publication.cache import PublicationCache
from txlog.publication.catalog import Place, Way, follow, place_of
from txlog.publication.file_rows import offsets_of, write_copy
from txlog.publication.formats import (
    check_begins,
    check_feature,
    check_writable,
    complete_version,
    is_written,
    table_conflict,
    write_version,
)
from txlog.publication.misread import misread_files
from txlog.publication.outcome import Published
from txlog.storage.backends import canonical_url
from txlog.text import count_text

_LOG = logging.getLogger(__name__)

MAX_ROUNDS = 20
"""How often one call may begin again, because another publisher was faster or the topic changed, before it gives up."""
_MAX_CUTS = 5
"""How often one round may take its cut. It is refused if a compaction was faster, sealing fails or reading takes longer
than the grace. If this clock is ahead by more than the grace, a partition's first rows that come meanwhile refuse it,
too: once for each partition, because later records have this clock's time."""


def formats_of(runtime: Runtime, topic: TopicMetadata) -> tuple[FormatName, ...]:
    """Return the formats in which a topic is published, by its settings; empty for none."""
    return runtime.settings.topic_config(topic).publish_formats  # type: ignore[return-value]


def publish_topic(
    session: Session, topic: TopicMetadata, cache: PublicationCache | None = None, *, copies: bool = False
) -> Published:
    """Bring the tables of one topic up to its newest stable cut. Without `publish.formats`, end its publication.

    A `deleted` topic gets a last version without rows, and number -1 if it has no tables to empty (C16).

    `cache` keeps what was read from one call to the next, which then reads only what is new. `copies`: rows of files
    that a format would misread are copied, because a merge has left these files: it does not take files with rows at or
    behind the last stable offset.

    Raises InvalidRequestError for a topic that is not published, and UnsupportedStoreError in a store without the
    feature. Raises TableConflictError if another program wrote to a table, and CoordinatorContentionError if another
    publisher or a change of the topic was faster each time. Raises what reading raises, too. A note of the error has
    the number of publications that were created.
    """
    runtime = session.runtime
    check_feature(runtime, PUBLICATION, "delete files that a table names")
    runtime.ensure_writable()
    attempt = _Attempt(session, topic, PublicationCache() if cache is None else cache, copies)
    try:
        for _ in range(MAX_ROUNDS):
            try:
                made = attempt.empty() if topic.deleted else attempt.run()
                if made is not None:
                    # Files that must be rewritten first are more urgent than a catalog, which may be away.
                    return made if made.must_rewrite else replace(made, catalog_commits=attempt.follow())
            except (TableConflictError, MissingObjectError):
                # Another publisher may have begun a format meanwhile, or vacuum has deleted versions before newer ones.
                if not attempt.is_overtaken():
                    raise
                continue
        raise CoordinatorContentionError(
            f"topic {topic.topic!r}: it changed, or other publishers were faster, each time in {MAX_ROUNDS} rounds of "
            "publishing, so its newest rows may not be in the tables. "
            "hint: publish again, or leave the topic to the other publishers"
        )
    except Exception as error:
        if attempt.made:
            error.add_note(
                f"Topic {topic.topic!r}: this call has created {count_text(attempt.made, 'publication')}. "
                f"The next `txlog publish {'' if topic.deleted else f'{topic.topic} '}--once` writes what is missing."
            )
        raise


class _Attempt:
    """From reading the chain to writing the formats. It runs again if another publisher was faster."""

    def __init__(self, session: Session, topic: TopicMetadata, cache: PublicationCache, copies: bool) -> None:
        self._session = session
        self._runtime = session.runtime
        self._topic = topic
        self._formats: tuple[FormatName, ...] = ()
        self._config = self._runtime.settings.topic_config(topic)
        self._key: tuple[int, ...] = ()
        self._cache = cache
        self._copies = copies
        self.made = 0
        """Publications that this call has created."""
        self._newest: Tables | None = None
        """The tables after the newest publication that this attempt knows."""
        self._place: Place | None = None
        self._known: dict[int, Tables] = {}
        """The tables after each publication that this attempt has read or made."""
        self._done = Counter[str]()
        """Counts of Published by name, over all publications of this call."""

    def run(self) -> Published | None:
        runtime = self._runtime
        # The chain is read before the partitions are listed: otherwise a publisher that slept could name deleted files
        # (W58, C13). A look at the end of a log does not show what a merge has superseded since the LIST.
        look = self._cache.looks.pop(self._topic.topic, None)
        chain = runtime.run(read_chain(self._topic.topic, None if look is None else look.tables))
        before = self._newest = chain.newest
        self._known = {each.number: each for each in chain.tables}
        self._session.forget([tp for tp in self._session.views if tp.topic == self._topic.topic])
        # Settings and columns are those of the moment (W45), so the tables never go back to older ones.
        topic = self._topic = runtime.topic(self._topic.topic, 0)
        self._formats = formats_of(runtime, topic)
        self._config = runtime.settings.topic_config(topic)
        if self._formats and self._config.publish_rows == "latest":
            # The process's own settings may say so, too.
            check_feature(runtime, PUBLISHED_LATEST, "show older rows again beside the newest ones")
            ids = {each.name: each.id for each in topic.schema}
            self._key = tuple(ids[name] for name in keys_of_latest(runtime.settings, topic))
        # Before anything is written: nobody could complete a publication here whose format cannot be written.
        check_writable(self._formats, topic, canonical_url(runtime.where))
        self._place = place_of(runtime, topic)
        is_complete = look is not None and before is not None and look.tables.digest == before.digest
        self.roll_forward(chain, is_complete=is_complete)
        known = () if before is None else before.newest.formats
        runtime.run(check_begins(topic.topic, [name for name in self._formats if name not in known]))
        if not self._formats:
            return self._end(before)
        if before is None:
            # Vacuum takes the next number from a publisher that sleeps, and there is none yet. So number 0 names no
            # file: a cut that is taken before it exists is of no use (W58, C13).
            nothing = tuple(PublishedPartition(end_offset=0) for _ in range(topic.partitions))
            self._append(None, Changes(), "append", nothing, runtime.clock.now_ms())
            return None
        is_new_look = (before.newest.topic_version, before.newest.key, set(before.newest.formats)) != (
            topic.schema_id,
            self._key,
            set(self._formats),
        )
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
        misread = misread_files(runtime, topic, before, shown, self._formats)
        if misread and not self._copies:
            sources = tuple({each.path: each for each in misread.values()}.values())
            return Published(topic=topic.topic, number=before.number, publications=self.made, must_rewrite=sources)
        offsets = {each.file.path: offsets_of(runtime, topic, each) for each in unclear_files(before, shown.partitions)}
        if self._key:
            return self._publish_newest(before, shown, offsets, misread, is_new_look=is_new_look)
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
            # Older rows come back if the tables had the newest ones only.
            operation = "append" if before.newest.key else "replace"
            tables = self._append(before, moved, operation, before.newest.partitions, before.newest.cut_at)
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
            self._keep(before, shown)
        return self._outcome(tables)

    def _publish_newest(
        self,
        before: Tables,
        shown: Shown,
        offsets: Mapping[str, Sequence[int]],
        misread: Collection[str],
        *,
        is_new_look: bool,
    ) -> Published | None:
        # A local import, because it loads pyarrow.
        from txlog.publication.newest import Way, newest_changes

        topic, newest = self._topic, before.newest
        way = Way(
            misread=misread,
            copies_partial=self._config.publish_delete_mode == "copy-on-write",
            starts_over=not newest.formats or (newest.key, newest.topic_version) != (self._key, topic.schema_id),
        )
        found = newest_changes(self._runtime, topic, before, shown.partitions, offsets, way)
        tables: Tables | None = before
        if found.has_new_rows or found.listed or found.copies or found.removed or is_new_look:
            files = (*found.listed, *self._copied(found.copies, before))
            changes = Changes(replaced=files, removed=tuple(sorted(found.removed)))
            if found.has_new_rows or found.is_change:
                cuts = tuple(each.cut for each in shown.partitions)
                tables = self._append(before, changes, "append", cuts, shown.cut_at)
            else:
                tables = self._append(before, changes, "replace", newest.partitions, newest.cut_at)
            if tables is not None:
                self._done["files_added"] += sum(file.path not in before.files for file in files)
                self._done["files_removed"] += len(found.removed)
                self._done["rows_added"] += found.rows_added
                self._done["rows_copied"] += sum(count_rows(copy.rows) for copy in found.copies)
        else:
            self._keep(before, shown)
        return self._outcome(tables)

    def empty(self) -> Published | None:
        """Take the rows of a deleted topic out of its tables, in each format that this process can write (C16).

        Otherwise as `run`. A topic that was created again keeps the rows that it has published.
        """
        runtime, topic = self._runtime, self._topic
        self._place = place_of(runtime, topic)
        chain = runtime.run(read_chain(topic.topic))
        before = self._newest = chain.newest
        self._known = {each.number: each for each in chain.tables}
        if before is None or before.newest.topic_version > topic.number:
            self._known = {}
            return Published(topic=topic.topic, number=-1, publications=0)
        tables = before
        if before.newest.topic_version < topic.number and before.newest.formats:
            changes = emptied(before, topic.number)
            made = self._session.call(
                "publishing", lambda ctx, views: with_views(views, append_nothing(ctx, before, changes))
            )
            if made is None:
                return None
            tables, self.made = made, self.made + 1
            self._known[made.number] = made
            self._done["files_removed"] = len(before.files)
        for name in sorted(tables.newest.formats):
            self._formats = (name,)
            check_writable(self._formats, topic, canonical_url(runtime.where))
            self.roll_forward(Chain(tables=(tables,)))
        return self._outcome(tables)

    def _keep(self, before: Tables, shown: Shown) -> None:
        """Keep what was looked at, because the tables show all of it."""
        topic = self._topic
        views = {tp: view for tp, view in self._session.views.items() if tp.topic == topic.topic}
        self._cache.keep(topic.topic_id, before, views, shown)

    def _outcome(self, tables: Tables | None) -> Published | None:
        """Return what was done; None if another publisher was faster."""
        if tables is None:
            return None
        return Published(topic=self._topic.topic, number=tables.number, publications=self.made, **self._done)  # type: ignore[arg-type]

    def follow(self) -> int | None:
        """Bring the topic's table in a catalog to the newest publication. Return the commits, if it has one.

        Raises as `txlog.publication.catalog`.
        """
        topic, commits = self._topic, None
        if self._place is not None and self._known:
            known, prepared = self._known, self._cache.prepared
            way = Way(columns=self._columns, again=self._again)
            commits = follow(self._runtime, topic, self._place, known, prepared, way)
        if topic.deleted:
            self._cache.emptied.add(topic.topic_id)
        return commits

    def _again(self) -> Tables | None:
        """Create a publication that changes nothing; None if another publisher was faster."""
        newest = self._newest
        assert newest is not None  # it has been published
        return self._append(newest, Changes(), "replace", newest.newest.partitions, newest.newest.cut_at)

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

    def _shown(self) -> Shown:
        # Transactions that go on in commit records must be known until then: merges keep them for the grace.
        lag_ms = min(self._config.publish_max_lag_ms, self._runtime.constants.delete_grace_ms // 2)
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
            key=self._key,
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
            self._newest = self._known[number] = tables
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

    def _columns(self, tables: Tables) -> tuple[TopicMetadata, list[Sequence[SchemaField]]]:
        """Return the topic as a publication names it, and the columns of its files as they were written, in order."""
        topic = self._runtime.run(earlier_version(tables.newest.topic, tables.newest.topic_version))
        return topic, self._written(tables, topic)

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
