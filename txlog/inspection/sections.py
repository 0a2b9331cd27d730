"""Which drawing and which table show partitions, transactions, groups, files and maintenance?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from txlog.client.admin.descriptions import GroupInfo
from txlog.core.records import CleanupStep
from txlog.drawing.spans import Span
from txlog.drawing.values import KINDS, Box, Cell, Columns, Lanes, Mark, Panel, Section, Table
from txlog.text import bytes_text, count_text, duration_text, range_text, time_text

MAX_LANES = 60
"""Lanes of one drawing; the table has all."""
_COLUMNS = 48
_PLACES = ("sealed", "merged", "compacted", "tail")
_READ, _STORED = (0.38, 0.94), (0.08, 0.32)
"""Bottom and top of the two bands of a partition."""
OVERDUE = "past its time-out"
"""The state of a transaction that is ONGOING and past its time-out."""
_STATES = {
    "ONGOING": "ongoing",
    "PREPARE_COMMIT": "prepare",
    "PREPARE_ABORT": "prepare",
    "COMPLETE_COMMIT": "committed",
    "COMPLETE_ABORT": "aborted",
    OVERDUE: "timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ribbon:
    """One partition."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    fates: Sequence[Span]
    """What readers see: committed, aborted, open, control, unread."""
    places: Sequence[Span]
    """Where the rows are: sealed, merged, compacted, tail."""
    open_transactions: int = 0
    aborted_transactions: int | None = None
    """None: not known."""
    files: int | None = None
    bytes: int | None = None
    rows: int | None = None


@dataclass(slots=True)
class Piece:
    """What one transaction did in one partition."""

    partition: str
    producer_id: int
    producer_epoch: int
    start_ms: int
    end_ms: int
    kind: str
    """committed, aborted, or open."""
    first_offset: int
    last_offset: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction, over partitions."""

    name: str
    state: str
    """A state of Kafka's, or OVERDUE."""
    start_ms: int
    end_ms: int
    pieces: Sequence[Piece]
    partitions: Sequence[str] = ()
    """Partitions that it registered, whether or not rows are there."""

    @property
    def kind(self) -> str:
        return _STATES.get(self.state, "control")


@dataclass(frozen=True, slots=True)
class FilePoint:
    """Some files of one age, of one place; or one batch of the tail, whose rows may be in no file."""

    at_ms: int
    place: str
    bytes: int
    files: int = 1


_Bar: TypeAlias = tuple[str, int, int, Transaction, str]
"""Lane, start, end, transaction, and what it did there."""


