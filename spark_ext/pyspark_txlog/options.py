"""Which options does `format("txlog")` take, and what do they mean?

If Spark's Kafka source has an option, txlog uses its name, default and JSON. Settings of a consumer or producer
(`isolation.level`, `transactional.id`) keep Kafka's dotted names. Names are not case-sensitive, as in Spark; values
are. An unknown option is an error that names the nearest known one, because a misspelled `endingOffsets` must not read
everything. `option_table` lists all options with calls, default, range and description; this module parses them.

`subscribePattern` is a Python regular expression that must match the whole name. `columns` are names in the wanted
order, or `*` for all columns of the topic; a schema given to `spark.read.schema(...)` has the same effect. `_topic`,
`_partition`, `_offset`, `_timestamp` are read only if `columns` or that schema names them. `where` keeps the rows for
which a condition is true, and skips files whose statistics exclude it; the module `where` describes its syntax.
`storage.<name>` is text, true, false or a JSON object for the store's driver; `storageOptions` is one JSON object with
all of them. PROTOCOL.md explains `isolation.level` ("Reading"), `transactional.id` ("Transactions") and `txn.version`
("Transaction versions").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import kafka_option, names_of
from txlog.client.offsets import Missing, OffsetSpec, parse_assign, parse_spec, parse_timestamp, parse_timestamps
from txlog.client.settings import Settings
from txlog.config import KEYS, IsolationLevel, Layer
from txlog.core import names
from txlog.errors import InvalidRequestError, TxlogError, UnknownOptionError, UnsupportedStoreError
from txlog.text import nearest

T = TypeVar("T")

ReadMode = Literal["subscribe", "subscribePattern", "assign"]

_SUBSCRIPTIONS: tuple[ReadMode, ...] = ("subscribe", "subscribePattern", "assign")
READ_OPTIONS = names_of("read")
STREAM_OPTIONS = names_of("readStream")
WRITE_OPTIONS = names_of("write")
STREAM_WRITE_OPTIONS = names_of("writeStream")
_ENDING_OPTIONS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY_OPTIONS = tuple(name for name in STREAM_OPTIONS if name not in READ_OPTIONS)
METADATA_TABLES = ("transactions", "partitions", "segments", "consumer_groups", "aborted", "history", "files")
METADATA_OPTIONS = ("path", "storageOptions", "metadata", *_SUBSCRIPTIONS)
_STORAGE_PREFIX = "storage."
CATALOG_HINT = (
    "Tables of Spark's catalog (CREATE TABLE ... USING txlog, saveAsTable) are not supported: Spark drops their options. hint: use "
    "CREATE TEMPORARY VIEW name USING txlog OPTIONS (path '...', subscribe '...'), TxLog.create_views(), or .save(path)"
)
_CONSUMER_SETTINGS = ("isolation.level", "group.id", "auto.offset.reset")
_SPARK_DEFAULTS: Layer = {"auto.offset.reset": "none"}
"""As in Spark's Kafka source: a query moves to another offset only if an option allows it."""
_RESETS: Mapping[str, Missing] = {"earliest": "earliest", "latest": "latest", "none": "none"}
_MAX_INT64 = 2**63 - 1
_MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""The default of Spark's Kafka source."""
_DELAY_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where the store is. Its repr leaves out `storage`, which may hold credentials."""

    path: str
    storage: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a batch read, checked as far as possible without the store."""

    store: StoreOptions
    mode: ReadMode
    topics: tuple[str, ...] = ()
    """From `subscribe` and `assign`, in their order."""
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] | None = None
    """From `assign`."""
    start: OffsetSpec
    end: OffsetSpec
    missing_time: Missing = "none"
    """Where a read by time begins in a partition that has no row at or after that time."""
    consumer: Mapping[str, str] = field(default_factory=dict)
    """The consumer's settings that were given. Lower layers decide the others (`settled`)."""
    columns: tuple[str, ...] | None = None
    where: str | None = None
    """A condition; see the module `where`."""
    fail_on_data_loss: bool = True
    min_partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledOptions(ReadOptions):
    """The options of a read, with the effective consumer settings."""

    isolation_level: IsolationLevel
    group_id: str | None
    missing_start: Missing
    """Where a read begins in a partition that has no row at or after the given time, or no committed offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of `spark.readStream`, checked as far as possible without the store."""

    read: ReadOptions
    """The options that streams and batches share; a stream does not use its `end`."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = _MAX_TRIGGER_DELAY_MS
    metadata_max_age_ms: int | None = None
    """How often the query looks for new partitions and new topics of a pattern. None: the client's setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """The options of a read of the log's own state."""

    store: StoreOptions
    table: str
    """One of METADATA_TABLES."""
    topics: ReadOptions | None
    """Which topics to read; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a batch write, checked as far as possible without the store."""

    store: StoreOptions
    topic: str | None
    """None: the column `topic` names the topic of each row."""
    key: tuple[str, ...] | None
    """Columns whose hash chooses the partition; None: the topic's `key.columns`."""
    transactional_id: str | None
    txn_version: int | None
    transaction_timeout_ms: int | None
    """None, here and below: the producer's setting is used."""
    compression_type: str | None
    query: str = ""
    """The streaming query that writes, if there is one. It is not an option: the sink sets it."""


