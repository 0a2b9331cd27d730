"""How are topics published, with what a maintenance job must do first?

Files that another format would misread are rewritten by a merge. Everything else is in `txlog.publication.publish`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TypeAlias

from txlog.client.session.session import Session
from txlog.core.cleaning import MergePolicy
from txlog.core.effects import Program
from txlog.core.records import CommitRecord, TopicMetadata
from txlog.errors import StoreChangedError, TxlogError
from txlog.maintenance.merge import merge_partitions
from txlog.maintenance.partition_loop import gather
from txlog.maintenance.workers import Workers
from txlog.protocol.context import Context, Views
from txlog.protocol.expiry import end_tails
from txlog.publication.cache import PublicationCache
from txlog.publication.outcome import Published
from txlog.publication.publish import publish_topic
from txlog.text import shorten

Outcome: TypeAlias = tuple[str, Published | TxlogError]
"""A topic, and what was published of it, or the error."""


def publish_topics(
    session: Session,
    topics: Iterable[TopicMetadata],
    workers: Workers | None = None,
    cache: PublicationCache | None = None,
) -> Iterator[Outcome]:
    """Bring the tables of each topic up to date. An error of one topic does not stop the others.

    An error of another kind is the cause of a TxlogError. `cache` is as in `publish_topic`. Raises StoreChangedError.
    """
    cache = PublicationCache() if cache is None else cache
    for topic in topics:
        held = set(session.views)
        try:
            made = publish_topic(session, topic, cache)
            if made.must_rewrite:
                _rewrite(session, made, workers)
                made = publish_topic(session, topic, cache, copies=True)
            outcome: Published | TxlogError = made
        except StoreChangedError:
            raise
        except TxlogError as error:
            outcome = error
        except Exception as error:
            # A library of a format may fail in its own way, and the other topics have other columns and formats.
            outcome = _unexpected(topic.topic, error)
        finally:
            # A job that has views of the topic needs them later, too. The others are in `cache` as far as they are
            # small.
            session.forget([tp for tp in session.views if tp.topic == topic.topic and tp not in held])
        yield topic.topic, outcome


def _unexpected(topic: str, error: Exception) -> TxlogError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    made = TxlogError(
        f"topic {topic!r} could not be published, because of {type(error).__name__}: {shorten(str(error), 120)} "
        f"({PurePath(where.filename).name}, line {where.lineno}). "
        "hint: report this line as a bug; the other topics are published"
    )
    made.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made


def _rewrite(session: Session, made: Published, workers: Workers | None) -> None:
    """Merge the segments of the files that other formats would misread, each by itself."""
    paths = frozenset(each.path for each in made.must_rewrite)
    partitions = sorted({each.topic_partition for each in made.must_rewrite})

    def is_due(record: CommitRecord) -> bool:
        return any(file.path in paths for file in record.files)

    def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
        return (yield from end_tails(ctx, views, partitions, is_due)), None

    session.fresh_views(partitions, "looking at a topic")
    session.call("sealing", program)
    session.forget(partitions)
    policy = MergePolicy(max_inputs=1, rewrite=paths)
    _, failed = gather(merge_partitions(session, partitions, policy, workers=workers))
    if failed:
        raise failed[0]
