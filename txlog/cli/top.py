"""`txlog top`: what happens in a store now? Rates, lag, open transactions, and who holds readers back for longest.

Rates are offsets for each second between two looks. So markers count, too, and a transaction that is staged counts when
it commits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from txlog.cli.documents import TopDocument, TopGroup, TopHold, TopPartition, document_of
from txlog.cli.errors import raise_first
from txlog.cli.groups import total_lag
from txlog.cli.interrupts import Interrupts
from txlog.cli.options import Session, Topics, option
from txlog.cli.output import Cell, Output, encode_line, rich_table, write
from txlog.core.names import TopicPartition
from txlog.core.transactions import IDLE
from txlog.errors import RetriableError, TxlogError
from txlog.text import count_text, duration_text, time_text

if TYPE_CHECKING:
    from txlog.client.admin.descriptions import OffsetInfo
    from txlog.inspection.look import StoreMonitor, StoreState

_INTERVAL_MS = 2000
_SHOWN = 15
"""How many rows of each table fit on a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """What rates are computed from: two looks compare them."""

    monotonic_ms: int
    offsets: Mapping[TopicPartition | str, int]
    """The log end of each partition, and the sum of each group's committed offsets."""


def top(
    session: Session,
    names: Topics,
    once: Annotated[bool, option("--once", "Look twice, show what happened in between, and end.")] = False,
    interval_ms: Annotated[int, option("--interval-ms MS", "The pause between two looks.", min=1)] = _INTERVAL_MS,
) -> None:
    """Show the rates of topics, the lag of groups, and open transactions, until Ctrl-C.

    `waiting` counts offsets that readers of committed rows cannot see yet, because a transaction is open. The oldest
    hold is the oldest transaction that holds a last stable offset back. This command only reads.
    """
    for name in names:
        session.store.topic(name)
    # A local import, because `--help` does not need it.
    from txlog.inspection.look import StoreMonitor

    session.store.runtime.require_store()
    monitor = StoreMonitor(session.store.runtime, "top")
    clock = session.store.runtime.clock
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        screen = None if once or session.out.is_json or not sys.stdout.isatty() else stack.enter_context(_screen())
        before: _Counts | None = None
        while True:
            try:
                document, now, damaged = _look(monitor, names, before)
                if before is not None or screen is not None:
                    _show(session.out, document, screen, once=once)
                if once and before is not None:
                    raise_first(damaged)
                    return
                before = now
            except RetriableError as error:
                if once:
                    raise
                session.out.note(f"{time_text(clock.now_ms())}  {error}; the next look tries again")
            interrupts.sleep(clock, interval_ms)
            if interrupts.received is not None:
                break
    if once:
        interrupts.check()


def _look(
    monitor: StoreMonitor, names: list[str], before: _Counts | None = None
) -> tuple[TopDocument, _Counts, list[TxlogError]]:
    """Look at the store. Return what it shows since the look `before`, what the next look compares, and errors."""
    # A local import, because `--help` does not need it.
    from txlog.client.admin.descriptions import OffsetInfo

    monotonic_ms = monitor.runtime.clock.monotonic_ms()
    seen = monitor.look(names)
    ends = {tp: OffsetInfo.of(view, None, None) for tp, view in seen.views.items() if not names or tp.topic in names}
    groups = seen.group_infos(names)
    offsets: dict[TopicPartition | str, int] = {tp: info.log_end_offset for tp, info in ends.items()}
    offsets |= {group.group: sum(each.committed or 0 for each in group.offsets) for group in groups}
    elapsed_ms = None if before is None else max(monotonic_ms - before.monotonic_ms, 1)

    def rate(of: TopicPartition | str) -> float | None:
        if before is None or elapsed_ms is None or of not in before.offsets:
            return None
        return round(max(offsets[of] - before.offsets[of], 0) * 1000 / elapsed_ms, 1)

    holds = _holds(seen, ends)
    document = TopDocument(
        store=monitor.runtime.where,
        at=seen.at_ms,
        interval_ms=elapsed_ms,
        partitions=tuple(
            document_of(TopPartition, info, waiting=info.log_end_offset - info.last_stable_offset, rate=rate(tp))
            for tp, info in sorted(ends.items())
        ),
        groups=tuple(document_of(TopGroup, each, lag=total_lag(each), rate=rate(each.group)) for each in groups),
        open_transactions=holds,
        oldest_hold=next((hold for hold in holds if hold.holds_lso), None),
        damaged=tuple(str(error) for _, error in seen.damaged),
    )
    return document, _Counts(monotonic_ms=monotonic_ms, offsets=offsets), [error for _, error in seen.damaged]


