"""What does every client of one store share?

The object store, the driver, the clock, ids and settings, the store's descriptor, and the topics seen so far. It holds
no views of partitions: each client has its own (`txlog.client.session`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from txlog.client.patience import Patience
from txlog.client.settings import Settings
from txlog.clock import Clock, IdGenerator, SystemClock, SystemIds
from txlog.config import Layer, nearest
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Gather, Program
from txlog.core.moments import Moment
from txlog.core.names import TopicPartition
from txlog.core.records import StoreConstants, StoreDescriptor, TopicMetadata
from txlog.errors import (
    InvalidConfigurationError,
    NotAStoreError,
    SchemaMismatchError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import topics as topic_protocol
from txlog.protocol.context import Context, KnownStore
from txlog.storage.driver import Driver
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import clock_offset_ms, clock_was_set, open_object_store, probe, spell_url

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Runtime:
    """One opened store. Thread-safe; `close` ends its helper threads.

    `url` and `storage_options` are what another process needs to open the same store, `where` names it in messages: it
    holds no credentials.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        url: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: IdGenerator | None = None,
    ) -> None:
        self.store = store
        self.where = store.url
        # A relative path means something else in another process; the adapter has made it absolute.
        self.url = store.url if url is None or "://" not in url else url
        self.storage_options = dict(storage_options or {})
        self.settings = settings or Settings()
        self._client = self.settings.client_config()
        self.clock: Clock = clock or SystemClock()
        self.ids: IdGenerator = ids or SystemIds()
        self.driver = Driver(store, self.clock, self.ids)
        self._lock = lock_for_forks()
        self._descriptor: StoreDescriptor | None = None
        self._store_seen_at: Moment | None = None
        self._topics: dict[str, tuple[TopicMetadata, int]] = {}
        self._rolls: dict[str, RollPolicy] = {}
        self._proven_offset_ms: int | None = None

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        config: Layer | None = None,
        config_file: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        ids: IdGenerator | None = None,
        object_store: ObjectStore | None = None,
    ) -> Runtime:
        """Opens the store at `url`; an empty or missing location is a store at its first topic.

        `clock`, `ids` and `object_store` are for tests and fault injection. Raises NotAStoreError if something else lies
        there, UnsupportedStoreError (backend, newer format, unknown feature), CorruptRecordError,
        InvalidConfigurationError.
        """
        settings = Settings.load(config, config_file)
        url = spell_url(url)
        store = object_store if object_store is not None else open_object_store(url, storage_options)
        runtime = cls(store, url=url, storage_options=storage_options, settings=settings, clock=clock, ids=ids)
        runtime.descriptor  # noqa: B018  a location that is no store is refused here, not at the first call
        return runtime

    def __repr__(self) -> str:
        return f"Runtime({self.where!r})"

    @property
    def descriptor(self) -> StoreDescriptor | None:
        """What this store is; None as long as the location is empty."""
        if self._descriptor is None:
            self._store_seen_at = self.moment()
            self._descriptor = self.patiently("reading txlog.json", lambda: topic_protocol.read_store(self.where))
        return self._descriptor

    @property
    def constants(self) -> StoreConstants:
        """The store's constants; those of a store to be made, as long as the location is empty."""
        descriptor = self.descriptor
        return self.settings.store_constants() if descriptor is None else descriptor.constants

    def run(self, program: Program[T]) -> T:
        """The result of a protocol program; raises what it raises."""
        return self.driver.run(program)

    def context(self, *, retry_backoff_ms: int | None = None, retry_backoff_max_ms: int | None = None) -> Context:
        """What protocol calls need; roll policies are those of the topics seen so far, others are looked up where they are needed."""
        return Context(
            constants=self.constants,
            store=self._known_store(self._store_seen_at),
            roll=self._rolls,
            find_roll=self._find_roll,
            retry_backoff_ms=self._client.retry_backoff_ms if retry_backoff_ms is None else retry_backoff_ms,
            retry_backoff_max_ms=(
                self._client.retry_backoff_max_ms if retry_backoff_max_ms is None else retry_backoff_max_ms
            ),
        )

    def make_store(self) -> StoreDescriptor:
        """The store's descriptor, made now if the location is empty."""
        if self._descriptor is None:
            constants = self.settings.store_constants()
            self._store_seen_at = self.moment()
            self._descriptor = self.patiently(
                "making the store", lambda: topic_protocol.create_store(constants, self.where)
            )
        else:
            self.check_store()
        return self._descriptor

    def check_store(self, *, now: bool = False) -> None:
        """Raises StoreChangedError unless the store that was opened still lies there (W47): one GET, or none if it was seen a
        moment ago. `now` looks in any case."""
        known = self._known_store(None if now else self._store_seen_at)
        if known is not None:
            ctx = Context(store=known)
            self.patiently("reading txlog.json", lambda: topic_protocol.check_store(ctx))

    def require_store(self) -> StoreDescriptor:
        """The store's descriptor; raises NotAStoreError as long as the location is empty: only a topic makes a store."""
        if (descriptor := self.descriptor) is None:
            raise NotAStoreError(
                f"{self.where} is empty, there is no store yet; check the URL, or create a topic first"
            )
        return descriptor

    def ensure_writable(self) -> None:
        """Proves once that the backend creates atomically, and that the clocks agree (W2, W45): these again if this machine's
        was set since. Costs nothing otherwise, so whoever deletes by the clock asks each time.

        Raises UnsupportedStoreError, ClockSkewError.
        """
        if self._proven_offset_ms is None or clock_was_set(self._proven_offset_ms, self.clock):
            offset_ms = clock_offset_ms(self.clock)
            probe(self.store, self.clock, self.ids)
            self._proven_offset_ms = offset_ms

    def moment(self) -> Moment:
        """Both clocks now: what ages of this process are measured with."""
        return Moment(self.clock.now_ms(), self.clock.monotonic_ms())

    def topic(self, name: str, max_age_ms: int | None = None) -> TopicMetadata:
        """The topic's metadata, at most `max_age_ms` old (`metadata.max.age.ms` of the client, if None).

        Raises UnknownTopicOrPartitionError, naming the most similar topic, InvalidTopicError.
        """
        limit_ms = self._client.metadata_max_age_ms if max_age_ms is None else max_age_ms
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            known = self._topics.get(name)
        if known is not None and now_ms - known[1] < limit_ms:
            return known[0]
        try:
            if known is not None:
                metadata = self._look_up(f"looking up topic {name!r}", lambda: topic_protocol.refresh_topic(known[0]))
            else:
                if self.descriptor is None:
                    raise UnknownTopicOrPartitionError(
                        f"topic {name!r} does not exist: {self.where} is empty, there is no store yet. Check the URL, or create the topic"
                    )
                metadata = self._look_up(f"looking up topic {name!r}", lambda: topic_protocol.describe_topic(name))
        except UnknownTopicOrPartitionError:
            self.forget_topic(name)
            raise
        self.remember_topic(metadata, now_ms)
        return metadata

    def known_topic(self, name: str) -> TopicMetadata | None:
        """The topic's metadata as this process saw it last, however long ago; None if it never did."""
        with self._lock:
            known = self._topics.get(name)
        return None if known is None else known[0]

    def remember_topic(self, metadata: TopicMetadata, fetched_at_ms: int | None = None) -> None:
        """Takes over metadata that was read or written just now."""
        at_ms = self.clock.monotonic_ms() if fetched_at_ms is None else fetched_at_ms
        try:
            roll = self.settings.roll_policy(metadata)
        except InvalidConfigurationError:
            # A reader needs no setting (PROTOCOL.md, R4); who appends rows reads them again, and is told.
            roll = RollPolicy()
        with self._lock:
            # New mappings: contexts of other threads hold the old ones.
            self._topics = {**self._topics, metadata.topic: (metadata, at_ms)}
            self._rolls = {**self._rolls, metadata.topic: roll}

    def forget_topic(self, name: str) -> None:
        """Has the topic looked up anew at its next use."""
        with self._lock:
            self._topics = {topic: known for topic, known in self._topics.items() if topic != name}

    def list_topics(self) -> tuple[TopicMetadata, ...]:
        """All topics, by name; none as long as the location is empty."""
        if self.descriptor is None:
            return ()
        return self._look_up("listing topics", topic_protocol.list_topics)

    def arrow_schema(self, topic: TopicMetadata) -> pa.Schema:
        """The topic's schema in Arrow's words."""
        # Here and not at the top: planning processes need topics and must not pay for pyarrow.
        from txlog.storage.arrow_schema import to_arrow

        return to_arrow(topic.schema)

    def partition(self, topic: str, partition: int, max_age_ms: int | None = None) -> TopicPartition:
        """The partition, if the topic has it; raises UnknownTopicOrPartitionError with the valid range."""
        return check_partition(self.topic(topic, max_age_ms), partition)

    def partitions(self, topic: str, max_age_ms: int | None = None) -> tuple[TopicPartition, ...]:
        """All partitions of a topic."""
        metadata = self.topic(topic, max_age_ms)
        return tuple(TopicPartition(topic, number) for number in range(metadata.partitions))

    def close(self) -> None:
        """Ends the helper threads; idempotent."""
        self.driver.close()

    def _find_roll(self, topic: str) -> Program[RollPolicy]:
        """The roll policy of a topic, once looked up remembered; the default if it cannot be told.

        Asked for once a transaction is decided: that must not fail for want of a setting. A deleted topic's last hold.
        """
        known = self._rolls.get(topic)
        if known is not None:
            return known
        try:
            metadata = yield from topic_protocol.find_topic(topic)
            if metadata is None:
                return RollPolicy()
            roll = self.settings.roll_policy(metadata)
        except TxlogError:
            return RollPolicy()
        with self._lock:
            # What `remember_topic` may have put there meanwhile is at least as new.
            self._rolls = {topic: roll, **self._rolls}
        return roll

    def _known_store(self, checked_at: Moment | None) -> KnownStore | None:
        descriptor = self.descriptor
        if descriptor is None:
            return None
        return KnownStore(store_id=descriptor.store_id, where=self.where, checked_at=checked_at, note=self._note_store)

    def _note_store(self, seen_at: Moment) -> None:
        self._store_seen_at = seen_at

    def _look_up(self, what: str, program: Callable[[], Program[T]]) -> T:
        """What the store says of its topics, if it is still the same store."""
        ctx = Context(store=self._known_store(self._store_seen_at))

        def checked() -> Program[T]:
            _, found = yield Gather((topic_protocol.check_store(ctx), program()))
            return found  # type: ignore[no-any-return]

        return self.patiently(what, checked)

    def patiently(self, what: str, program: Callable[[], Program[T]]) -> T:
        """The result of a call about the store or its topics, tried again as every client's calls are."""
        patience = Patience(
            who=self.where,
            timeout_ms=self._client.default_api_timeout_ms,
            setting="default.api.timeout.ms",
            retries=self._client.retries,
        )
        backoff = Context(
            retry_backoff_ms=self._client.retry_backoff_ms, retry_backoff_max_ms=self._client.retry_backoff_max_ms
        )
        return patience.run(self.driver, backoff, what, program)


def check_partition(topic: TopicMetadata, partition: int) -> TopicPartition:
    """Partition `partition` of `topic`; raises UnknownTopicOrPartitionError with the valid range."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < topic.partitions:
        raise UnknownTopicOrPartitionError(
            f"topic {topic.topic!r} has no partition {partition!r}: it has {topic.partitions}, numbered 0 to {topic.partitions - 1}"
        )
    return TopicPartition(topic.topic, partition)


def check_columns(topic: TopicMetadata, columns: tuple[str, ...]) -> tuple[str, ...]:
    """`columns`, if the topic has them all; raises SchemaMismatchError naming the most similar one."""
    known = [field.name for field in topic.schema]
    for column in columns:
        if column not in known:
            raise SchemaMismatchError(
                f"topic {topic.topic!r} has no column {column!r}.{nearest(column, known)} Its columns are {', '.join(known)}"
            )
    return columns
