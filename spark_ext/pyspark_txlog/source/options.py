"""What do the options of a read mean, together and with the store's settings?

`subscribePattern` is a Python regular expression that must match the whole name. `columns` are names in the wanted
order, or `*` for all columns of the topic; a schema given to `spark.read.schema(...)` has the same effect. `_topic`,
`_partition`, `_offset`, `_timestamp` are read only if `columns` or that schema names them. `where` keeps the rows for
which a condition is true, and skips files whose statistics exclude it; the module `where` describes its syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Literal

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import names_of
from pyspark_txlog.options import Given, StoreOptions
from pyspark_txlog.source import where
from txlog.engine import KEYS, IsolationLevel, Layer, Settings
from txlog.engine.offsets import Missing, OffsetSpec
from txlog.errors import InvalidRequestError, TxlogError

ReadMode = Literal["subscribe", "subscribePattern", "assign"]

_SUBSCRIPTIONS: tuple[ReadMode, ...] = ("subscribe", "subscribePattern", "assign")
_METADATA_OPTIONS = ("path", "storageOptions", "metadata", *_SUBSCRIPTIONS)
READ_OPTIONS = names_of("read")
_STREAM_OPTIONS = names_of("readStream")
_SETTINGS = tuple(name for name in READ_OPTIONS if name in KEYS)
_SPARK_DEFAULTS: Layer = {"auto.offset.reset": "none"}
"""As in Spark's Kafka source: a query moves to another offset only if an option allows it."""
_RESETS: Mapping[str, Missing] = {"earliest": "earliest", "latest": "latest", "none": "none"}


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
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    metadata_max_age_ms: int | None
    """How often the query looks for new partitions and new topics of a pattern. None: the client's setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """The options of a read of the log's own state."""

    store: StoreOptions
    table: str
    """One of `metadata_schemas.TABLES`."""
    topics: ReadOptions | None
    """Which topics to read; None: all."""


@plain_errors
def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read`. Raises UnknownOptionError and InvalidRequestError with option, expected and found."""
    given = Given(options, READ_OPTIONS, "a read")
    if "metadata" in given:
        raise InvalidRequestError(
            f"option 'metadata': {given['metadata']} does not read rows, and this call does. hint: leave the option out"
        )
    return _read_options(given, "a read", _offsets(given, "ending"))


@plain_errors
def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `spark.readStream`. Raises UnknownOptionError and InvalidRequestError with option, expected
    and found."""
    lowered = {name.lower() for name in options}
    if ending := [name for name in READ_OPTIONS if name.startswith("ending") and name.lower() in lowered]:
        raise InvalidRequestError(
            f"option {ending[0]!r} belongs to a batch read, because a stream has no end. hint: leave it out; Trigger.AvailableNow ends a query at the "
            "rows that exist when it starts"
        )
    given = Given(options, _STREAM_OPTIONS, "a stream", stream=True)
    read = _read_options(given, "a stream", OffsetSpec(kind="latest", option="endingOffsets"))
    at_most, at_least = given["maxOffsetsPerTrigger"], given["minOffsetsPerTrigger"]
    if at_most is not None and at_least is not None and at_least > at_most:
        raise InvalidRequestError(
            f"option 'minOffsetsPerTrigger': expected at most maxOffsetsPerTrigger, {at_most}, found {at_least}"
        )
    return StreamOptions(
        read=read,
        max_offsets_per_trigger=at_most,
        min_offsets_per_trigger=at_least,
        max_trigger_delay_ms=given["maxTriggerDelay"],
        metadata_max_age_ms=given["metadata.max.age.ms"],
    )


@plain_errors
def parse_metadata_options(options: Mapping[str, str]) -> MetadataOptions:
    """Parse the options of `spark.read.option("metadata", ...)`. Raises UnknownOptionError and InvalidRequestError."""
    given = Given(options, _METADATA_OPTIONS, "a read of metadata")
    table = given["metadata"]
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
    of_streams = [name for name in _STREAM_OPTIONS if name not in READ_OPTIONS]
    given = Given(options, (*READ_OPTIONS, *of_streams), "a read")
    if any(name in given for name in of_streams):
        return parse_stream_options(options).read
    try:
        return parse_read_options(options)
    except TxlogError:
        with suppress(TxlogError):
            return parse_stream_options(options).read
        raise


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


def _read_options(given: Given, call: str, end: OffsetSpec) -> ReadOptions:
    """Parse the options that batches and streams share."""
    store = given.store("load")
    modes = [mode for mode in _SUBSCRIPTIONS if mode in given]
    if len(modes) != 1:
        found = " and ".join(modes) if modes else "none"
        raise InvalidRequestError(f"{call} takes exactly one of {', '.join(_SUBSCRIPTIONS)}; found {found}")
    partitions = given["assign"]
    condition = given["where"]
    if condition is not None:
        where.check(condition)
    return ReadOptions(
        store=store,
        mode=modes[0],
        topics=given["subscribe"] or tuple(partitions or ()),
        pattern=given["subscribePattern"] or "",
        partitions=partitions,
        start=_offsets(given, "starting"),
        end=end,
        missing_time="latest" if given["startingOffsetsByTimestampStrategy"] == "latest" else "none",
        consumer={name: given[name] for name in _SETTINGS if name in given},
        columns=given["columns"],
        where=condition,
        fail_on_data_loss=given["failOnDataLoss"],
        min_partitions=given["minPartitions"],
    )


def _offsets(given: Given, side: str) -> OffsetSpec:
    """Return where a read begins or ends: the first of Kafka's three options that was given, in their order of precedence."""
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    spec: OffsetSpec = given[next((name for name in names if name in given), names[-1])]
    return spec
