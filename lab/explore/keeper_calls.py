"""What do maintenance and readers call in a script?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lab.explore.client import Call, Client, Word, finishing, patiently
from txlog.config import IsolationLevel
from txlog.core.effects import Get, Now, Program, ReadClocks
from txlog.core.fetch_plan import InlinePiece, Piece, RowRange
from txlog.core.names import TopicPartition
from txlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    MissingObjectError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RetriableError,
    StoreChangedError,
)
from txlog.protocol import expiry, transactions
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Context
from txlog.protocol.load import load, refresh
from txlog.protocol.read import ReadPlan, plan_read
from txlog.protocol.seal import seal
from txlog.protocol.snapshot import take_snapshot


def sweep() -> Call:
    """Run the timeout sweep: roll PREPARE_* forward, abort overdue transactions, remove idle ids."""

    def call(client: Client) -> Program[Client]:
        try:
            views, _ = yield from expiry.expire(client.ctx, client.views)
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("done")

    return call


def roll_forward() -> Call:
    """Finish the PREPARE_* that the client found long ago."""

    def call(client: Client) -> Program[Client]:
        assert client.prepare is not None
        prepare = client.prepare
        return (yield from finishing(client, lambda: transactions.roll_forward(client.ctx, client.views, prepare)))

    return call


def operator_abort(transactional_id: str) -> Call:
    """Run `txlog transactions abort`."""

    def call(client: Client) -> Program[Client]:
        views, _ = yield from transactions.abort_transaction(client.ctx, client.views, transactional_id)
        return replace(client, views=views).noted("done")

    return call


def expire_producers(tp: TopicPartition) -> Call:
    """End the state of idle producers."""

    def call(client: Client) -> Program[Client]:
        try:
            views, _ = yield from expiry.expire_producers(client.ctx, client.views, tp)
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("done")

    return call


def log_start(tp: TopicPartition, offset: int | None, *, deleted_version: int = 0) -> Call:
    """Let retention move the log start; with a version: the topic was deleted."""

    def call(client: Client) -> Program[Client]:
        try:
            views, _ = yield from patiently(
                client, lambda: append_log_start(client.ctx, client.views, tp, offset, deleted_version)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("done")

    return call


def seal_all(*tps: TopicPartition) -> Call:
    """Seal all finished segments."""

    def call(client: Client) -> Program[Client]:
        for tp in tps:
            view = yield from load(client.ctx, tp)
            yield from seal(client.ctx, view)
        return client.noted("done")

    return call


def read(tp: TopicPartition, isolation: IsolationLevel = "read_committed") -> Call:
    """Poll once: the tail by name, then a plan from the end of the last poll, then its rows."""

    def call(client: Client) -> Program[Client]:
        held = client.views.get(tp)
        before = next((note.end for note in reversed(client.notes) if note.kind == "read" and note.tp == tp), 0)
        began_ms = yield Now()
        try:
            view = (yield from load(client.ctx, tp)) if held is None else (yield from refresh(client.ctx, held))
            for attempt in range(client.ctx.max_loads):
                view, plan = yield from plan_read(client.ctx, view, before, None, isolation)
                try:
                    rows = yield from rows_of(plan)
                    break
                except MissingObjectError:  # merged and deleted meanwhile: list again, and continue at the same offset
                    now_ms = yield Now()
                    if held is None and now_ms - began_ms < client.ctx.constants.delete_grace_ms:
                        raise  # the objects of a plan stay for the grace
                    if attempt == client.ctx.max_loads - 1:
                        raise
                    view = yield from load(client.ctx, tp)
        except StoreChangedError as error:
            return client.noted("failed", text=str(error), stop=True)
        except OffsetOutOfRangeError:  # retention was faster: continue at the log start
            return replace(client, views={}).noted("done")
        except CorruptRecordError as error:
            return client.noted("corrupt", text=str(error), stop=True)
        after = replace(client, views={**client.views, tp: view})
        return after.noted("read", tp=tp, offset=before, end=plan.end, rows=rows, text=isolation)

    return call


def look(*tps: TopicPartition, anew: bool = False) -> Call:
    """Take a snapshot of these partitions, and read its rows.

    `anew`: whether the views are loaded later, as in another process that received the cut.
    """

    def call(client: Client) -> Program[Client]:
        views, cut = yield from take_snapshot(client.ctx, client.views, tps)
        words: list[Word] = []
        try:
            for tp in tps:
                view = (yield from load(client.ctx, tp)) if anew else views[tp]
                view, plan = yield from plan_read(client.ctx, view, 0, None, "read_committed", cut=cut)
                views = {**views, tp: view}
                words += [(tp, word) for _, word in (yield from rows_of(plan))]
            now = yield ReadClocks()
            cut.check_age(now, client.ctx.constants.delete_grace_ms)
        except InvalidRequestError:
            return replace(client, views=views).noted("too old")
        return replace(client, views=views).noted("looked", words=tuple(words), ends=tuple(cut.ends.items()))

    return call


def rows_of(plan: ReadPlan) -> Program[tuple[tuple[int, str], ...]]:
    """Return the rows of a plan."""
    return (yield from rows_of_pieces(plan.pieces, plan.start, plan.end))


def rows_of_pieces(pieces: Iterable[Piece], start: int, end: int) -> Program[tuple[tuple[int, str], ...]]:
    """Return the rows of `[start, end)` in those pieces; files are read as in the real reader, with one request each.

    Raises MissingObjectError if a file no longer exists; the reader then lists again.
    """
    rows: list[tuple[int, str]] = []
    for piece in pieces:
        if isinstance(piece, InlinePiece):
            stored: list[list[Any]] = [[None, word] for word in json.loads(piece.payload)]
            ranges: tuple[RowRange, ...] = (piece.range,)
        else:
            data = yield Get(f"{piece.topic_partition.topic}/{piece.file.path}")
            if data is None:
                raise MissingObjectError(f"{piece.file.path} is gone")
            stored, ranges = json.loads(data), piece.ranges
        for each in ranges:
            for row in range(each.rows):
                offset, word = stored[each.first_row + row]
                at = offset if each.by_column else each.base_offset + row
                if start <= at < end:
                    rows.append((at, word))
    return tuple(rows)


def read_all(
    ctx: Context, tp: TopicPartition, isolation: Any, end: int | None = None
) -> Program[tuple[tuple[int, str], ...]]:
    """Open a partition again, and return the rows from its log start on."""
    view = yield from load(ctx, tp)
    _, plan = yield from plan_read(ctx, view, view.state.log_start_offset, end, isolation)
    return (yield from rows_of(plan))
