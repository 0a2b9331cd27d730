"""Where does a consumer begin in partitions without a position, and in those whose position is outside of the log?"""

from __future__ import annotations

from txlog.client import offsets as lookup
from txlog.client.fetcher import Fetcher, FollowedTopics
from txlog.client.session import Session
from txlog.config import ConsumerConfig
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue
from txlog.errors import OffsetOutOfRangeError


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
            fetcher.seek(tp, value.offset)
            known[tp] = value.offset
    found = lookup.first_positions(
        session, fetcher.lost, followed.added, config.auto_offset_reset, config.isolation_level
    )
    for tp, offset in found.items():
        fetcher.seek(tp, offset)
    followed.added.clear()


def reset_positions(session: Session, fetcher: Fetcher, config: ConsumerConfig, error: OffsetOutOfRangeError) -> bool:
    """Apply `auto.offset.reset` to positions outside of the log. Raise `error` if it is "none".

    Returns False if a new look shows that all positions are in range.
    """
    policy = config.auto_offset_reset
    fetcher.look()
    lost = fetcher.out_of_range()
    if lost and policy == "none":
        raise error
    for tp, offset in lookup.edges(session, lost, policy, config.isolation_level).items():
        fetcher.seek(tp, offset)
    return bool(lost)
