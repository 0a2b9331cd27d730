"""What do the programs of a simulated world share? Partitions, names, habits, and what a process is given."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lab.simulate.client import Client
from lab.simulate.cluster import Cluster
from lab.simulate.sharers import Readers
from txlog.core.names import TopicPartition

ACCOUNTS = (TopicPartition("accounts", 0), TopicPartition("accounts", 1))


LEDGER = TopicPartition("ledger", 0)


EVENTS = TopicPartition("events", 0)


USERS = TopicPartition("users", 0)
"""With `cleanup.policy=compact,delete`: a row's content is its key and =, without more text if it deletes the key."""


DRAFTS = TopicPartition("drafts", 0)
"""The only topic with metadata. It is deleted and created again; a world without remakers does not have it."""


PARTITIONS = (*ACCOUNTS, LEDGER, EVENTS, USERS, DRAFTS)


BANKS = ("bank-0", "bank-1")


PIPELINES = ("pipeline-0", "pipeline-1")


GROUP = "pipelines"


WATCHERS = "watchers"


class GaveUpError(Exception):
    """A process that cannot continue ends, as one that its operator restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The habits of one seed's world (swarm testing: a rare event of one world is common in another)."""

    timeout_ms: tuple[int, ...]
    rivals: bool
    """Whether several transactional.ids work for one group: then offsets have conditions."""
    by_generation: bool
    aborts: float
    staged: float
    most: int
    """The maximum number of offsets of a poll."""
    drafts: float
    """The share of rows for the topic that is deleted and created again."""


@dataclass(slots=True)
class Life:
    """The arguments of an actor."""

    client: Client
    choose: random.Random
    habits: Habits
    cluster: Cluster
    readers: Readers