def _holds(seen: StoreState, ends: Mapping[TopicPartition, OffsetInfo]) -> tuple[TopHold, ...]:
    """Return the open transactions in these partitions, the oldest first."""
    from txlog.client.admin.descriptions import HangingTransaction

    by_producer = {row.value.producer_id: row.value for row in seen.transactions}
    holds = []
    for tp, info in ends.items():
        for entry in seen.views[tp].state.open_transactions:
            txn = by_producer.get(entry.producer_id)
            each = HangingTransaction.of(tp, entry, txn, seen.at_ms)
            holds.append(
                document_of(
                    TopHold,
                    each,
                    waiting=max(info.log_end_offset - each.first_offset, 0),
                    holds_lso=each.first_offset <= info.last_stable_offset,
                    open_ms=max(each.open_ms, -1 if txn is None or txn.state in IDLE else seen.at_ms - txn.started_at),
                    quiet_ms=each.open_ms,
                )
            )
    return tuple(sorted(holds, key=lambda hold: -hold.open_ms))


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(out: Output, document: TopDocument, screen: Any, *, once: bool) -> None:
    if screen is not None:
        screen.update(_renderable(document), refresh=True)
    elif out.is_json:
        if once:
            out.show(document, lambda _: None)
        else:
            write(encode_line(document))
    else:
        out.fields(_fields(document))
        for title, rows in _tables(document).items():
            out.heading(title)
            out.records(rows)
        out.line()
    out.flush()


@contextlib.contextmanager
def _screen() -> Iterator[Any]:
    """Yield rich's live display on the whole terminal. At the end the terminal is as it was."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=sys.stdout), screen=True, auto_refresh=False) as live:
        yield live


def _renderable(document: TopDocument) -> Any:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(f"{name:<12}  {value}") for name, value in _fields(document)]
    for title, rows in _tables(document, _SHOWN).items():
        parts += [Text(f"\n{title}", style="bold"), rich_table(list(rows[0]), [list(row.values()) for row in rows])]
    return Group(*parts)


def _fields(document: TopDocument) -> list[tuple[str, str]]:
    rates = [each.rate for each in document.partitions if each.rate is not None]
    hold = document.oldest_hold
    held = "-"
    if hold is not None:
        where = f"{hold.topic}-{hold.partition}: {count_text(hold.waiting, 'offset')} from {hold.first_offset} on"
        whose = f"{hold.transactional_id or hold.producer_id}, open for {duration_text(hold.open_ms)}; {hold.advice}"
        held = f"{where}, behind {whose}"
    return [
        ("store", document.store),
        ("at", time_text(document.at)),
        ("offsets/s", f"{sum(rates):,.1f}" if rates else "-"),
        ("oldest hold", held),
        *(("damaged", each) for each in document.damaged),
    ]


def _tables(document: TopDocument, limit: int | None = None) -> dict[str, list[dict[str, Cell]]]:
    """Return the tables that have rows, each with at most `limit` of them: those that move or wait most."""
    topics: dict[str, list[TopPartition]] = {}
    for each in document.partitions:
        topics.setdefault(each.topic, []).append(each)
    busy = sorted(topics.items(), key=lambda item: (-_total(item[1]), item[0]))
    lagging = sorted(document.groups, key=lambda group: (group.lag is not None, -(group.lag or 0), group.group))
    tables: dict[str, list[dict[str, Cell]]] = {
        "Topics": [
            {
                "topic": name,
                "partitions": len(parts),
                "offsets/s": _rate_text(_total(parts) if parts[0].rate is not None else None),
                "log end": sum(part.log_end_offset for part in parts),
                "waiting": sum(part.waiting for part in parts),
            }
            for name, parts in busy[:limit]
        ],
        "Groups": [
            {"group": each.group, "state": each.state, "lag": each.lag, "offsets/s": _rate_text(each.rate)}
            for each in lagging[:limit]
        ],
        "Open transactions": [
            {
                "transactional id": hold.transactional_id,
                "topic": hold.topic,
                "partition": hold.partition,
                "since offset": hold.first_offset,
                "waiting": hold.waiting,
                "open for": duration_text(hold.open_ms),
                "quiet for": duration_text(hold.quiet_ms),
                "advice": hold.advice,
            }
            for hold in document.open_transactions[:limit]
        ],
    }
    return {title: rows for title, rows in tables.items() if rows}


def _total(partitions: Sequence[TopPartition]) -> float:
    return sum(each.rate or 0 for each in partitions)


def _rate_text(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}"
