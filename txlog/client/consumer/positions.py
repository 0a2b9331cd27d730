"""Where does a consumer begin in a partition, and where does it go on if a position is out of range?"""

from __future__ import annotations

from txlog.client import offsets as lookup
from txlog.client.consumer.fetcher import Fetcher, FollowedTopics
from txlog.client.removed import removed_offsets
from txlog.client.session.session import Session
from txlog.config import ConsumerConfig
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue
from txlog.errors import NoOffsetForPartitionError, OffsetOutOfRangeError


def find_positions(
    session: Session,
    fetcher: Fetcher,
    followed: FollowedTopics,
    config: ConsumerConfig,
    known: dict[TopicPartition, int],
    *,
    wait: bool,
) -> None:
    """Begin at the group's committed offsets, which `known` gets, or else where `auto.offset.reset` says.

    `wait` is as in `committed_offsets`. Raises NoOffsetForPartitionError.
    """
    committed: dict[TopicPartition, OffsetValue | None] = {}
    if config.group_id is not None:
        committed = lookup.committed_offsets(session, config.group_id, fetcher.lost, wait=wait)
    for tp, value in committed.items():
        if value is not None:
            fetcher.seek({tp: value.offset}, looked=True)
            known[tp] = value.offset
    added = [tp for tp in fetcher.lost if tp in followed.added]
    rest = [tp for tp in fetcher.lost if tp not in followed.added]
    policy, isolation = config.auto_offset_reset, config.isolation_level
    if rest and policy == "none":
        raise NoOffsetForPartitionError(
            f"{session.who}: no committed offset for {', '.join(map(str, rest))}, and auto.offset.reset is none; "
            "seek, commit an offset, or set auto.offset.reset to earliest or latest"
        )
    # All rows of an added partition are newer than the subscription.
    starts = lookup.edges(session, added, "earliest", isolation)
    fetcher.seek({**starts, **lookup.edges(session, rest, policy, isolation)}, looked=True)
    followed.added.clear()


def reset_positions(session: Session, fetcher: Fetcher, config: ConsumerConfig, error: OffsetOutOfRangeError) -> bool:
    """Apply `auto.offset.reset` to positions outside of the log that have lost rows. Raise `error` if it is "none".

    A position that has lost none moves to the log start, whatever the policy. So does one of a topic that was created
    again, unless the policy is "none": all its rows are newer than the position. Returns False if a new look shows that
    all positions are in range.
    """
    policy = config.auto_offset_reset
    fetcher.look()
    outside = fetcher.out_of_range()
    begins, lost = {}, []
    for tp in outside:
        removed = removed_offsets(session, session.views[tp], fetcher.positions[tp], config.isolation_level)
        is_below = fetcher.positions[tp] < removed.log_start
        if is_below and (not removed.offsets or (removed.by_deletion and policy != "none")):
            begins[tp] = removed.log_start
        else:
            lost.append(tp)
    if lost and policy == "none":
        raise error
    fetcher.seek({**begins, **lookup.edges(session, lost, policy, config.isolation_level)}, looked=True)
    return bool(outside)
