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
    """Opens the store at `url`: a local path (a `pathlib.Path` too; `~` is your home), or file://, memory://, s3://, gs://,
    abfs://.

    An empty or missing location becomes a store with its first topic. `config` holds settings by their dotted names,
    for everything that is made from this store; below it comes the file `config_file`, or the one that TXLOG_CONFIG
    names. `clock`, `ids` and `object_store` are for tests and fault injection.

    Raises NotAStoreError if something else lies there, UnsupportedStoreError (backend, newer format, unknown feature),
    InvalidConfigurationError, CorruptRecordError. No message holds a credential.
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
    """One opened store. Safe for several threads; what it made is closed with it. Calls after `close` raise IllegalStateError.

    A forked child may go on using it, but not the producers and consumers that its parent made: `close` leaves them alone there.
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
            # The error that is on its way tells how a call ended; another in its place would be taken for that answer.
            error.add_note(f"closing {self!r} failed too: {type(failure).__name__}: {failure}")

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
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
        """Creates a topic; without `schema` (a pyarrow.Schema) it has Kafka's record: key, value, headers, timestamp.

        Makes the store if the location was empty. Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError,
        InvalidConfigurationError, SchemaMismatchError; UnsupportedStoreError and ClockSkewError from the probe.

        With `if_not_exists` a topic that is there already is left exactly as it is, whatever partitions and settings are
        asked for, and described: so a program may be started again. It must have the columns of `schema`, though (others,
        nullable, may have been added since): SchemaMismatchError says which it has not.
        """
        return self._open_topics().create(name, schema, partitions, config, if_not_exists)

    def topic(self, name: str) -> TopicDescription:
        """The topic as it is now. Raises UnknownTopicOrPartitionError, naming the most similar one."""
        return self._open_topics().describe(name)

    def topics(self) -> tuple[TopicDescription, ...]:
        """All topics, by name. Raises NotAStoreError as long as the location is empty: only a topic makes a store."""
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
        """Changes settings, adds partitions (never fewer), appends nullable columns (a pyarrow.Schema of them).

        More partitions of a topic with `key.columns`, or other `key.columns` of a topic with rows in several partitions, move
        keys: new rows of a key go to another partition than its older ones. That is refused unless `allow_key_movement`, and
        always for a topic with cleanup.policy=compact. That policy is refused too if keys have moved before.

        Raises UnknownTopicOrPartitionError, InvalidConfigurationError, InvalidPartitionsError, SchemaMismatchError.
        """
        return self._open_topics().alter(name, config, remove_config, partitions, add_columns, allow_key_movement)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic. Its offsets are not given again should the name be made anew (PROTOCOL.md, "Topics").

        Raises UnknownTopicOrPartitionError.
        """
        self._open_topics().delete(name)

    def producer(
        self, transactional_id: str | None = None, *, config: Layer | None = None, **settings: object
    ) -> Producer:
        """A producer; with a `transactional_id` its sends are parts of transactions.

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
        """A consumer of `topics`: as the member of its group if it has one, else of all their partitions.

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
        """Transactions, offsets, partitions and groups, for operators."""
        self._check_open()
        return Admin(self.runtime, call_layer(config, settings))

    def close(self) -> None:
        """Closes what was made from this store, open transactions aborted; idempotent. In a forked child it does nothing.

        It closes all that it can, and then raises the first error that it met: IllegalStateError for a consumer that another
        thread is using, for example.
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
        """Closes it with this store. Another thread may have closed the store meanwhile."""
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
