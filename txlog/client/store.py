"""Where does a program begin? `txlog.open(url)` gives a Store: topics, producers, consumers, administration.

How users see, create and change topics is here, too.
"""

from __future__ import annotations

import datetime
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from txlog.client.session.arguments import checked, checked_calls, named_calls
from txlog.client.session.call_guard import Owner, close_after
from txlog.client.session.repr_html import repr_html
from txlog.client.session.runtime import Runtime
from txlog.client.session.settings import call_layer
from txlog.client.topics.column_changes import ColumnChanges, alter_columns, check_not_inside
from txlog.client.topics.column_names import former_column, topic_versions
from txlog.clock import Clock, IdGenerator
from txlog.config import Layer
from txlog.core.effects import Program
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import KAFKA_FIELDS, describe as describe_type
from txlog.errors import (
    CorruptLogError,
    IllegalStateError,
    InvalidRequestError,
    SchemaMismatchError,
    TopicExistsError,
    TxlogError,
)
from txlog.logs import log
from txlog.protocol import topic_changes
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import ObjectStore

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.client.admin.admin import Admin
    from txlog.client.consumer import Consumer
    from txlog.client.producer import Producer
    from txlog.client.tables.snapshot import Snapshot
    from txlog.client.tables.table import TopicTable


@checked
def open(  # noqa: A001  users write txlog.open
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    config: Layer | None = None,
    config_file: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
    ids: IdGenerator | None = None,
    object_store: ObjectStore | None = None,
) -> Store:
    """Open the store at `url`.

    `url` is a local path (also a `pathlib.Path`; `~` is your home), file://, memory://, s3://, gs:// or abfs://. An
    empty or missing location becomes a store with its first topic. `config` holds settings with dotted names, for
    everything that is made from this store. The layer below it is the file `config_file`, or the file that TXLOG_CONFIG
    names. `clock`, `ids` and `object_store` are for tests and fault injection.

    Raises NotAStoreError if something else is there, UnsupportedStoreError (backend, newer format, unknown feature),
    InvalidConfigurationError, CorruptRecordError. No message contains a credential.
    """
    return Store(
        Runtime.open(
            url,
            storage_options=storage_options,
            config=config,
            config_file=config_file,
            clock=clock,
            ids=ids,
            object_store=object_store,
        )
    )


