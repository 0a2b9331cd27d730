"""`txlog produce`: write rows of a topic, from lines of JSON, CSV, Parquet or Arrow."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.documents import ProduceDocument, ProducedRows
from txlog.cli.formats import FileFormat
from txlog.cli.inputs import Inputs
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.options import Session, TopicName, option, parse_pairs
from txlog.cli.output import Output, progress_bar
from txlog.errors import InvalidRequestError, OutcomeUnknownError, SchemaMismatchError, TxlogError
from txlog.text import count_text

if TYPE_CHECKING:
    from txlog.client import Producer
    from txlog.client.producer import RecordMetadata

_ALL_OR_NOTHING = "With --transaction it is all or nothing."


def produce(
    session: Session,
    name: TopicName,
    files: Annotated[
        list[str] | None,
        option("--from FILE", "Read this file instead of the standard input (-); may be repeated."),
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        option(
            "--format FORMAT",
            "json (one object on each line), csv, parquet or arrow. (default: as the file's name ends; json "
            "from the standard input)",
        ),
    ] = None,
    transaction: Annotated[
        bool, option("--transaction", "Write all rows in one transaction: either all of them become visible, or none.")
    ] = False,
    transactional_id: Annotated[
        str | None, option("--transactional-id ID", "The same, with this id. It fences an older run of the id.")
    ] = None,
    txn_version: Annotated[
        int | None,
        option(
            "--version N",
            "Number of the transaction: if the --transactional-id has committed this or a higher "
            "one, the run is skipped.",
        ),
    ] = None,
    key: Annotated[
        str | None, option("--key COLUMN,…", "Columns that decide the partition (default: key.columns).")
    ] = None,
    partition: Annotated[int | None, option("--partition N", "The partition for all rows.")] = None,
    batch: Annotated[int, option("--batch ROWS", "How many rows are sent at a time.")] = 10_000,
    properties: Annotated[
        list[str] | None, option("--property KEY=VALUE", "A setting of the producer; may be repeated.")
    ] = None,
) -> None:
    """Append rows from files or from the standard input.

    In JSON there is one object on each line, and each member is a column. Binary values are text or {"base64": "…"};
    dates, timestamps and decimals are text. The columns of the other formats are found by name; an empty cell of CSV is
    null.

    Lines of JSON are sent after at most one second. A line that is not a row ends the input with an error. Ctrl-C and
    SIGTERM end the input too. Rows that were read before are written, but a transaction is aborted.
    """
    if batch < 1:
        raise InvalidRequestError(f"--batch {batch}: expected a number of rows, at least 1")
    if txn_version is not None and transactional_id is None:
        raise InvalidRequestError("--version needs --transactional-id: the version is kept with the id")
    config = parse_pairs(properties, "--property")
    columns = None if key is None else [column.strip() for column in key.split(",")]
    described = session.store.topic(name)
    if partition is not None:
        session.store.runtime.partition(name, partition)
    if transaction and transactional_id is None:
        transactional_id = f"txlog-produce-{session.store.runtime.ids.new_id()}"
    skipped = False
    bar = progress_bar("reading", "rows") if files or not sys.stdin.isatty() else nullcontext()
    with Interrupts() as interrupts, bar as show:
        inputs = Inputs(
            files or (),
            file_format,
            described,
            batch=batch,
            clock=session.store.runtime.clock,
            interrupts=interrupts,
            show=show,
        )
        if inputs.is_typed:
            typer.echo("One JSON object a line; Ctrl-D ends the input.", err=True)
        feed = _Feed(inputs, name, key=columns, partition=partition)
        try:
            with session.store.producer(transactional_id, config=config) as producer:
                if transactional_id is None:
                    feed.run(producer, soon=True)
                else:
                    with producer.transaction(version=txn_version) as scope:
                        feed.run(producer, soon=False)
                        interrupts.check()
                    feed.committed = True
                    skipped = scope.result is not None and scope.result.skipped
        except TxlogError as error:
            session.repeatable = _repeatable(error, transactional_id, txn_version, feed)
            _say_what_became(error, transactional_id, feed)
            raise
        except Interrupted as interrupt:
            raise _aborted(interrupt, transactional_id, feed.rows) from interrupt
    session.repeatable = txn_version is not None or not feed.rows
    document = ProduceDocument(
        topic=name,
        records=0 if skipped else feed.tally.written(),
        transactional_id=transactional_id,
        skipped=skipped,
        partitions=() if skipped else feed.tally.partitions(),
    )
    session.out.show(document, lambda out: _show_produced(out, document, txn_version))
    if transactional_id is None and interrupts.received is not None:
        lost = f"{inputs.cut_off} that had not ended was dropped" if inputs.cut_off else "nothing was dropped"
        raise Interrupted(
            interrupts.received,
            f"Ended by {interrupts.received.name}: {count_text(document.records, 'row')} written, {lost}.",
        )


def _repeatable(error: TxlogError, transactional_id: str | None, txn_version: int | None, feed: _Feed) -> bool:
    """Return whether a second run with the same rows cannot write rows twice."""
    if transactional_id is None:
        return not feed.rows  # rows that were sent may be in the log, whatever the error is
    # A repeated run with a version is skipped.
    return txn_version is not None or not (feed.committed or isinstance(error, OutcomeUnknownError))


def _say_what_became(error: TxlogError, transactional_id: str | None, feed: _Feed) -> None:
    """Add notes to an error: what became of the rows that were read before it."""
    before = f"{count_text(feed.rows, 'row')} before {feed.bad_line}" if feed.bad_line else count_text(feed.rows, "row")
    if transactional_id is None:
        written = feed.tally.written()
        if feed.bad_line and not feed.rows:
            said = "Nothing was written"
        elif feed.bad_line and written == feed.rows:
            said = f"Written: {before}, and nothing from there on. Repeat the command without the first {feed.rows}"
        elif feed.rows:
            said = f"Written for sure: {written} of {before}"
        else:
            return
        error.add_note(f"{said}. {_ALL_OR_NOTHING}")
    elif feed.bad_line and not getattr(error, "__notes__", ()):
        error.add_note(
            f"Dropped: {before}. The transaction of {transactional_id!r} was aborted: nothing of it is visible."
        )


def _aborted(interrupt: Interrupted, transactional_id: str | None, rows: int) -> Interrupted:
    """Return the same signal with a text about the transaction that it ended."""
    if interrupt.torn:
        return interrupt
    notes = getattr(interrupt, "__notes__", ())
    how = (
        "could not be aborted now, and will be by its next producer, or after its time-out" if notes else "was aborted"
    )
    told = Interrupted(
        interrupt.received,
        f"Ended by {interrupt.received.name}: {count_text(rows, 'row')} dropped. The transaction of "
        f"{transactional_id!r} {how}: nothing of it is visible.",
    )
    for note in notes:
        told.add_note(note)
    return told


class _Feed:
    """Send the rows of the inputs."""

    def __init__(self, inputs: Inputs, topic: str, *, key: list[str] | None, partition: int | None) -> None:
        self.rows = 0
        """How many rows were sent. In a transaction: how many were read."""
        self.bad_line = ""
        """The place of what is not a row, as in `line 7`, if there was such a thing."""
        self.committed = False
        """Whether the transaction of the rows is committed."""
        self.tally = _Tally()
        self._inputs = inputs
        self._topic = topic
        self._key = key
        self._partition = partition

    def run(self, producer: Producer, *, soon: bool) -> None:
        """Send all rows. `soon` flushes whenever the input pauses, so that rows and errors become visible early."""
        try:
            self._send_all(producer, soon=soon)
        except SchemaMismatchError:
            self.bad_line = self.bad_line or "the error"
            raise
        producer.flush()

    def _send_all(self, producer: Producer, *, soon: bool) -> None:
        with closing(iter(self._inputs)) as chunks:
            for chunk in chunks:
                # Write the rows before a bad line too, except in a transaction, which is aborted.
                if chunk.count and (soon or chunk.error is None):
                    self.tally.add(producer.send(self._topic, chunk.rows, key=self._key, partition=self._partition))
                self.rows += chunk.count
                if soon and (chunk.error is not None or chunk.pauses):
                    producer.flush()
                if chunk.error is not None:
                    self.bad_line = chunk.place
                    raise chunk.error


class _Tally:
    """Count the results of the sends without keeping each of them."""

    def __init__(self) -> None:
        self._waiting: deque[Future[RecordMetadata]] = deque()
        self._found: dict[int, tuple[int, int, int]] = {}

    def add(self, future: Future[RecordMetadata]) -> None:
        """Add the future of one send."""
        self._waiting.append(future)
        self._collect()

    def written(self) -> int:
        """Return the number of rows whose sends have succeeded."""
        self._collect()
        return sum(records for records, _, _ in self._found.values())

    def partitions(self) -> tuple[ProducedRows, ...]:
        """Return where the rows were written."""
        self._collect()
        return tuple(
            ProducedRows(
                partition=partition,
                records=records,
                first_offset=first if first >= 0 else None,
                last_offset=last if last >= 0 else None,
            )
            for partition, (records, first, last) in sorted(self._found.items())
        )

    def _collect(self) -> None:
        while self._waiting and self._waiting[0].done():
            future = self._waiting.popleft()
            if future.exception() is None:
                sent = future.result()
                for part in sent.parts or (sent,):
                    self._count(part)

    def _count(self, part: RecordMetadata) -> None:
        records, first, last = self._found.get(part.partition, (0, part.base_offset, -1))
        end = part.base_offset + part.records - 1 if part.base_offset >= 0 else -1
        self._found[part.partition] = (records + part.records, min(first, part.base_offset), max(last, end))


def _show_produced(out: Output, document: ProduceDocument, txn_version: int | None) -> None:
    if document.skipped:
        out.line(
            f"Skipped: {document.transactional_id!r} has committed txn.version {txn_version} or a higher one; "
            "nothing of this run is visible."
        )
        return
    if document.partitions:
        out.table(
            ("topic", "partition", "rows", "first offset", "last offset"),
            [(document.topic, p.partition, p.records, p.first_offset, p.last_offset) for p in document.partitions],
        )
        out.line()
    committed = f", committed as one transaction of {document.transactional_id!r}" if document.transactional_id else ""
    out.line(f"Wrote {count_text(document.records, 'row')} to {document.topic!r}{committed}.")
