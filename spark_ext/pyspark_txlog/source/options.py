"""What do the options of a read mean, together and with the store's settings?

`subscribePattern` is a Python regular expression that must match the whole name. `columns` are names in the wanted
order, or `*` for all columns of the topic; a schema given to `spark.read.schema(...)` has the same effect. `_topic`,
`_partition`, `_offset`, `_timestamp` are read only if `columns` or that schema names them. `where` keeps the rows for
which a condition is true, and skips files whose statistics exclude it; the module `where` describes its syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options, check_names
from pyspark_txlog.source.read_limits import refuse_limits
from txlog.engine import IsolationLevel, Layer, Settings
from txlog.engine.conditions import check
from txlog.engine.offsets import Missing
from txlog.errors import InvalidRequestError, TxlogError

_SUBSCRIPTIONS = (table.SUBSCRIBE, table.SUBSCRIBE_PATTERN, table.ASSIGN)
_METADATA_OPTIONS = ("path", "storageOptions", "metadata", *(option.name for option in _SUBSCRIPTIONS))
_SPARK_DEFAULTS: Layer = {"auto.offset.reset": "none"}
"""As in Spark's Kafka source: a query moves to another offset only if an option allows it."""
_RESETS: Mapping[str, Missing] = {"earliest": "earliest", "latest": "latest", "none": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(Options):
    """The options of a read, with the effective consumer settings."""

    isolation_level: IsolationLevel
    group_id: str | None
    allow_mixed_groups: bool
    """Whether members of the group may share partitions beside this query (`allow.mixed.groups`)."""
    missing_start: Missing
    """Where a read begins in a partition that has no row at or after the given time, or no committed offset."""


@plain_errors
def parse_read_options(options: Mapping[str, str]) -> Options:
    """Parse the options of `spark.read`.

    Raises UnknownOptionError and InvalidRequestError with option, expected and found.
    """
    parsed = Options.parse(options, "read")
    if (state := parsed[table.METADATA]) is not None:
        raise InvalidRequestError(
            f"option 'metadata': {state} does not read rows, and this call does. hint: leave the option out"
        )
    if reads_latest(parsed):
        _check_latest(parsed)
    return _checked(parsed, "a read")


@plain_errors
def parse_stream_options(options: Mapping[str, str]) -> Options:
    """Parse the options of `spark.readStream`. Raises UnknownOptionError and InvalidRequestError with option, expected
    and found."""
    lowered = {name.lower() for name in options}
    if ending := [name for name in table.names_of("read") if name.startswith("ending") and name.lower() in lowered]:
        raise InvalidRequestError(
            f"option {ending[0]!r} belongs to a batch read, because a stream has no end. "
            "hint: leave it out; Trigger.AvailableNow ends a query at the rows that exist when it starts"
        )
    parsed = _checked(Options.parse(options, "readStream"), "a stream")
    refuse_limits(options)
    at_most, at_least = parsed[table.MAX_OFFSETS_PER_TRIGGER], parsed[table.MIN_OFFSETS_PER_TRIGGER]
    if at_most is not None and at_least is not None and at_least > at_most:
        raise InvalidRequestError(
            f"option 'minOffsetsPerTrigger': expected at most maxOffsetsPerTrigger, {at_most}, found {at_least}"
        )
    return parsed


@plain_errors
def parse_metadata_options(options: Mapping[str, str]) -> tuple[str, Options]:
    """Return the table and the options of `spark.read.option("metadata", ...)`. Raises UnknownOptionError and
    InvalidRequestError."""
    parsed = Options.parse(options, "read", _METADATA_OPTIONS, "a read of metadata")
    if names_topics(parsed):
        _check_subscription(parsed, "a read")
    state = parsed[table.METADATA]
    assert state is not None
    return state, parsed


@plain_errors
def parse_schema_options(options: Mapping[str, str]) -> Options:
    """Parse the options of a read when Spark asks for its schema, without saying whether it is a batch or a stream.

    An option that only one of the two allows is accepted here. The other one refuses it later, when it starts.
    """
    of_batches = table.names_of("read")
    of_streams = [name for name in table.names_of("readStream") if name not in of_batches]
    check_names(options, (*of_batches, *of_streams), "a read")
    if {name.lower() for name in of_streams} & {name.lower() for name in options}:
        return parse_stream_options(options)
    try:
        return parse_read_options(options)
    except TxlogError:
        with suppress(TxlogError):
            return parse_stream_options(options)
        raise


def names_topics(options: Options) -> bool:
    """Whether the call names topics, in one of the three ways."""
    return any(option in options for option in _SUBSCRIPTIONS)


def reads_latest(options: Options) -> bool:
    """Whether the read returns the newest row of each key."""
    return options.call == "read" and options[table.ROWS] == table.LATEST_ROWS


def settled(options: Options, settings: Settings) -> ReadOptions:
    """Return the options, completed with the store's settings.

    Raises InvalidRequestError if the read begins at committed offsets and no setting names the group.
    """
    # An option that was not given must not reach the layers as a value, because it would override the configuration
    # file.
    config = settings.consumer_config(options.settings, _SPARK_DEFAULTS)
    start = options[table.STARTING_OFFSETS]
    if start.kind == "committed" and not config.group_id:
        raise InvalidRequestError(
            "startingOffsets=committed starts at the committed offsets of a consumer group. hint: name it in 'group.id'"
        )
    by_time = start.kind in ("timestamp", "timestamps")
    at_time: Missing = "latest" if options[table.STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY] == "latest" else "none"
    return ReadOptions(
        call=options.call,
        storage=options.storage,
        values=options.values,
        isolation_level="read_committed" if reads_latest(options) else config.isolation_level,
        group_id=config.group_id,
        allow_mixed_groups=config.allow_mixed_groups,
        missing_start=at_time if by_time else _RESETS[config.auto_offset_reset],
    )


def _checked(options: Options, what: str) -> Options:
    """Check what batches and streams share."""
    _check_subscription(options, what)
    if (condition := options[table.WHERE]) is not None:
        check(condition)
    return options


def _check_latest(options: Options) -> None:
    """Check that no option asks for a part of the partitions, for other rows, or for tasks."""
    others = [name for name in options.values if name.startswith(("starting", "ending")) or name == "minPartitions"]
    if not options[table.FAIL_ON_DATA_LOSS]:
        others.append("failOnDataLoss=false")
    if options[table.ISOLATION_LEVEL] == "read_uncommitted":
        others.append("isolation.level=read_uncommitted")
    if others:
        raise InvalidRequestError(
            f"option 'rows': latest takes all committed rows of a partition, in one task, and {others[0]} asks for "
            "something else. hint: leave that option out"
        )


def _check_subscription(options: Options, what: str) -> None:
    modes = [option.name for option in _SUBSCRIPTIONS if option in options]
    if len(modes) != 1:
        found = " and ".join(modes) if modes else "none"
        raise InvalidRequestError(
            f"{what} takes exactly one of {', '.join(option.name for option in _SUBSCRIPTIONS)}; found {found}. "
            "hint: name topics, as in .option('subscribe', 'orders')"
        )