def topic_section(topic: str, ribbons: Sequence[Ribbon], note: str = "") -> Section:
    """Return the partitions of a topic as ribbons over offsets."""
    shown = ribbons[:MAX_LANES]
    if len(shown) < len(ribbons):
        note = f"{note} The drawing has the first {MAX_LANES} partitions, the table has all.".strip()
    kinds = {span.kind for each in shown for span in (*each.fates, *each.places)}
    boxes, marks = [], []
    low = min((each.log_start_offset for each in shown), default=0)
    high = max((each.log_end_offset for each in shown), default=0)
    # Offsets below the log start may be a million times as many as those that remain.
    shortest = max(low - max((high - low) // 12, 1), 0)
    for lane, each in enumerate(shown):
        if each.log_start_offset:
            title = f"{range_text(0, each.log_start_offset - 1).capitalize()}: deleted"
            boxes.append(
                _box(lane, min(shortest, each.log_start_offset), each.log_start_offset, "deleted", title, _READ)
            )
            kinds.add("deleted")
        for spans, band in ((each.fates, _READ), (each.places, _STORED)):
            boxes += [_box(lane, span.start, span.end, span.kind, _span_title(span), band) for span in spans]
        marks.append(Mark(lane=lane, at=each.log_end_offset, kind="end", title=f"Log end: {each.log_end_offset}"))
        # The LSO is in front, because without open transactions it is the log end.
        marks.append(Mark(lane=lane, at=each.last_stable_offset, kind="lso", title=f"LSO: {each.last_stable_offset}"))
    kinds |= {"lso", "end"} if marks else set()
    drawing = Lanes(
        alt=f"Partitions of {topic} over offsets",
        axis="offset",
        labels=[str(each.partition) for each in shown],
        boxes=boxes,
        marks=marks,
    )
    rows = [
        (
            each.partition,
            each.log_start_offset,
            each.last_stable_offset,
            each.log_end_offset,
            each.open_transactions,
            each.aborted_transactions,
            _summed(each.places),
            each.rows,
            each.files,
            None if each.bytes is None else bytes_text(each.bytes),
        )
        for each in ribbons
    ]
    columns = ("partition", "log start", "LSO", "log end", "open", "aborted", "stored in", "rows", "files", "size")
    return Section(
        title=topic,
        is_part=True,
        note=note,
        drawing=drawing if high else None,
        legend=_ordered(kinds),
        table=_table(columns, rows, "partition"),
    )


def transactions_section(transactions: Sequence[Transaction], note: str = "", *, by_name: bool = False) -> Section:
    """Return transactions, newest first, as bars on the partitions that they wrote, or with `by_name` on their ids."""
    lanes: dict[str, int] = {}
    placed: list[_Bar] = []
    if by_name:
        placed = [(txn.name, txn.start_ms, txn.end_ms, txn, "last transaction") for txn in transactions]
    for txn in () if by_name else transactions:
        of_log = {piece.partition for piece in txn.pieces}
        for piece in txn.pieces:
            what = f"{range_text(piece.first_offset, piece.last_offset)}, {count_text(piece.rows, 'row')}"
            end_ms = txn.end_ms if piece.kind == "open" else piece.end_ms
            placed.append((piece.partition, piece.start_ms, end_ms, txn, what))
        placed += [(each, txn.start_ms, txn.end_ms, txn, "no rows") for each in txn.partitions if each not in of_log]
    placed, is_cut = _cut(placed)
    if is_cut:
        note = f"{note} Bars of long transactions are cut at the edges.".strip()
    for name in sorted({each[0] for each in placed})[:MAX_LANES]:
        lanes[name] = len(lanes)
    boxes = []
    for name, number in lanes.items():
        mine = sorted((each for each in placed if each[0] == name), key=lambda each: each[1])
        for (_, start, end, txn, what), (row, of) in zip(mine, _rows_of(mine), strict=True):
            took = duration_text(max(txn.end_ms - txn.start_ms, 0))
            title = f"{txn.name}: {txn.state}, {what}, began {time_text(txn.start_ms)}, {took}"
            low, high = 0.08 + 0.84 * row / of, 0.08 + 0.84 * (row + 0.9) / of
            boxes.append(Box(lane=number, start=start, end=end, kind=txn.kind, title=title, low=low, high=high))
    drawing = Lanes(alt="Transactions over time", axis="time", labels=list(lanes), boxes=boxes)
    rows = [
        (
            txn.name,
            txn.state,
            time_text(txn.start_ms),
            duration_text(max(txn.end_ms - txn.start_ms, 0)),
            None if by_name else sum(piece.rows for piece in txn.pieces),
            ", ".join(sorted({*txn.partitions, *(piece.partition for piece in txn.pieces)})) or None,
        )
        for txn in transactions
    ]
    return Section(
        title="Transactions",
        note=note,
        drawing=drawing if boxes else None,
        legend=_ordered({box.kind for box in boxes}),
        table=_table(("transactional.id", "state", "began", "took", "rows", "partitions"), rows, "transaction"),
    )


def groups_section(groups: Sequence[GroupInfo]) -> Section:
    """Return the lag of groups in each partition."""
    lags = [(group.group, each, each.lag) for group in groups for each in group.offsets if each.lag is not None]
    shown = sorted(lags, key=lambda lag: -lag[2])[:MAX_LANES]
    drawing = Lanes(
        alt="Lag of consumer groups by partition",
        axis="rows",
        labels=[f"{group} {each.topic}-{each.partition}" for group, each, _ in shown],
        boxes=[
            Box(
                lane=lane,
                start=0,
                end=lag,
                kind="lag",
                title=f"{group}, {each.topic}-{each.partition}: committed {each.committed}, LSO "
                f"{each.last_stable_offset}",
                low=0.2,
                high=0.8,
                text=f"{lag:,}",
            )
            for lane, (group, each, lag) in enumerate(shown)
        ],
    )
    rows: list[Sequence[Cell]] = []
    for group in groups:
        state = "EMPTY (no members)" if group.state == "EMPTY" else group.state
        members = ", ".join(f"{each.member_id} ({each.client_id})" for each in group.members) or group.member_id
        head = (group.group, state, members or None)
        rows += [
            (*head, f"{each.topic}-{each.partition}", each.committed, each.last_stable_offset, each.lag)
            for each in group.offsets
        ] or [(*head, None, None, None, None)]
    return Section(
        title="Consumer groups",
        note="Lag counts the offsets from the committed one to the LSO, markers and aborted rows included."
        if shown
        else "",
        drawing=drawing if shown else None,
        legend=("lag",) if shown else (),
        table=_table(("group", "state", "members", "partition", "committed", "LSO", "lag"), rows),
    )


def files_section(points: Sequence[FilePoint], note: str = "") -> Section:
    """Return how many bytes and files there are of each age."""
    low = min((each.at_ms for each in points), default=0)
    high = max((each.at_ms for each in points), default=0)
    columns = _COLUMNS if high > low else 1
    width = max((high - low) / columns, 1) if high > low else 1000
    sizes: dict[str, list[int]] = {place: [0] * columns for place in _PLACES}
    files: dict[str, list[int]] = {place: [0] * columns for place in _PLACES}
    for each in points:
        column = min(int((each.at_ms - low) / width), columns - 1)
        sizes[each.place][column] += each.bytes
        files[each.place][column] += each.files
    titles, rows = [], []
    for column in range(columns):
        start_ms = round(low + column * width)
        counted = {place: (files[place][column], sizes[place][column]) for place in _PLACES if files[place][column]}
        words = "; ".join(f"{KINDS[place]}: {count}, {bytes_text(size)}" for place, (count, size) in counted.items())
        titles.append(f"{time_text(start_ms)}: files {words or 'none'}")
        for place, (count, size) in counted.items():
            rows.append((time_text(start_ms), KINDS[place], count, bytes_text(size), bytes_text(size // count)))
    drawing = Columns(
        alt="Size and number of files by the time of their last row",
        start=low,
        width=width,
        titles=titles,
        panels=[
            Panel(label="Size of files and tail", unit="bytes", series=sizes),
            Panel(label="Number of files, and of batches of the tail", unit="files", series=files),
        ],
    )
    places = {each.place for each in points}
    return Section(
        title="Files and sizes",
        note=note,
        drawing=drawing if points else None,
        legend=_ordered(places),
        table=_table(("from", "stored in", "number", "size", "mean size"), rows),
    )


def journal_section(steps: Sequence[tuple[str, CleanupStep]], note: str = "") -> Section:
    """Return what maintenance did, newest first, each step after the process that did it."""
    jobs = {job: lane for lane, job in enumerate(sorted({step.job for _, step in steps}))}
    drawing = Lanes(
        alt="Maintenance jobs over time",
        axis="time",
        labels=list(jobs),
        boxes=[
            Box(
                lane=jobs[step.job],
                start=step.started_at,
                end=step.ended_at,
                kind=step.outcome if step.outcome in KINDS else "published",
                title=f"{step.job} {step.topic}-{step.partition}: {step.outcome}, {time_text(step.started_at)}",
                low=0.15,
                high=0.85,
            )
            for _, step in steps
        ],
    )
    rows = [
        (time_text(step.started_at), step.job, f"{step.topic}-{step.partition}", *step_cells(by, step).values())
        for by, step in steps
    ]
    columns = ("began", "job", "partition", "outcome", "offsets", "files", "bytes", "deleted", "took", "by", "message")
    return Section(
        title="Maintenance",
        note=note,
        drawing=drawing if steps else None,
        legend=_ordered({box.kind for box in drawing.boxes}),
        table=_table(columns, rows),
    )


def step_cells(by: str, step: CleanupStep) -> dict[str, str | None]:
    """Return what a job did, and which process it was, by column."""
    return {
        "outcome": step.outcome,
        "offsets": f"{step.base_offset} to {step.end_offset - 1}" if step.base_offset >= 0 else None,
        "files": f"{step.input_files:,} → {step.output_files:,}" if step.input_files else None,
        "bytes": f"{bytes_text(step.bytes_read)} → {bytes_text(step.bytes_written)}" if step.bytes_read else None,
        "deleted": f"{step.deleted_objects:,}, {bytes_text(step.deleted_bytes)}" if step.deleted_objects else None,
        "took": duration_text(max(0, step.ended_at - step.started_at)),
        "by": by,
        "message": step.message or None,
    }


def _box(lane: int, start: float, end: float, kind: str, title: str, band: tuple[float, float]) -> Box:
    low, high = band
    if kind == "aborted":
        high -= (high - low) * 0.35  # so that people who cannot see the colour see the height
    return Box(lane=lane, start=start, end=end, kind=kind, title=title, low=low, high=high)


def _span_title(span: Span) -> str:
    where = range_text(span.start, span.end - 1).capitalize()
    counted = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in span.counts.items() if count)
    return f"{where}: {span.title or counted or KINDS[span.kind]}"


def _summed(spans: Sequence[Span]) -> str | None:
    counts = sum((span.counts for span in spans), Counter[str]())
    return ", ".join(f"{counts[place]:,} {place}" for place in _PLACES if counts[place]) or None


def _cut(bars: Sequence[_Bar]) -> tuple[list[_Bar], bool]:
    """Return bars in which open transactions do not make the time of all others look like one moment."""
    ended = [bar for bar in bars if bar[3].kind in ("committed", "aborted")]
    if not ended:
        return list(bars), False
    first, last = min(bar[1] for bar in ended), max(bar[2] for bar in ended)
    room = max((last - first) // 4, 1000)
    low, high = first - room, last + room
    cut = [
        (name, min(max(start, low), high), max(min(end, high), low), txn, what) for name, start, end, txn, what in bars
    ]
    return cut, any(before[1:3] != after[1:3] for before, after in zip(bars, cut, strict=True))


def _rows_of(bars: Sequence[_Bar]) -> list[tuple[int, int]]:
    """Return the row of each bar of a lane, and how many rows there are: bars of one time are above each other."""
    ends: list[int] = []
    rows = []
    for _, start, end, _, _ in bars:
        row = next((number for number, before in enumerate(ends) if before < start), len(ends))
        if row == len(ends) and len(ends) < 4:
            ends.append(end)
        else:
            row = min(row, len(ends) - 1)
            ends[row] = max(ends[row], end)
        rows.append(row)
    return [(row, len(ends)) for row in rows]


def _ordered(kinds: set[str]) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind in kinds)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], noun: str = "line") -> Table:
    """Return a table without the columns that are empty in every row."""
    kept = [at for at in range(len(columns)) if not rows or any(row[at] is not None for row in rows)]
    return Table(columns=[columns[at] for at in kept], rows=[[row[at] for at in kept] for row in rows], noun=noun)
