"""`txlog dump-log`: what does an object of the store contain, and what is in a partition's chain?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from txlog.cli.options import Session, argument, option
from txlog.cli.output import NOTHING, Cell, Output, Row, encode_line, struct_table, tabulate
from txlog.cli.rows import json_value
from txlog.core import names
from txlog.errors import InvalidRequestError
from txlog.text import bytes_text, count_text, digest_text, range_text, time_text

if TYPE_CHECKING:
    from txlog.inspection.chain import ChainBatch, PartitionChain
    from txlog.inspection.objects import DumpedObject

_MOMENTS = frozenset({"timestamp", "last_timestamp", "created_at", "updated_at", "started_at", "since"})
"""Fields that hold milliseconds since 1970."""


def dump_log(
    session: Session,
    path: Annotated[
        str,
        argument(
            "PATH",
            "An object, as in orders/0/00000000000000000000.batch, or a partition, as in "
            "orders/0, to see its whole chain.",
        ),
    ],
    rows: Annotated[
        bool, option("--rows", "Also show the rows of the partition or of the .batch.", "--print-data-log")
    ] = False,
    start_offset: Annotated[
        int, option("--start-offset N", "Show batches of a partition from this offset on.", show_default=False)
    ] = 0,
    end_offset: Annotated[
        int | None, option("--end-offset N", "Show batches of a partition before this offset.")
    ] = None,
) -> None:
    """Explain what is stored: any object of the store, or the chain of a partition.

    Objects are txlog.json, topic metadata, .batch, .index, .txnindex, .snapshot, .boundary, .clean and .staged.

    Checksums are verified. A damaged object is an error that names the object.
    """
    # A local import, because it loads the client.
    from txlog.inspection.chain import dump_partition, read_rows
    from txlog.inspection.object_names import parse_partition
    from txlog.inspection.objects import dump_object

    runtime = session.store.runtime
    tp = parse_partition(runtime, path)
    if tp is None:
        if start_offset or end_offset is not None:
            raise InvalidRequestError(
                f"--start-offset and --end-offset need a partition, as in orders/0; found {path!r}"
            )
        found = dump_object(runtime, path, rows=rows)
        readable = found if found.rows is None else msgspec.structs.replace(found, rows=json_value(found.rows))
        session.out.show(readable, lambda out: _show_object(out, readable))
        return
    chain = dump_partition(runtime, tp)
    batches = tuple(
        each
        for each in chain.batches
        if each.last_offset >= start_offset and (end_offset is None or each.base_offset < end_offset)
    )
    chain = replace(chain, batches=batches)
    if not rows:
        session.out.show(chain, lambda out: _show_chain(out, chain))
        return
    first, end = (batches[0].base_offset, batches[-1].last_offset + 1) if batches else (0, 0)
    with_rows = _with_rows(batches, read_rows(runtime, tp, first, end))
    if session.out.is_json:
        chain = replace(chain, batches=tuple(with_rows))

    def text(out: Output) -> None:
        _show_chain(out, chain)
        for batch in with_rows:
            if batch.rows:
                fate = "" if batch.fate in ("plain", "control") else f", {batch.fate}"
                _show_rows(out, f"Rows of {range_text(batch.base_offset, batch.last_offset)}{fate}", batch.rows)

    session.out.show(chain, text)


def _with_rows(batches: Sequence[ChainBatch], rows: Iterator[dict[str, Any]]) -> Iterator[ChainBatch]:
    """Yield the batches with their rows, for JSON."""
    row = next(rows, None)
    for batch in batches:
        own = []
        while row is not None and row["_offset"] <= batch.last_offset:
            own.append(json_value(row))
            row = next(rows, None)
        yield msgspec.structs.replace(batch, rows=own)


def _show_object(out: Output, found: DumpedObject) -> None:
    out.fields([("object", found.path), ("kind", found.kind), ("size", bytes_text(found.bytes))])
    out.line()
    for sentence in found.explanation:
        out.line(sentence)  # a terminal wraps it
    for value in (found.value, *found.following):
        cells, tables = tabulate(value)
        out.heading("Fields")
        out.fields((name, _readable_cell(name, cell)) for name, cell in cells.items())
        _show_tables(out, tables)
    if found.rows is not None:
        _show_rows(out, f"rows ({len(found.rows)})", found.rows)


def _show_rows(out: Output, title: str, rows: Iterable[object]) -> None:
    out.heading(title)
    for row in rows:
        out.line(encode_line(row).rstrip("\n"))


def _show_tables(out: Output, tables: Mapping[str, Sequence[msgspec.Struct]], above: str = "") -> None:
    for name, structs in tables.items():
        out.heading(f"{above}{name} ({len(structs)})")
        if len(structs) == 1:
            # One row is easier to read as a list of fields.
            cells, inner = tabulate(structs[0])
            out.fields((field, _readable_cell(field, cell)) for field, cell in cells.items())
            _show_tables(out, inner, f"{above}{name}.")
            continue
        columns, rows = struct_table(structs)
        shown = [[_short(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
        out.table(columns, shown)


def _readable_cell(name: str, cell: Cell) -> Cell:
    if name.rpartition(".")[2] in _MOMENTS and isinstance(cell, int) and cell >= 0:
        return f"{cell} ({time_text(cell)})"
    return cell


def _short(name: str, cell: Cell) -> Cell:
    """Shorten digests. JSON has them whole."""
    return digest_text(cell) if name.endswith("digest") and isinstance(cell, str) else cell


def _show_chain(out: Output, chain: PartitionChain) -> None:
    sealed = f"{chain.sealed_end} in {count_text(len(chain.segments), 'segment')}" if chain.sealed_end else NOTHING
    out.fields(
        [
            ("partition", f"{chain.topic}-{chain.partition}"),
            ("log start", chain.log_start_offset),
            ("last stable", chain.last_stable_offset),
            ("log end", chain.log_end_offset),
            ("sealed up to", sealed),
            ("boundary", chain.boundary),
        ]
    )
    out.section(
        "Segments",
        ("base", "end", "generation", "batches", "rows", "aborted", "index"),
        [
            (s.base_offset, s.end_offset, s.generation, s.batches, s.records, s.aborted_txns, s.name)
            for s in chain.segments
        ],
    )
    out.section(
        "Open transactions, which hold the last stable offset back",
        ("producer", "epoch", "since offset", "last append"),
        [
            (t.producer_id, t.producer_epoch, t.txn_first_offset, time_text(t.last_timestamp))
            for t in chain.open_transactions
        ],
    )
    out.section(
        "Aborted transactions",
        ("producer", "from", "to marker", "last stable after"),
        [(t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset) for t in chain.aborted],
    )
    out.heading("Batches")
    out.table(
        ("offsets", "kind", "rows", "transaction", "producer", "epoch", "sequence", "appended", "in", "rows in"),
        [_batch_row(each) for each in chain.batches],
        empty="No batches.",
    )


def _batch_row(batch: ChainBatch) -> Row:
    offsets = str(batch.base_offset)
    return (
        offsets if batch.last_offset == batch.base_offset else f"{offsets}..{batch.last_offset}",
        batch.kind,
        batch.records,
        None if batch.fate in ("plain", "control") else batch.fate,
        batch.producer_id if batch.producer_id >= 0 else None,
        batch.producer_epoch if batch.producer_epoch >= 0 else None,
        batch.base_sequence if batch.base_sequence >= 0 else None,
        time_text(batch.timestamp),
        _segment(batch.object) or "tail",
        _rows_in(batch.rows_in),
    )


def _segment(name: str) -> str | None:
    parsed = names.parse_partition_object(name)
    if not isinstance(parsed, names.SegmentObject):
        return None
    return f"{'run' if parsed.segment.generation else 'segment'} {parsed.segment.base_offset}"


def _rows_in(files: tuple[str, ...]) -> str | None:
    if not files:
        return None
    _, _, first = files[0].rpartition("/")
    shown = "its .parquet" if _segment(first) else re.sub(r"(-[0-9a-f]{8})[0-9a-f]+(\.parquet)$", r"\1…\2", first)
    return shown if len(files) == 1 else f"{shown} and {len(files) - 1} more"
