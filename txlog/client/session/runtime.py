"""The shared part of all clients of one store.

It holds the object store, the driver, the clock, ids and settings, the store's descriptor, and the topics seen so far.
It holds no views of partitions, because each client has its own (`txlog.client.session.session`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from txlog.client.session.arguments import checked
from txlog.client.session.leading import Leaders
from txlog.client.session.retry import RetryPolicy
from txlog.client.session.settings import Settings
from txlog.clock import Clock, IdGenerator, SystemClock, SystemIds
from txlog.config import ClientConfig, ConsumerConfig, Layer, ProducerConfig
from txlog.core.ages import ClockReading
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Gather, Program
from txlog.core.evolution import WrittenSchema, written_schema
from txlog.core.features import STORE_FEATURES
from txlog.core.names import TopicPartition
from txlog.core.records import StoreConstants, StoreDescriptor, TopicMetadata, TransactionMetadata
from txlog.errors import (
    CorruptLogError,
    InvalidConfigurationError,
    NotAStoreError,
    SchemaMismatchError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.logs import log
from txlog.protocol import stores, topics as topic_protocol
from txlog.protocol.context import Context, EndedByOther, KnownStore
from txlog.storage.driver import Driver
from txlog.storage.forks import lock_for_forks
from txlog.storage.metered import metered
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import clock_offset_ms, clock_was_set, open_object_store, probe, spell_url
from txlog.text import any_text, nearest

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class Runtime:
    """One opened store. Thread-safe; `close` ends its helper threads.

    With `url` and `storage_options` another process can open the same store. `where` is its name in messages and holds
    no credentials.
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
        self.store = metered(store)
        self.where = store.url
        # A relative path has another meaning in another process. The adapter has made it absolute.
        self.url = store.url if url is None or "://" not in url else url
        self.storage_options = dict(storage_options or {})
        self.settings = settings or Settings()
        self._client = self.settings.client_config()
        self.clock: Clock = clock or SystemClock()
        self.ids: IdGenerator = ids or SystemIds()
        self.driver = Driver(self.store, self.clock, self.ids)
        self._leaders = Leaders(self.run)
        self._lock = lock_for_forks()
        self._descriptor: StoreDescriptor | None = None
        self._store_seen_at: ClockReading | None = None
        self._topics: dict[str, tuple[TopicMetadata, int]] = {}
        self._written: dict[tuple[str, int], WrittenSchema] = {}
        self._rolls: dict[str, RollPolicy] = {}
        self._proven_offset_ms: int | None = None

    @classmethod
    @checked
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
        """Open the store at `url`: as `txlog.open`, with the same arguments and errors."""
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
        """The store's descriptor. None while the location is empty."""
        if self._descriptor is None:
            self._store_seen_at = self.read_clocks()
            self._descriptor = self.patiently("reading txlog.json", lambda: stores.read_store(self.where))
        return self._descriptor

    @property
    def constants(self) -> StoreConstants:
        """The store's constants. While the location is empty: the constants of the store to be made."""
        descriptor = self.descriptor
        return self.settings.store_constants() if descriptor is None else descriptor.constants

    def run(self, program: Program[T]) -> T:
        """Return the result of a protocol program. Raises what the program raises."""
        return self.driver.run(program)

    def context(self, config: ClientConfig | ConsumerConfig | ProducerConfig | None = None) -> Context:
        """Return what protocol calls need, with the roll policies of topics seen so far. Others are read when needed.

        `config` are the settings of the client that calls; None: those of the store's own calls.
        """
        config = config or self._client
        return Context(
            constants=self.constants,
            features=STORE_FEATURES if self._descriptor is None else self._descriptor.features,
            store=self._known_store(self._store_seen_at),
            roll=self._rolls,
            find_roll=self._find_roll,
            report=self._log_ended,
            leads=lambda view, pace_ms: self._leaders.lead(self.context(), view, pace_ms),
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )

    def make_store(self) -> StoreDescriptor:
        """Return the store's descriptor, and make the store first if the location is empty."""
        if self._descriptor is None:
            constants = self.settings.store_constants()
            self._store_seen_at = self.read_clocks()
            self._descriptor = self.patiently("making the store", lambda: stores.create_store(constants, self.where))
        else:
            self.check_store()
        return self._descriptor

    def check_store(self, *, now: bool = False) -> None:
        """Raise StoreChangedError unless the location still holds the store that was opened (W47).

        Costs one GET, or nothing if the store was checked a moment ago. With `now` it always checks.
        """
        known = self._known_store(None if now else self._store_seen_at)
        if known is not None:
            ctx = Context(store=known)
            self.patiently("reading txlog.json", lambda: stores.check_store(ctx))

    def require_store(self) -> StoreDescriptor:
        """Return the store's descriptor.

        Raises NotAStoreError while the location is empty: only a topic makes a store.
        """
        if (descriptor := self.descriptor) is None:
            raise NotAStoreError(
                f"{self.where} is empty, there is no store yet; check the URL, or create a topic first"
            )
        return descriptor

    def ensure_writable(self) -> None:
        """Prove once that the backend creates atomically, and that the clocks agree (W2, W45).

        The clocks are compared again if this machine's clock was set since. Otherwise a further call costs nothing, so
        every job that deletes by the clock calls it each time. Raises UnsupportedStoreError, ClockSkewError.
        """
        if self._proven_offset_ms is None or clock_was_set(self._proven_offset_ms, self.clock):
            offset_ms = clock_offset_ms(self.clock)
            probe(self.store, self.clock, self.ids)
            self._proven_offset_ms = offset_ms

    def read_clocks(self) -> ClockReading:
        """Return both clocks now. Ages in this process are measured with them."""
        return ClockReading(self.clock.now_ms(), self.clock.monotonic_ms())

    def topic(self, name: str, max_age_ms: int | None = None) -> TopicMetadata:
        """Return the topic's metadata, at most `max_age_ms` old (None: `metadata.max.age.ms` of the client).

        Raises UnknownTopicOrPartitionError with the name of the most similar topic, InvalidTopicError.
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
                        f"topic {name!r} does not exist: {self.where} is empty, there is no store yet. Check the "
                        "URL, or create the topic"
                    )
                metadata = self._look_up(f"looking up topic {name!r}", lambda: topic_protocol.describe_topic(name))
        except UnknownTopicOrPartitionError:
            self.forget_topic(name)
            raise
        self.remember_topic(metadata, now_ms)
        return metadata

    def written_schemas(self, topic: TopicMetadata, schema_ids: Iterable[int]) -> dict[int, WrittenSchema]:
        """Return the columns of these versions of a topic, which a row may name as its `schema_id`.

        Versions never change, so each is read once. Raises MissingObjectError for one that does not exist any more,
        UnknownTopicOrPartitionError for one of a deleted topic of this name.
        """
        found = {}
        for number in schema_ids:
            key = (topic.topic_id, number)
            held = self._written.get(key)
            if held is None:
                version = topic
                if number != topic.schema_id:
                    what = f"reading version {number} of topic {topic.topic!r}"
                    version = self.patiently(what, partial(topic_protocol.earlier_version, topic.topic, number))
                if version.topic_id != topic.topic_id:
                    raise UnknownTopicOrPartitionError(
                        f"topic {topic.topic!r} was deleted and created again (version {topic.number}): these rows "
                        "are of the deleted topic"
                    )
                held = written_schema(version)
                with self._lock:
                    self._written = {**self._written, key: held}
            found[number] = held
        return found

    def known_topic(self, name: str) -> TopicMetadata | None:
        """Return the topic's metadata as this process last saw them, however long ago, or None if it never did."""
        with self._lock:
            known = self._topics.get(name)
        return None if known is None else known[0]

    def remember_topic(self, metadata: TopicMetadata, fetched_at_ms: int | None = None) -> None:
        """Keep metadata that was read or written just now."""
        at_ms = self.clock.monotonic_ms() if fetched_at_ms is None else fetched_at_ms
        roll = None
        if self.known_topic(metadata.topic) is not metadata:
            try:
                roll = self.settings.roll_policy(metadata)
            except InvalidConfigurationError:
                # A reader needs no setting (PROTOCOL.md, R4). A writer reads the settings again and gets the error
                # then.
                roll = RollPolicy()
        with self._lock:
            # New mappings, because contexts of other threads hold the old ones.
            self._topics = {**self._topics, metadata.topic: (metadata, at_ms)}
            if roll is not None:
                self._rolls = {**self._rolls, metadata.topic: roll}

    def forget_topic(self, name: str) -> None:
        """Drop the topic's metadata, so that its next use reads them again."""
        with self._lock:
            self._topics = {topic: known for topic, known in self._topics.items() if topic != name}

    def list_topics(
        self, damaged: list[CorruptLogError] | None = None, *, deleted: bool = False
    ) -> tuple[TopicMetadata, ...]:
        """Return all topics, by name, with `deleted` also deleted ones; an empty tuple while the location is empty.

        With a list `damaged`, topics with damaged metadata are left out and their errors are appended to the list.
        """
        if self.descriptor is None:
            return ()
        try:
            return self._look_up("listing topics", partial(topic_protocol.list_topics, deleted=deleted))
        except CorruptLogError:
            if damaged is None:
                raise
        found = []
        for name in self._look_up("listing topics", topic_protocol.topic_names):
            try:
                found.append(self.topic(name, 0))
            except UnknownTopicOrPartitionError:
                continue  # it was deleted
            except CorruptLogError as error:
                damaged.append(error)
        return tuple(found)

    def is_recreated(self, topic: TopicMetadata) -> bool:
        """Return whether an earlier topic had this name, so that the offsets continue from its end."""
        return self.run(topic_protocol.is_recreated(topic))

    def partition(self, topic: str, partition: int, max_age_ms: int | None = None) -> TopicPartition:
        """Return the partition.

        Raises UnknownTopicOrPartitionError with the valid range if the topic does not have it.
        """
        return check_partition(self.topic(topic, max_age_ms), partition)

    def partitions(self, topic: str, max_age_ms: int | None = None) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic."""
        metadata = self.topic(topic, max_age_ms)
        return tuple(TopicPartition(topic, number) for number in range(metadata.partitions))

    def close(self) -> None:
        """End the helper threads; idempotent."""
        self._leaders.close()
        self.driver.close()

    def _log_ended(self, how: EndedByOther, prepare: TransactionMetadata) -> None:
        as_decided = {"PREPARE_COMMIT": ": it is committed", "PREPARE_ABORT": ": it is aborted"}.get(prepare.state, "")
        log(
            _LOG,
            logging.WARNING if how == "timed out" else logging.INFO,
            f"transaction_{how.replace(' an ', ' ').replace(' ', '_')}",
            "%s: a transaction of transactional.id %r (producer %d, epoch %d) was %s%s",
            self.where,
            prepare.transactional_id,
            prepare.producer_id,
            prepare.last_epoch,
            how,
            as_decided if how == "rolled forward" else "",
            store=self.where,
            transactional_id=prepare.transactional_id,
            producer_id=prepare.producer_id,
            producer_epoch=prepare.last_epoch,
            partitions=tuple(str(tp) for tp in prepare.partitions),
        )

    def _find_roll(self, topic: str) -> Program[RollPolicy]:
        """Return a topic's roll policy and remember it. Returns the default if it cannot be read.

        It is needed after a transaction is decided, and that must not fail because of a setting. The last policy of a
        deleted topic stays in use.
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
            # A policy that `remember_topic` has set meanwhile is at least as new.
            self._rolls = {topic: roll, **self._rolls}
        return roll

    def _known_store(self, checked_at: ClockReading | None) -> KnownStore | None:
        descriptor = self.descriptor
        if descriptor is None:
            return None
        return KnownStore(store_id=descriptor.store_id, where=self.where, checked_at=checked_at, note=self._note_store)

    def _note_store(self, seen_at: ClockReading) -> None:
        self._store_seen_at = seen_at

    def _look_up(self, what: str, program: Callable[[], Program[T]]) -> T:
        """Return what the store answers about its topics, if it is still the same store."""
        ctx = Context(store=self._known_store(self._store_seen_at))

        def checked() -> Program[T]:
            _, found = yield Gather((stores.check_store(ctx), program()))
            return found  # type: ignore[no-any-return]

        return self.patiently(what, checked)

    def patiently(self, what: str, program: Callable[[], Program[T]]) -> T:
        """Return the result of a call about the store or its topics, with the retries of every client's calls."""
        backoff = Context(
            retry_backoff_ms=self._client.retry_backoff_ms, retry_backoff_max_ms=self._client.retry_backoff_max_ms
        )
        return RetryPolicy.of(self._client, self.where).run(self.driver, backoff, what, program)


def check_partition(topic: TopicMetadata, partition: int) -> TopicPartition:
    """Return partition `partition` of `topic`. Raises UnknownTopicOrPartitionError with the valid range."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < topic.partitions:
        raise UnknownTopicOrPartitionError(
            f"topic {topic.topic!r} has no partition {any_text(partition)}: it has {topic.partitions}, numbered 0 "
            f"to {topic.partitions - 1}"
        )
    return TopicPartition(topic.topic, partition)


def check_columns(topic: TopicMetadata, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return `columns` if the topic has them all.

    Raises SchemaMismatchError with the name of the most similar column.
    """
    known = [field.name for field in topic.schema]
    for column in columns:
        if column not in known:
            raise SchemaMismatchError(
                f"topic {topic.topic!r} has no column {column!r}.{nearest(column, known)} Its "
                f"columns are {', '.join(known)}"
            )
    return columns
