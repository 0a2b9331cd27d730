"""Where does a program begin? `txlog.open(url)` gives a Store: topics, producers, consumers, administration."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from txlog.client.admin import Admin
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.runtime import Runtime
from txlog.client.settings import call_layer
from txlog.client.topics import TopicDescription, Topics
from txlog.client.turns import Maker
from txlog.clock import Clock, IdGenerator
from txlog.config import Layer
from txlog.errors import IllegalStateError
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import ObjectStore


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


class Store:
    """One opened store. Safe for several threads.

    `close` closes everything that the store made. Later calls raise IllegalStateError. A forked child may use the
    store, but not the producers and consumers that its parent made. `close` in the child does not touch them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._maker = Maker(f"store {runtime.where}", "store")
        self._lock = lock_for_forks()
        self.runtime = runtime
        self._topics = Topics(runtime)
        self._clients: weakref.WeakSet[_Closable] = weakref.WeakSet()
        self._closed = False

    def __repr__(self) -> str:
        return f"Store({self.runtime.where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:
            # Keep the caller's error, because it is the result of the call.
            error.add_note(f"closing {self!r} failed too: {type(failure).__name__}: {failure}")

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
        """Create a topic. Without `schema` (a pyarrow.Schema) it has Kafka's columns: key, value, headers, timestamp.

        Makes the store if the location was empty. Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError,
        InvalidConfigurationError, SchemaMismatchError; UnsupportedStoreError and ClockSkewError from the probe.

        With `if_not_exists` an existing topic is left exactly as it is and its description is returned, whatever
        partitions and settings are given. So a program can be started again. The topic must have the columns of
        `schema`, but may have further nullable ones. Otherwise SchemaMismatchError names the missing columns.
        """
        return self._open_topics().create(name, schema, partitions, config, if_not_exists)

    def topic(self, name: str) -> TopicDescription:
        """Return the topic as it is now. Raises UnknownTopicOrPartitionError with the name of the most similar one."""
        return self._open_topics().describe(name)

    def topics(self) -> tuple[TopicDescription, ...]:
        """Return all topics, by name. Raises NotAStoreError while the location is empty: only a topic makes a store."""
        topics = self._open_topics()
        self.runtime.require_store()
        return topics.names()

    def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, object] | None = None,
        remove_config: Sequence[str] = (),
        partitions: int | None = None,
        add_columns: object = None,
        allow_key_movement: bool = False,
    ) -> TopicDescription:
        """Change settings, add partitions (never fewer), append nullable columns (a pyarrow.Schema of them).

        Two changes move keys: more partitions for a topic with `key.columns`, and other `key.columns` for a topic with
        rows in several partitions. New rows of a key are then in another partition than its older ones. Both changes
        are refused unless `allow_key_movement` is given, and always for a topic with cleanup.policy=compact. That
        policy is refused too if keys have moved before.

        Raises UnknownTopicOrPartitionError, InvalidConfigurationError, InvalidPartitionsError, SchemaMismatchError.
        """
        return self._open_topics().alter(name, config, remove_config, partitions, add_columns, allow_key_movement)

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        If a topic with this name is created again, its offsets continue after the old ones (PROTOCOL.md, "Topics").
        Raises UnknownTopicOrPartitionError.
        """
        self._open_topics().delete(name)

    def producer(
        self, transactional_id: str | None = None, *, config: Layer | None = None, **settings: object
    ) -> Producer:
        """Return a producer. With a `transactional_id` its sends are parts of transactions.

        Settings are Kafka's keys, dotted in `config` or in snake case: `linger_ms=20` is `linger.ms`. Raises
        InvalidConfigurationError (an unknown key names the nearest), InvalidTxnTimeoutError, UnsupportedStoreError.
        """
        self._check_open()
        if transactional_id is not None:
            settings = {**settings, "transactional_id": transactional_id}
        producer = Producer(self.runtime, call_layer(config, settings))
        self._keep(producer)
        return producer

    def consumer(
        self, *topics: str, group_id: str | None = None, config: Layer | None = None, **settings: object
    ) -> Consumer:
        """Return a consumer of `topics`: as the member of its group if it has one, else of all their partitions.

        Without topics, call `subscribe` or `assign`. Raises InvalidConfigurationError, UnknownTopicOrPartitionError.
        """
        self._check_open()
        if group_id is not None:
            settings = {**settings, "group_id": group_id}
        consumer = Consumer(self.runtime, call_layer(config, settings))
        self._keep(consumer)
        if topics and consumer.group_id is not None:
            consumer.subscribe(topics)
        elif topics:
            consumer.assign_topics(topics)
        return consumer

    def admin(self, *, config: Layer | None = None, **settings: object) -> Admin:
        """Return operators' calls: transactions, offsets, partitions and groups."""
        self._check_open()
        return Admin(self.runtime, call_layer(config, settings))

    def close(self) -> None:
        """Close everything that was made from this store, and abort open transactions; idempotent.

        It closes as much as possible, and then raises the first error: for example IllegalStateError for a consumer
        that another thread is using. In a forked child it does nothing.
        """
        if self._maker.is_elsewhere:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            clients = list(self._clients)
        first: Exception | None = None
        for client in clients:
            try:
                client.close()
            except Exception as error:
                first = first or error
        self.runtime.close()
        if first is not None:
            raise first

    def _keep(self, client: _Closable) -> None:
        """Close `client` together with this store. Another thread may have closed the store meanwhile."""
        with self._lock:
            self._check_open()
            self._clients.add(client)

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateError(f"{self!r} is closed; open it again")

    def _open_topics(self) -> Topics:
        self._check_open()
        return self._topics


class _Closable(Protocol):
    def close(self) -> None: ...
