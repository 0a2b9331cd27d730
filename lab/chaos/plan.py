"""Which facts do the processes of a storm share?

The store's location, its topics, the roles, and the numbers of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

Role: TypeAlias = Literal[
    "eager", "staged", "deferred", "plain", "job", "pipeline",
    "member", "reader", "peeker", "witness", "spark", "maintain", "write", "erase",
]  # fmt: skip

ORDERS, AUDIT, JOBS, MADE = "orders", "audit", "jobs", "made"
PARTITIONS: Mapping[str, int] = {ORDERS: 3, AUDIT: 2, JOBS: 2, MADE: 2}
"""Producers write orders and audit, batch jobs write jobs, and a pipeline writes made from orders."""
SCHEMA: pa.Schema = pa.schema(
    (pa.field("id", pa.int64(), nullable=False), pa.field("content", pa.string()), pa.field("pad", pa.string()))
)
TOPIC_CONFIG: Mapping[str, object] = {"segment.batches": 50, "inline.max.bytes": 4096}
"""The values are small, so that a storm of two minutes seals hundreds of segments, and writes files and inline rows."""
LARGE_PAD_BYTES = 8000

PIPELINE_GROUP = "made"
"""The group of one pipeline over orders, whose instances fence each other by their transactional.id."""
SHARED_GROUP = "shared"
"""The group of several pipelines over orders and audit, which share the partitions."""
INPUTS: Mapping[str, tuple[str, ...]] = {PIPELINE_GROUP: (ORDERS,), SHARED_GROUP: (ORDERS, AUDIT)}
"""The topics that a group makes rows from."""
SHARED_CONFIG: Mapping[str, object] = {
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 500,
    "max.poll.interval.ms": 10_000,
}
"""Most stops are shorter than a session, and a tenth of them is longer."""
STATIC = frozenset({"member-c", "member-d"})
"""Members with a `group.instance.id`. A second instance replaces the first. One of another member is added to the
group."""
TRANSACTION_TIMEOUT_MS = 6000
"""How long a dead producer's transaction may hold readers back before others end it."""
RECOVERY_MS = 180_000
"""How long the recovery after a storm may take, on a busy machine too. Groups whose members are dead must not block
it."""
INSTANCE_BITS = 40
"""A row's id is its writer's instance and a count: unique in the whole history."""
JOB_ROWS = 12

FENCED = 3
"""Exit status: a newer instance took over, as planned."""
FAILED = 4
"""Exit status: a call failed unexpectedly; the error is on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the store is, and the folder in which each process leaves its history."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    histories: str
    clock_skew_ms: int = 0
    """Errors of the maintainers' clocks: one is ahead, the other one behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The task of one process. `name` is its transactional.id or its group; instances of one name follow each other."""

    place: Place
    role: Role
    name: str
    instance: int
    seed: int

    @property
    def source(self) -> str:
        """The name of exactly this process in the history."""
        return f"{self.name}-{self.instance}"


SLOTS: tuple[tuple[Role, str], ...] = (
    ("eager", "eager-a"),
    ("eager", "eager-b"),
    ("staged", "staged-a"),
    ("deferred", "deferred-a"),
    ("plain", "plain"),
    ("job", "job"),
    ("pipeline", "pipeline"),
    ("member", "member-a"),
    ("member", "member-b"),
    ("member", "member-c"),
    ("member", "member-d"),
    ("reader", "reader"),
    ("peeker", "peeker"),
)
"""Roles that may be killed. The witness is never killed, and Spark has a schedule of its own."""
MAINTAINERS: tuple[tuple[Role, str], ...] = (("maintain", "maintain-a"), ("maintain", "maintain-b"))
"""Further roles of a storm with maintenance; they are killed and stopped like the others."""
ERASERS: tuple[tuple[Role, str], ...] = (("write", "write-a"), ("write", "write-b"), ("erase", "erase"))
"""... and those of its topic in which rows are erased."""
AHEAD = MAINTAINERS[0][1]
"""The maintainer whose clock is ahead, if clocks are wrong; the other one's is behind."""
MAINTAINED_CONFIG: Mapping[str, object] = {
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
}
"""The store's settings in a storm with maintenance, beside its grace.

With a grace of a day, vacuum would wait until the end of the storm. Stops last up to two thirds of 20 s.
"""
MAINTAINED_TOPIC_CONFIG: Mapping[str, object] = {**TOPIC_CONFIG, "segment.batches": 10}
PUBLISHED = (ORDERS, MADE)
"""Topics that are published in a storm with engines."""
PUBLISH_RETENTION_MS = 60_000
"""Longer than the default grace, so that it decides, and short enough that vacuum deletes published files in a
storm."""
OLD_READ_MS = 50_000
"""Engines also read the oldest version that was replaced no longer ago than this."""
PUBLISH_LAG_MS = 1000
PUBLISHED_CONFIG: Mapping[str, object] = {
    "publish.formats": "delta,iceberg",
    "publish.max.lag.ms": PUBLISH_LAG_MS,
    "publish.retention.ms": PUBLISH_RETENTION_MS,
}
MAINTAINED_SUFFIX = ".maintained"
"""The suffix after a maintainer's name: the file of its rounds."""
MAINTAIN_OPTIONS = (
    "--daemon", "--interval-ms", "300", "--jitter-ms", "600", "--merge-min-segments", "3", "--target-bytes", "200000",
    "--vacuum-interval-ms", "3000",
)  # fmt: skip
HAS_ID: frozenset[Role] = frozenset({"eager", "staged", "deferred", "job", "pipeline", "member", "reader"})
"""Roles of which two instances compete for a transactional.id or a group, or for partitions of it."""
COMMITS: frozenset[Role] = frozenset({"eager", "staged", "deferred", "job", "pipeline"})
"""Roles that end transactions, and of which each name must do so in every storm. Spark's job does, too, but its start
alone may take the whole time of a short storm."""


def job_content(name: str, version: int) -> str:
    """Return the content of each row of a job's version. It is the same for all instances and attempts."""
    return f"job:{name}:{version}"
