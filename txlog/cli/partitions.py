"""Which partitions shall a job go through?"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.cli.offsets import parse_partitions
from txlog.cli.options import Session
from txlog.core.names import TopicPartition
from txlog.errors import UnknownTopicOrPartitionError


def choose_partitions(session: Session, topics: Sequence[str], partitions: str | None) -> list[TopicPartition]:
    """The partitions of `topics` (empty: of all topics of users) whose numbers `partitions` names, or all.

    Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic or a text that names no numbers.
    """
    numbers = None if partitions is None else parse_partitions(partitions, "--partitions")
    store = session.store
    found = [store.topic(name) for name in topics] if topics else list(store.topics())
    chosen = [
        TopicPartition(each.name, number)
        for each in found
        for number in range(each.partitions)
        if numbers is None or number in numbers
    ]
    for each in found if numbers is not None else ():
        if missing := [number for number in sorted(numbers or ()) if number >= each.partitions]:
            raise UnknownTopicOrPartitionError(
                f"topic {each.name!r} has no partition {missing[0]}: it has {each.partitions}, numbered 0 to {each.partitions - 1}"
            )
    return chosen
