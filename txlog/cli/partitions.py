"""Which partitions does a job work on?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, InvalidTopicError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from txlog.client.store import Store

_SPELLED = re.compile(r"(?P<topic>[^/:]+)(?P<mark>[/:-])(?P<numbers>\d{1,9}(,\d{1,9})*)/?", re.ASCII)


def split_topics(store: Store, named: Sequence[str], partitions: str | None) -> dict[str, tuple[int, ...] | None]:
    """Return the named topics, each with the numbers of its chosen partitions, or None for all partitions.

    The numbers come from `partitions`, or from a name such as `orders/0`, `orders:0,1` or `orders-0` (unless a topic
    has that name). Raises InvalidRequestError if both give numbers, or a text has none; UnknownTopicOrPartitionError.
    """
    numbers = None if partitions is None else parse_partitions(partitions, "--partitions")
    found: dict[str, tuple[int, ...] | None] = {}
    for name in named:
        spelled = _SPELLED.fullmatch(name)
        if spelled is None or (
            spelled["mark"] == "-" and (_is_topic(store, name) or not _is_topic(store, spelled["topic"]))
        ):
            found[name] = numbers
            continue
        if numbers is not None:
            raise InvalidRequestError(
                f"{name!r} names partitions, and so does --partitions {partitions}; name them once, as in "
                f"{spelled['topic']} --partitions {spelled['numbers']}"
            )
        topic = spelled["topic"]
        earlier = found.get(topic, ())
        more = parse_partitions(spelled["numbers"], name)
        found[topic] = None if earlier is None else (*earlier, *more)
    for name, wanted in found.items():
        for number in wanted or ():
            store.runtime.partition(name, number)
    return found


def _is_topic(store: Store, name: str) -> bool:
    try:
        store.topic(name)
    except (UnknownTopicOrPartitionError, InvalidTopicError):
        return False
    return True


def choose_partitions(store: Store, topics: Sequence[str], partitions: str | None = None) -> list[TopicPartition]:
    """Return the partitions of `topics` that `split_topics` chooses; with no topics, those of all users' topics.

    Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic or a text without numbers.
    """
    wanted = split_topics(store, topics or [each.name for each in store.topics()], partitions)
    return [
        TopicPartition(name, number)
        for name, numbers in wanted.items()
        for number in range(store.topic(name).partitions)
        if numbers is None or number in numbers
    ]


def parse_partitions(text: str, option: str) -> tuple[int, ...]:
    """Parse numbers with commas between them. Raises InvalidRequestError with the name of the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InvalidRequestError(f"{option} {text!r}: expected numbers of partitions, as in 0,1")
    return tuple(int(part) for part in parts)