@plain_errors
def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read`. Raises UnknownOptionError and InvalidRequestError with option, expected and found."""
    given = _Given(options, READ_OPTIONS, {"a write": WRITE_OPTIONS, "a stream": STREAM_OPTIONS}, "a read")
    if "metadata" in given:
        table = given.parsed("metadata", _table)
        raise InvalidRequestError(
            f"option 'metadata': {table} does not read rows, and this call does. hint: leave the option out"
        )
    return _read_options(
        given, "a read", starts=("earliest", "committed"), ends=given.offsets("ending", "latest", ("latest",))
    )


@plain_errors
def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `spark.readStream`. Raises UnknownOptionError and InvalidRequestError with option, expected
    and found."""
    lowered = {name.lower() for name in options}
    if ending := [name for name in _ENDING_OPTIONS if name.lower() in lowered]:
        raise InvalidRequestError(
            f"option {ending[0]!r} belongs to a batch read, because a stream has no end. hint: leave it out; Trigger.AvailableNow ends a query at the "
            "rows that exist when it starts"
        )
    given = _Given(options, STREAM_OPTIONS, {"a write": WRITE_OPTIONS, "a batch read": READ_OPTIONS}, "a stream")
    end = OffsetSpec(kind="latest", option="endingOffsets")
    read = _read_options(given, "a stream", starts=("latest", "earliest", "committed"), ends=end)
    at_most = given.parsed("maxOffsetsPerTrigger", _positive, None)
    at_least = given.parsed("minOffsetsPerTrigger", _positive, None)
    if at_most is not None and at_least is not None and at_least > at_most:
        raise InvalidRequestError(
            f"option 'minOffsetsPerTrigger': expected at most maxOffsetsPerTrigger, {at_most}, found {at_least}"
        )
    return StreamOptions(
        read=read,
        max_offsets_per_trigger=at_most,
        min_offsets_per_trigger=at_least,
        max_trigger_delay_ms=given.parsed("maxTriggerDelay", _delay_ms, _MAX_TRIGGER_DELAY_MS),
        metadata_max_age_ms=given.parsed("metadata.max.age.ms", _version, None),
    )


@plain_errors
def refuse_catalog(options: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if Spark asks for the schema of a new catalog table, because Spark drops its options
    afterwards."""
    if any(name.lower() == "provider" for name in options):
        raise InvalidRequestError(CATALOG_HINT)


@plain_errors
def parse_metadata_options(options: Mapping[str, str]) -> MetadataOptions:
    """Parse the options of `spark.read.option("metadata", ...)`. Raises UnknownOptionError and InvalidRequestError."""
    given = _Given(options, METADATA_OPTIONS, {"a read of rows": READ_OPTIONS}, "a read of metadata")
    table = given.parsed("metadata", _table)
    of_topics = {name: value for name, value in options.items() if name.lower() != "metadata"}
    return MetadataOptions(
        store=given.store("load"),
        table=table,
        topics=parse_read_options(of_topics) if any(mode in given for mode in _SUBSCRIPTIONS) else None,
    )


@plain_errors
def parse_schema_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read when Spark asks for its schema, without saying whether it is a batch or a stream.

    An option that only one of the two allows is accepted here. The other one refuses it later, when it starts.
    """
    _Given(options, (*READ_OPTIONS, *_STREAM_ONLY_OPTIONS), {"a write": WRITE_OPTIONS}, "a read")
    lowered = {name.lower() for name in options}
    if any(name.lower() in lowered for name in _STREAM_ONLY_OPTIONS):
        return parse_stream_options(options).read
    try:
        return parse_read_options(options)
    except TxlogError:
        with suppress(TxlogError):
            return parse_stream_options(options).read
        raise


@plain_errors
def parse_write_options(
    options: Mapping[str, str], known: Sequence[str] = WRITE_OPTIONS, call: str = "a write"
) -> WriteOptions:
    """Parse the options of `df.write`. Raises UnknownOptionError and InvalidRequestError with option, expected and
    found.

    A streaming write has more options: they are in `known`, and this function ignores their values.
    """
    others = {
        "a write": WRITE_OPTIONS,
        "a read": READ_OPTIONS,
        "a stream": STREAM_OPTIONS,
        "a streaming write": STREAM_WRITE_OPTIONS,
    }
    given = _Given(options, known, {whose: theirs for whose, theirs in others.items() if whose != call}, call)
    store = given.store("save")
    topic = given.text("topic")
    return WriteOptions(
        store=store,
        topic=None if topic is None else names.check_topic_name(topic),
        key=given.parsed("key", parse_columns, None),
        transactional_id=given.setting("transactional.id"),
        txn_version=given.parsed("txn.version", _version, None),
        transaction_timeout_ms=None if (text := given.setting("transaction.timeout.ms")) is None else int(text),
        compression_type=given.setting("compression.type"),
    )


def settled(options: ReadOptions, settings: Settings) -> SettledOptions:
    """Return the options, completed with the store's settings.

    Raises InvalidRequestError if the read begins at committed offsets and no setting names the group.
    """
    # An option that was not given must not reach the layers as a value, because it would override the configuration
    # file.
    config = settings.consumer_config(options.consumer, _SPARK_DEFAULTS)
    if options.start.kind == "committed" and not config.group_id:
        raise InvalidRequestError(
            "startingOffsets=committed starts at the committed offsets of a consumer group. hint: name it in 'group.id'"
        )
    by_time = options.start.kind in ("timestamp", "timestamps")
    return SettledOptions(
        **{each.name: getattr(options, each.name) for each in fields(ReadOptions)},
        isolation_level=config.isolation_level,
        group_id=config.group_id,
        missing_start=options.missing_time if by_time else _RESETS[config.auto_offset_reset],
    )


def settled_write(options: WriteOptions, settings: Settings) -> WriteOptions:
    """Return the options of a batch write, with the transactional.id of the store's settings if the call names none.

    Raises InvalidRequestError for a version without an id.
    """
    name = options.transactional_id or settings.producer_config({}).transactional_id
    if options.txn_version is not None and name is None:
        raise InvalidRequestError(
            "txn.version numbers the transactions of one transactional.id: set that option too, or txlog cannot detect a repeated write"
        )
    return replace(options, transactional_id=name)


def _read_options(given: _Given, call: str, *, starts: Sequence[str], ends: OffsetSpec) -> ReadOptions:
    """Parse the options that batches and streams share; `starts` are the words of `startingOffsets`, with the default first."""
    store = given.store("load")
    modes = [mode for mode in _SUBSCRIPTIONS if mode in given]
    if len(modes) != 1:
        found = " and ".join(modes) if modes else "none"
        raise InvalidRequestError(f"{call} takes exactly one of {', '.join(_SUBSCRIPTIONS)}; found {found}")
    mode = modes[0]
    topics: tuple[str, ...] = ()
    partitions: dict[str, tuple[int, ...]] | None = None
    if mode == "subscribe":
        topics = given.parsed(mode, _topics)
    elif mode == "assign":
        partitions = given.parsed(mode, _assignment)
        topics = tuple(partitions)
    pattern = given.parsed("subscribePattern", _pattern) if mode == "subscribePattern" else ""
    consumer = {name: given.setting(name) for name in _CONSUMER_SETTINGS}
    strategy = given.parsed("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error")
    return ReadOptions(
        store=store,
        mode=mode,
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        start=given.offsets("starting", starts[0], starts),
        end=ends,
        missing_time="latest" if strategy == "latest" else "none",
        consumer={name: value for name, value in consumer.items() if value is not None},
        columns=given.parsed("columns", parse_columns, None),
        where=given.parsed("where", _condition, None),
        fail_on_data_loss=given.parsed("failOnDataLoss", _boolean, True),
        min_partitions=given.parsed("minPartitions", _positive, None),
    )


class _Given:
    """The options of one call, by lower-case name."""

    def __init__(
        self, options: Mapping[str, str], known: Sequence[str], others: Mapping[str, Iterable[str]], call: str
    ) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        lowered = {name.lower(): name for name in known}
        for name in self._options:
            if name in lowered or (name.startswith(_STORAGE_PREFIX) and len(name) > len(_STORAGE_PREFIX)):
                continue
            spelled, whose = next(
                ((other, whose) for whose, theirs in others.items() for other in theirs if other.lower() == name),
                (None, None),
            )
            kafka = kafka_option(name)
            hint = (
                f" It is an option of {whose}."
                if whose
                else f" Spark's Kafka {'source and sink have' if kafka.side == 'both' else f'{kafka.side} has'} it; here: {kafka.here}."
                if kafka
                else nearest(name, known)
            )
            raise UnknownOptionError(
                f"option {spelled or name!r} is unknown: {call} has {', '.join(known)}, storage.<name>.{hint}"
            )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """Return the option's text, stripped; None if it was not given. Raises InvalidRequestError for empty text."""
        value = self._options.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise InvalidRequestError(f"option {name!r} is empty; leave it out, or give it a value")
        return value.strip()

    def setting(self, name: str) -> str | None:
        """Return the checked text of a setting of `txlog.config`; None if it was not given, so that other layers decide."""
        text = self.text(name)
        return None if text is None else KEYS[name].text(KEYS[name].parse(text))

    def parsed(self, name: str, parse: Callable[[str, str], T], *default: T) -> T:
        """Return `parse(name, text)`, or the default if the option was not given."""
        text = self.text(name)
        if text is None:
            (value,) = default
            return value
        return parse(name, text)

    def offsets(self, side: str, default: str, words: Sequence[str]) -> OffsetSpec:
        """Return where a read begins or ends: the first of Kafka's three options that was given, in their order of precedence."""
        timestamp, by_timestamp = f"{side}Timestamp", f"{side}OffsetsByTimestamp"
        if (text := self.text(timestamp)) is not None:
            return parse_timestamp(text, timestamp)
        if (text := self.text(by_timestamp)) is not None:
            return parse_timestamps(text, by_timestamp)
        return parse_spec(self.text(f"{side}Offsets") or default, f"{side}Offsets", words=words)

    def store(self, call: str) -> StoreOptions:
        path = self.text("path")
        if path is None:
            raise InvalidRequestError(f"where is the store? Name its folder or URL in .{call}(...). {CATALOG_HINT}")
        if path.lower().startswith("memory:"):
            raise UnsupportedStoreError(
                f"{path!r}: a store in memory lives in one process, but Spark reads and writes from many. hint: use a folder or an object store"
            )
        storage: dict[str, object] = {}
        text = self.text("storageOptions")
        if text is not None:
            storage.update(_json_object("storageOptions", text, secret=True))
        for name, value in self._options.items():
            if name.startswith(_STORAGE_PREFIX):
                storage[name.removeprefix(_STORAGE_PREFIX)] = _storage_value(value)
        return StoreOptions(path=path, storage=storage)


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(part.strip() for part in text.split(",") if part.strip())
    for topic in topics:
        names.check_topic_name(topic)
    if not topics:
        raise InvalidRequestError(f"option {name!r}: expected topics, separated by commas, found {text!r}")
    return tuple(dict.fromkeys(topics))


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequestError(f"option {name!r}: {text!r} is not a valid regular expression: {error}") from error
    return text


def _assignment(name: str, text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for tp in parse_assign(text, name):
        found[names.check_topic_name(tp.topic)] = (*found.get(tp.topic, ()), tp.partition)
    return found


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Parse column names as in the options `columns` and `key`. Raises InvalidRequestError."""
    # Column names may contain commas; the JSON list is unambiguous.
    columns = [part.strip() for part in text.split(",")]
    if text.startswith("["):
        try:
            columns = json.loads(text)
        except ValueError:
            columns = []
    if (
        not isinstance(columns, list)
        or not columns
        or not all(isinstance(column, str) and column for column in columns)
    ):
        raise InvalidRequestError(
            f"option {name!r}: expected column names, separated by commas or as a JSON list, found {text!r}"
        )
    return tuple(columns)


def _table(name: str, text: str) -> str:
    if text.lower() not in METADATA_TABLES:
        raise InvalidRequestError(
            f"option {name!r}: expected one of {', '.join(METADATA_TABLES)}, found {text!r}.{nearest(text, METADATA_TABLES)}"
        )
    return text.lower()


def _condition(name: str, text: str) -> str:
    # Imported here because the SQL parser is loaded only if it is used.
    from pyspark_txlog.source import where

    where.check(text)
    return text


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise InvalidRequestError(f"option {name!r}: expected one of {', '.join(choices)}, found {text!r}")
        return text.lower()

    return parse


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequestError(f"option {name!r}: expected true or false, found {text!r}")
    return text.lower() == "true"


def _positive(name: str, text: str) -> int:
    return _integer(name, text, 1)


def _version(name: str, text: str) -> int:
    return _integer(name, text, 0)


def _delay_ms(name: str, text: str) -> int:
    """Parse Spark's notation of a duration: `15m`, `90s`, `500ms`; a bare number is milliseconds."""
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.lower(), re.ASCII)
    unit_ms = _DELAY_UNITS_MS.get(match[2] or "ms") if match else None
    if match is None or unit_ms is None:
        raise InvalidRequestError(
            f"option {name!r}: expected a number and one of {', '.join(_DELAY_UNITS_MS)}, as 15m, found {text!r}"
        )
    return int(match[1]) * unit_ms


def _integer(name: str, text: str, minimum: int) -> int:
    value = int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else -1
    if not minimum <= value <= _MAX_INT64:
        raise InvalidRequestError(f"option {name!r}: expected an integer of at least {minimum}, found {text!r}")
    return value


def _json_object(name: str, text: str, *, secret: bool = False) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        found = "something else (not shown: it may hold credentials)" if secret else repr(text)
        raise InvalidRequestError(f"option {name!r}: expected a JSON object, found {found}")
    return parsed


def _storage_value(text: str) -> object:
    """Parse true, false and JSON objects; keep other text. Numbers and lists are only possible in `storageOptions`."""
    if text.strip().lower() in {"true", "false"}:
        return text.strip().lower() == "true"
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
