"""Which partitions shall a job go through?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlog.cli.offsets import parse_partitions
from txlog.core.names import TopicPartition
from txlog.errors import UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from txlog.client.store import Store


def choose_partitions(store: Store, topics: Sequence[str], partitions: str | None = None) -> list[TopicPartition]:
    """The partitions of `topics` (empty: of all topics of users) whose numbers `partitions` names, or all.

    Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic or a text that names no numbers.
    """
    numbers = None if partitions is None else parse_partitions(partitions, "--partitions")
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
