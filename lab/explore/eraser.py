"""How does an erasure run, one request after another? The shipped programs; only looking at rows and copying are the kit's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lab.explore.cleaner import rows_of, written
from lab.explore.client import Call, Client
from lab.explore.keeper_calls import rows_of_pieces
from txlog.core.cleaning import Kept
from txlog.core.effects import NewId, Program
from txlog.core.fetch_plan import plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import Erasure, TopicMetadata
from txlog.errors import MissingObjectError, OutcomeUnknownError, RetriableError
from txlog.protocol import erase as programs
from txlog.protocol.clean import Merge, publish
from txlog.protocol.context import Context, Views
from txlog.protocol.load import get_fresh_view

MARK = "!"


def is_erased(word: str) -> bool:
    """Return whether the erasures of the scenarios take this row."""
    return MARK in word


def erase(tp: TopicPartition, *, begins: bool = True) -> Call:
    """Run `txlog erase` of a topic with one partition: begin, and finish all that have begun.

    Without `begins` it is the step of `txlog maintain`, and the scenario's past has begun one.
    """

    def call(client: Client) -> Program[Client]:
        topic = TopicMetadata(
            number=0, topic=tp.topic, topic_id="0" * 32, partitions=1, schema=(), schema_id=0, created_at=0,
            write_id="0" * 32,
        )  # fmt: skip
        views = client.views
        begun: dict[str, Erasure] = {}
        try:
            if begins:
                views, own = yield from programs.begin(client.ctx, views, topic, MARK, (yield NewId()))
                begun[own.erasure_id] = own
            begun |= {each.erasure_id: each for each in (yield from programs.list_erasures())}
            for each in begun.values():
                views, is_done = yield from finish(client.ctx, views, each)
                if not is_done:
                    return replace(client, views=views).noted("waits")
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("erased", tp=tp)

    return call


def finish_all(ctx: Context, views: Views) -> Program[Views]:
    """Finish all erasures, when no transaction is open."""
    for each in (yield from programs.list_erasures()):
        views, is_done = yield from finish(ctx, views, each)
        assert is_done, "an erasure does not end"
    return views


def finish(ctx: Context, views: Views, erasure: Erasure) -> Program[tuple[Views, bool]]:
    """Finish an erasure. Return whether all of it is done: an open transaction may hold some rows."""
    views, _ = yield from programs.seal_up_to(ctx, views, erasure)
    is_done = True
    for tp, end in programs.ends_of(erasure).items():
        # Before the plan: what becomes stable later is not in it.
        views, view = yield from get_fresh_view(ctx, views, tp)
        is_done = is_done and view.state.last_stable_offset >= programs.reach_of(view, end)
        searched: set[SegmentName] = set()
        again = True
        while again:
            views, found = yield from programs.plan_erasure(ctx, views, tp, end, lambda _: True, searched)
            again = False
            for merge in found:
                took = yield from _erase(ctx, merge, end)
                again = again or took is False
                if took is not False:
                    searched.update(merge.inputs if took is None else (*merge.inputs, took))
    if is_done:
        views, _ = yield from programs.seal_decisions(ctx, views, erasure)
        views, _ = yield from programs.end(ctx, views, erasure)
    return views, is_done


def _erase(ctx: Context, merge: Merge, end: int) -> Any:
    """Copy the segments without such rows. Return the name of the run, None without such rows, False if it came too
    late."""
    tp = merge.topic_partition
    due = []
    for read in merge.indexes:
        index = read.index
        pieces = plan_fetch(tp=tp, indexes=[index], tail=(), aborted=(), start=index.base_offset, end=index.end_offset)
        there = yield from rows_of_pieces(pieces, index.base_offset, index.end_offset)
        due += [at for at, word in there if is_erased(word) and at < end]
    if not due:
        return None
    rows = yield from rows_of(merge)
    left = tuple((at, word) for at, word in rows if not (is_erased(word) and at < end))
    file = yield from written(merge, left)
    entries = [entry for read in merge.indexes for entry in read.index.entries]
    bases = np.array([entry.base_offset for entry in entries], dtype=np.int64)
    at = np.searchsorted(bases, np.array([offset for offset, _ in left], dtype=np.int64), "right") - 1
    kept = Kept(
        rows=np.bincount(at, minlength=len(entries)).astype(np.int64),
        timestamps=np.array([entry.timestamp for entry in entries], dtype=np.int64),
    )
    return merge.run.name if (yield from publish(ctx, merge, file, kept)) else False
