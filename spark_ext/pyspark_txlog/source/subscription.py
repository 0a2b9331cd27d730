"""Which topics and partitions does a read include, and where does it begin in them?

The same for batches and streams.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pyspark_txlog import option_table as table
from pyspark_txlog.options import Options
from pyspark_txlog.source.options import ReadOptions
from txlog.engine import Runtime, Session, TopicPartition
from txlog.engine.offsets import check_exist, resolve
from txlog.engine.schemas import TopicMetadata
from txlog.errors import NoOffsetForPartitionError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from txlog.logs import log

_LOG = logging.getLogger(__name__)


def named_topics(options: Options) -> tuple[str, ...]:
    """Return the topics that the options name, in their order; none for a pattern."""
    return options[table.SUBSCRIBE] or tuple(options[table.ASSIGN] or ())


def subscribed_topics(runtime: Runtime, options: Options, *, may_be_none: bool = False) -> dict[str, TopicMetadata]:
    """Return the topics that the options name or match now.

    Raises UnknownTopicOrPartitionError if a named topic does not exist. Raises it too for a pattern without a match,
    unless `may_be_none`.
    """
    pattern = options[table.SUBSCRIBE_PATTERN]
    if pattern is None:
        return {name: runtime.topic(name, 0) for name in named_topics(options)}
    known = runtime.list_topics()
    found = {topic.topic: topic for topic in known if re.fullmatch(pattern, topic.topic)}
    if not found and not may_be_none:
        names = ", ".join(topic.topic for topic in known) or "no topics"
        raise UnknownTopicOrPartitionError(
            f"subscribePattern: no topic of {runtime.where} matches {pattern!r}; there are {names}"
        )
    return found


def subscribed_partitions(
    session: Session, options: Options, topics: Mapping[str, TopicMetadata]
) -> list[TopicPartition]:
    """Return the partitions of `topics` to read.

    Raises UnknownTopicOrPartitionError if an assigned one does not exist.
    """
    if (partitions := options[table.ASSIGN]) is not None:
        assigned = [
            TopicPartition(name, number) for name, numbers in partitions.items() if name in topics for number in numbers
        ]
        check_exist(session, assigned)
        return assigned
    return [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]


def read_ranges(
    session: Session, partitions: list[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return where to begin and to end in each partition, on fresh tails; an end of None is the end that the isolation
    level gives. `failOnDataLoss=false` moves both into the log with a message.

    Raises OffsetOutOfRangeError, NoOffsetForPartitionError.
    """
    try:
        return _ranges(session, partitions, options, clamp=False)
    except OffsetOutOfRangeError as error:
        if options[table.FAIL_ON_DATA_LOSS]:
            raise
        log(_LOG, logging.WARNING, "data_loss", "failOnDataLoss=false, reading the rows that remain. %s", error)
        return _ranges(session, partitions, options, clamp=True)


def _ranges(
    session: Session, partitions: list[TopicPartition], options: ReadOptions, *, clamp: bool
) -> dict[TopicPartition, tuple[int, int | None]]:
    start = _starts(session, partitions, options, clamp=clamp)
    if options[table.ENDING_OFFSETS].kind == "latest":
        # No second look at the tails: the plan ends at the end of the views that resolved the start.
        return {tp: (start[tp], None) for tp in partitions}
    end = resolve(
        session, partitions, options[table.ENDING_OFFSETS], options.isolation_level, missing="latest", clamp=clamp
    )
    return {tp: (start[tp], end[tp]) for tp in partitions}


def _starts(
    session: Session, partitions: list[TopicPartition], options: ReadOptions, *, clamp: bool
) -> dict[TopicPartition, int]:
    """Return where the read begins in each partition, on fresh tails; `clamp` moves it into the log.

    Raises OffsetOutOfRangeError, and NoOffsetForPartitionError with the option that helps.
    """
    start = options[table.STARTING_OFFSETS]
    try:
        return resolve(
            session,
            partitions,
            start,
            options.isolation_level,
            group=options.group_id,
            missing=options.missing_start,
            clamp=clamp,
        )
    except NoOffsetForPartitionError as error:
        option = "auto.offset.reset" if start.kind == "committed" else "startingOffsetsByTimestampStrategy"
        raise NoOffsetForPartitionError(f"{error}; the option '{option}' does") from error