@named_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as its newest metadata describe it."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """What was set for this topic. Everything else has its default."""
    fields: tuple[SchemaField, ...] = field(repr=False)
    """The columns with their ids."""
    schema_id: int
    """The version of the metadata that introduced the columns."""
    version: int
    created_at: int
    """When this version was made, in milliseconds since 1970."""

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        from txlog.storage.arrow_schema import to_arrow

        return to_arrow(self.fields)

    _repr_html_ = repr_html

    @classmethod
    def of(cls, metadata: TopicMetadata) -> TopicDescription:
        return cls(
            name=metadata.topic,
            topic_id=metadata.topic_id,
            partitions=metadata.partitions,
            config=dict(sorted(metadata.config.items())),
            fields=metadata.schema,
            schema_id=metadata.schema_id,
            version=metadata.number,
            created_at=metadata.created_at,
        )


@checked_calls
class Store:
    """One opened store. Safe for several threads.

    `close` closes everything that the store made. Later calls raise IllegalStateError. A forked child may use the
    store, but not the producers and consumers that its parent made. `close` in the child does not touch them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._owner = Owner(f"store {runtime.where}", "store")
        self._lock = lock_for_forks()
        self.runtime = runtime
        self._clients: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._closed = False

    def __repr__(self) -> str:
        return f"Store({self.runtime.where!r})"

    _repr_html_ = repr_html

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # After an error each client closes as at the end of its own `with`: a consumer commits only processed rows.
        close_after(error, repr(self), lambda: self._close(lambda client: client.__exit__(kind, error, traceback)))

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self.runtime.where

    def create_topic(
        self,
        name: str,
        schema: object = None,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Create a topic with the columns of `schema`. Without it they are Kafka's: key, value, headers, timestamp.

        `schema` is a pyarrow.Schema, names with types as in `{"id": "int64"}`, or anything whose rows can be sent as a
        frame, such as a pandas DataFrame. The topic then has its columns with the nearest types, and without its rows.

        Makes the store if the location was empty. Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError,
        InvalidConfigurationError, SchemaMismatchError; UnsupportedStoreError and ClockSkewError from the probe.

        With `if_not_exists` an existing topic is left exactly as it is and its description is returned. Other
        `partitions` and another `config` are ignored without a message, as in Kafka: compare the description, and
        change them with `alter_topic`. So a program can be started again. The topic must have the columns of `schema`,
        but may have further nullable ones. Otherwise SchemaMismatchError names the missing columns.
        """
        self._check_open()
        fields = KAFKA_FIELDS if schema is None else _fields(schema, name)
        runtime = self.runtime
        runtime.ensure_writable()
        runtime.make_store()
        ctx = runtime.context()
        topic_id = runtime.ids.new_id()
        if runtime.where.startswith("file:"):
            # The store may be copied to a file system that ignores case, even if this one does not.
            runtime.patiently("looking for topics", lambda: topic_changes.check_case(name))
        try:
            made = runtime.patiently(
                f"creating topic {name!r}",
                lambda: topic_changes.create_topic(
                    ctx,
                    name,
                    fields=fields,
                    partitions=partitions,
                    config=config,
                    append_log_start=topic_changes.ending_logs(ctx),
                    topic_id=topic_id,
                ),
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            found = runtime.topic(name, 0)
            _check_serves(found, fields, partial(former_column, runtime, found))
            return TopicDescription.of(found)
        return self._remember(made)

    def topic(self, name: str) -> TopicDescription:
        """Return the topic as it is now. Raises UnknownTopicOrPartitionError with the name of the most similar one."""
        self._check_open()
        return TopicDescription.of(self.runtime.topic(name, 0))

    def schema_history(self, name: str) -> tuple[TopicDescription, ...]:
        """Return the topic as it was when its columns were new or changed, oldest first.

        Rows name one of these versions as their `schema_id`. Raises UnknownTopicOrPartitionError.
        """
        self._check_open()
        topic = self.runtime.topic(name, 0).topic
        return tuple(map(TopicDescription.of, topic_versions(self.runtime, topic)))

    def topics(self, *, damaged: list[CorruptLogError] | None = None) -> tuple[TopicDescription, ...]:
        """Return all topics, by name. Raises NotAStoreError while the location is empty: only a topic makes a store.

        With a list `damaged`, topics with damaged metadata are left out and their errors are appended to the list.
        """
        self._check_open()
        self.runtime.require_store()
        return tuple(map(TopicDescription.of, self.runtime.list_topics(damaged)))

    def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, object] | None = None,
        remove_config: Sequence[str] = (),
        partitions: int | None = None,
        add_columns: object = None,
        allow_key_movement: bool = False,
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        set_types: Mapping[str, str | pa.DataType] | None = None,
        nullable_columns: Sequence[str] = (),
        add_fields: Mapping[str, pa.Schema] | None = None,
        column_defaults: Mapping[str, object] | None = None,
        column_order: Sequence[str] = (),
    ) -> TopicDescription:
        """Change settings, add partitions (never fewer), append nullable columns (a pyarrow.Schema of them).

        `config` is a dictionary of settings, `remove_config` the names of settings that get their defaults again.

        The arguments from `rename_columns` on change columns by their ids, in a call without settings and partitions.
        This needs a store with the feature `schema-evolution`. Older rows are not rewritten. A field in a struct is
        named like `address.city`, and the children of lists and maps are `element` and `value`. Columns are named as
        they are before the call, except in `add_fields` and `column_order`.

        * `rename_columns` maps names to new ones. Two columns can swap their names.
        * `set_types` maps columns to wider types: `{"qty": "int64"}`. A wider integer moves the keys of programs that
          name the column in `send(key=...)`.
        * `add_fields` maps structs to a pyarrow.Schema of their new fields.
        * `column_defaults` maps new columns to the value that older rows have; otherwise it is null.
        * `column_order` names the columns that come first, in that order.

        Some changes move keys: more partitions for a topic with `key.columns`, and in a topic with rows in several
        partitions other `key.columns`, or columns that become Kafka's. New rows of a key are then in another partition
        than its older ones. These changes are refused unless `allow_key_movement` is given, and always for a topic with
        cleanup.policy=compact. That policy is refused too if keys have moved before, or if a change of columns has
        changed which rows are tombstones.

        Raises UnknownTopicOrPartitionError, InvalidConfigurationError, InvalidPartitionsError, SchemaMismatchError,
        UnsupportedStoreError.
        """
        self._check_open()
        added: tuple[SchemaField, ...] = ()
        if add_columns is not None:
            added = _fields(add_columns, name, ": added columns")
        runtime = self.runtime
        wanted = ColumnChanges(
            rename=rename_columns or {},
            drop=drop_columns,
            set_types=set_types or {},
            allow_nulls=nullable_columns,
            add=added,
            add_fields={above: _fields(fields, name, ": added fields") for above, fields in (add_fields or {}).items()},
            defaults=column_defaults or {},
            order=column_order,
        )
        if wanted.need_ids:
            if config or remove_config or partitions is not None:
                raise InvalidRequestError(
                    f"topic {name!r}: one call changes columns by id, another one settings and "
                    "partitions; make two calls"
                )
            runtime.ensure_writable()
            return self._remember(alter_columns(runtime, name, wanted, allow_key_movement=allow_key_movement))
        base = runtime.topic(name, 0)
        check_not_inside(base.schema, added, f"topic {name!r}")
        runtime.ensure_writable()
        changes: dict[str, object | None] = {**(config or {}), **dict.fromkeys(remove_config)}
        return self._remember(
            runtime.patiently(
                f"altering topic {name!r}",
                lambda: topic_changes.alter_topic(
                    runtime.context(),
                    name,
                    config=changes,
                    partitions=partitions,
                    add_columns=added,
                    allow_key_movement=allow_key_movement,
                    topic_id=base.topic_id,
                ),
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        Transactions that are not decided by then can publish no rows for it any more (W46). If a topic with this name
        is created again, its offsets continue after the old ones (PROTOCOL.md, "Topics"). Published tables get a last
        version without rows; if that fails, a warning is logged, and `maintain` does it. Raises
        UnknownTopicOrPartitionError.
        """
        self._check_open()
        runtime = self.runtime
        runtime.ensure_writable()
        runtime.forget_topic(name)
        if runtime.descriptor is None:
            runtime.topic(name)
        runtime.check_store()
        ctx = runtime.context()
        write_id = runtime.ids.new_id()
        target: TopicMetadata | None = None

        def program() -> Program[TopicMetadata]:
            nonlocal target
            target = target or (yield from topic_changes.topic_to_delete(name))
            return (
                yield from topic_changes.delete_topic(
                    ctx,
                    name,
                    append_log_start=topic_changes.ending_logs(ctx),
                    target=target,
                    write_id=write_id,
                )
            )

        deleted = runtime.patiently(f"deleting topic {name!r}", program)
        if not deleted.config.get("publish.formats"):
            return
        from txlog.client.reading import read_session
        from txlog.maintenance.publish import publish_topics

        for _, made in publish_topics(read_session(runtime), [deleted]):
            if isinstance(made, TxlogError):
                text = "topic %r is deleted, and its published tables still show its rows until `txlog maintain`: %s"
                log(_LOG, logging.WARNING, "tables_not_emptied", text, name, made, topic=name)

    def producer(
        self, transactional_id: str | None = None, *, config: Layer | None = None, **settings: object
    ) -> Producer:
        """Return a producer. With a `transactional_id` its sends are parts of transactions.

        Settings are Kafka's keys, dotted in `config` or in snake case: `linger_ms=20` is `linger.ms`. Raises
        InvalidConfigurationError (an unknown key names the nearest), InvalidTxnTimeoutError, UnsupportedStoreError.
        """
        # A local import, here and below: a program seldom needs all kinds of clients, which take time to load.
        from txlog.client.producer import Producer

        self._check_open()
        layer = call_layer(config, {**settings, "transactional_id": transactional_id})
        producer = Producer(self.runtime, layer)
        self._keep(producer)
        return producer

    def consumer(
        self, *topics: str, group_id: str | None = None, config: Layer | None = None, **settings: object
    ) -> Consumer:
        """Return a consumer of `topics`: as the member of its group if it has one, else of all their partitions.

        Topics are named one by one: `store.consumer("orders", "audit")`. Without them, call `subscribe` or `assign`.
        Raises InvalidConfigurationError, UnknownTopicOrPartitionError.
        """
        from txlog.client.consumer import Consumer

        self._check_open()
        consumer = Consumer(self.runtime, call_layer(config, {**settings, "group_id": group_id}))
        self._keep(consumer)
        if topics and consumer.group_id is not None:
            consumer.subscribe(topics)
        elif topics:
            consumer.assign_topics(topics)
        return consumer

    def table(self, name: str) -> TopicTable:
        """Return one topic as a table, to scan with Arrow, pandas, Polars or DuckDB; it needs no Spark.

        Raises UnknownTopicOrPartitionError with the name of the most similar topic.
        """
        # A local import: most programs need no Arrow datasets, which take time to load.
        from txlog.client.tables.table import TopicTable

        self._check_open()
        return TopicTable(self.runtime, name)

    def snapshot(self, *topics: str, as_of: datetime.datetime | None = None) -> Snapshot:
        """Return one cut over all partitions of `topics`, with whole transactions only.

        It writes nothing and waits for no other process. All tables of it show the same point. With `as_of`, a datetime
        with a time zone, it holds what was appended up to then, without transactions of which a row is newer.

        Raises InvalidRequestError without topics, or if the log does not show that time any more;
        UnknownTopicOrPartitionError.
        """
        from txlog.client.tables.snapshot import Snapshot

        self._check_open()
        return Snapshot(self.runtime, topics, as_of)

    def admin(self, *, config: Layer | None = None, **settings: object) -> Admin:
        """Return operators' calls: transactions, offsets, partitions and groups."""
        from txlog.client.admin.admin import Admin

        self._check_open()
        return Admin(self.runtime, call_layer(config, settings))

    def close(self) -> None:
        """Close everything that was made from this store, and abort open transactions; idempotent.

        It closes as much as possible, and then raises the first error: for example IllegalStateError for a consumer
        that another thread is using. In a forked child it does nothing. After an interrupt, call it again.
        """
        self._close(lambda client: client.close())

    def _close(self, close: Callable[[Producer | Consumer], None]) -> None:
        if self._owner.is_elsewhere:
            return
        with self._lock:
            self._closed, clients = True, list(self._clients)
        first: Exception | None = None
        for client in clients:
            try:
                close(client)
            except Exception as error:
                first = first or error
        self.runtime.close()
        self._clients.clear()  # an interrupt before this line leaves them to the next call
        if first is not None:
            raise first

    def _keep(self, client: Producer | Consumer) -> None:
        """Close `client` together with this store. Another thread may have closed the store meanwhile."""
        with self._lock:
            self._check_open()
            self._clients.add(client)

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateError(f"{self!r} is closed; open it again")

    def _remember(self, metadata: TopicMetadata) -> TopicDescription:
        self.runtime.remember_topic(metadata)
        return TopicDescription.of(metadata)


def _check_serves(found: TopicMetadata, asked: Sequence[SchemaField], former: Callable[[str], str]) -> None:
    """Raise SchemaMismatchError unless rows with the columns `asked` are still rows of the topic.

    Columns that were added since are nullable, so a program that does not know them can leave them out.
    """
    theirs = {field.name: field for field in found.schema}
    missing = [field for field in asked if field.name not in theirs]
    changed = [
        field for field in asked if field not in missing and describe_type(field) != describe_type(theirs[field.name])
    ]
    names = {field.name for field in asked}
    needed = [field for field in found.schema if field.name not in names and not field.nullable]
    if missing:
        what = f"it has no column {missing[0].name!r}"
        since = former(missing[0].name)
        what += f", because{since}" if since else ""
    elif changed:
        name = changed[0].name
        what = f"its column {name!r} is {describe_type(theirs[name])}, and {describe_type(changed[0])} was asked for"
    elif needed:
        what = f"its column {needed[0].name!r} ({describe_type(needed[0])}) was not asked for, and takes no null"
    else:
        return
    raise SchemaMismatchError(
        f"topic {found.topic!r} exists already, with another schema: {what}. Its columns are "
        f"{', '.join(f'{field.name} {describe_type(field)}' for field in found.schema)}. "
        "hint: ask for these, add columns with alter_topic, or choose another name"
    )


def _fields(given: object, topic: str, what: str = "") -> tuple[SchemaField, ...]:
    from txlog.client.topics.given_schema import fields_of

    return fields_of(given, topic, what)
