"""`txlog produce` and `txlog consume`: read and write rows as lines of JSON."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlog.cli.documents import ProduceDocument, ProducedRows
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.lines import Lines, write_lines
from txlog.cli.options import Session, TopicsOption, command, one_of, parse_pairs
from txlog.cli.output import Output
from txlog.cli.partitions import parse_partitions
from txlog.cli.rows import decode_rows, encode_row
from txlog.clock import Clock
from txlog.core.names import TopicPartition
from txlog.core.schema import OWN_COLUMNS
from txlog.errors import InvalidRequestError, OutcomeUnknownError, SchemaMismatchError, TxlogError
from txlog.text import count_text, duration_text

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.client import Consumer, Producer
    from txlog.client.batches import RecordMetadata
    from txlog.client.topics import TopicDescription

_LINGER_MS = 1000
"""How long a line from a pipe waits for further lines, to be sent with them."""
_TYPED_LINGER_MS = 50
"""The same at a terminal: just long enough to paste many lines."""
_POLL_MS = 500
"""How long one poll waits. The program reacts to Ctrl-C after this time at the latest."""
_PRINT_ROWS = 1000
"""How many rows are printed together. If Ctrl-C interrupts them, the group's next run prints them again."""

_Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
_TopicOption = Annotated[str | None, typer.Option("--topic", hidden=True)]


def register(app: typer.Typer, *, panel: str) -> None:
    """Add the commands."""
    command(app, "produce", panel=panel)(produce)
    command(app, "consume", panel=panel)(consume)


# -- produce ----------------------------------------------------------------------------------------------------------


def produce(
    session: Session,
    topic: _Topic = None,
    topic_option: _TopicOption = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Write all rows in one transaction of this id: either all of them become visible, or none.",
            show_default=False,
        ),
    ] = None,
    txn_version: Annotated[
        int | None,
        typer.Option(
            "--txn-version",
            metavar="N",
            help="Number of the transaction: if the id has committed this or a higher one, the run is skipped.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="COLUMN,…",
            help="Columns that decide the partition (default: key.columns).",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", help="The partition for all rows.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="ROWS", help="How many rows are sent at a time.")] = 10_000,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="KEY=VALUE", help="A setting of the producer; may be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    """Append rows from the standard input, one JSON object on each line.

    Each member is a column. Binary values are text or {"base64": "…"}; dates, timestamps and decimals are text.

    Rows are sent after at most one second. A line that is not a row ends the input with an error. Ctrl-C and SIGTERM
    end the input too. Rows that were read before are written, but a transaction is aborted.
    """
    name = one_of(topic, topic_option, "topic")
    if batch < 1:
        raise InvalidRequestError(f"--batch {batch}: expected a number of rows, at least 1")
    if txn_version is not None and transactional_id is None:
        raise InvalidRequestError("--txn-version needs --transactional-id: the version is kept with the id")
    config = parse_pairs(properties, "--property")
    columns = None if key is None else [column.strip() for column in key.split(",")]
    described = session.store.topic(name)
    if partition is not None:
        session.store.runtime.partition(name, partition)
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        typer.echo("One JSON object a line; Ctrl-D ends the input.", err=True)
    skipped = False
    with Interrupts() as interrupts:
        lines = Lines(
            sys.stdin.buffer,
            chunk=batch,
            linger_ms=_TYPED_LINGER_MS if at_terminal else _LINGER_MS,
            clock=session.store.runtime.clock,
            interrupts=interrupts,
        )
        feed = _Feed(lines, described, key=columns, partition=partition)
        try:
            with session.store.producer(transactional_id, config=config) as producer:
                if transactional_id is None:
                    feed.run(producer, soon=True)
                else:
                    with producer.transaction(version=txn_version) as transaction:
                        feed.run(producer, soon=False)
                        interrupts.check()
                    feed.committed = True
                    skipped = transaction.result is not None and transaction.result.skipped
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
        lost = "a line that had not ended was dropped" if lines.cut_off else "nothing was dropped"
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
            said = f"Written: {before}, and nothing from there on"
        elif feed.rows:
            said = f"Written for sure: {written} of {before}"
        else:
            return
        error.add_note(f"{said}. With --transactional-id it is all or nothing.")
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
        f"Ended by {interrupt.received.name}: {count_text(rows, 'row')} dropped. The transaction of {transactional_id!r} {how}: nothing "
        "of it is visible.",
    )
    for note in notes:
        told.add_note(note)
    return told


class _Feed:
    """Send the rows from lines of JSON."""

    def __init__(self, lines: Lines, topic: TopicDescription, *, key: list[str] | None, partition: int | None) -> None:
        self.rows = 0
        """How many rows were sent. In a transaction: how many were read."""
        self.bad_line = ""
        """The line that is not a row, if there was one."""
        self.committed = False
        """Whether the transaction of the rows is committed."""
        self.tally = _Tally()
        self._lines = lines
        self._topic = topic
        self._key = key
        self._partition = partition

    def run(self, producer: Producer, *, soon: bool) -> None:
        """Send all rows. `soon` flushes whenever the input pauses, so that rows and errors become visible early."""
        first = 1
        for chunk in self._lines:
            rows, bad = self._decode(chunk, first)
            first += len(chunk)
            # Write the rows before a bad line too, except in a transaction, which is aborted.
            if rows and (soon or bad is None):
                self.tally.add(producer.send(self._topic.name, rows, key=self._key, partition=self._partition))
            self.rows += len(rows)
            if soon and (bad is not None or len(chunk) < self._lines.chunk):
                producer.flush()
            if bad is not None:
                raise bad
        producer.flush()

    def _decode(self, lines: list[bytes], first: int) -> tuple[list[dict[str, Any]], SchemaMismatchError | None]:
        """Decode lines up to the first one that is not a row. Return the rows, and the error of that line."""
        rows: list[dict[str, Any]] = []
        try:
            for row in decode_rows(lines, self._topic.fields, self._topic.name, first=first):
                rows.append(row)  # noqa: PERF402 - those before the bad one are wanted
        except SchemaMismatchError as error:
            self.bad_line = str(error).partition(":")[0]
            return rows, error
        return rows, None


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
            f"Skipped: {document.transactional_id!r} has committed txn.version {txn_version} or a higher one; nothing of this run is visible."
        )
        return
    if document.partitions:
        out.table(
            ("topic", "partition", "rows", "first offset", "last offset"),
            [(document.topic, p.partition, p.records, p.first_offset, p.last_offset) for p in document.partitions],
            empty="",
        )
        out.line()
    committed = f", committed as one transaction of {document.transactional_id!r}" if document.transactional_id else ""
    out.line(f"Wrote {count_text(document.records, 'row')} to {document.topic!r}{committed}.")


# -- consume ----------------------------------------------------------------------------------------------------------


def consume(
    session: Session,
    topic: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="The topics.", show_default=False)] = None,
    topic_option: TopicsOption = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", metavar="", help="Start at the log start instead of the end if no offset is committed."
        ),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="0,1,…", help="Only these partitions of one topic.", show_default=False),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", help="Start at this offset in each --partition.", show_default=False),
    ] = None,
    group_id: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Continue from the committed offsets of this consumer group, and commit the rows that are printed.",
            show_default=False,
        ),
    ] = None,
    isolation_level: Annotated[
        str | None,
        typer.Option(
            "--isolation-level",
            metavar="LEVEL",
            help="read_committed, or read_uncommitted: rows of open and aborted transactions too. (default: read_committed)",
            show_default=False,
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", metavar="N", help="End after this number of rows.", show_default=False),
    ] = None,
    timeout_ms: Annotated[
        int | None,
        typer.Option("--timeout-ms", metavar="MS", help="End if no row arrives for this long.", show_default=False),
    ] = None,
    metadata: Annotated[
        bool,
        typer.Option(
            "--metadata", metavar="", help="Also show _topic, _partition, _offset and _timestamp of each row."
        ),
    ] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="KEY=VALUE", help="A setting of the consumer; may be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    """Print rows as lines of JSON, one object for each row, until Ctrl-C or SIGTERM.

    `produce` can read the output. Only committed rows are printed, unless --isolation-level is read_uncommitted.
    """
    names = [*(topic or ()), *(topic_option or ())]
    if not names:
        raise InvalidRequestError("which topic? Name it after the command")
    if max_messages is not None and max_messages < 0:
        raise InvalidRequestError(f"--max-messages {max_messages}: expected a number of rows, at least 0")
    if timeout_ms is not None and timeout_ms < 0:
        raise InvalidRequestError(f"--timeout-ms {timeout_ms}: expected milliseconds, at least 0")
    chosen = _chosen_partitions(names, partition, offset, group_id)
    config = {
        # The program commits exactly what it has printed, so no automatic commits.
        "enable.auto.commit": "false",
        **_reset_policy(from_beginning, offset),
        **({"isolation.level": isolation_level} if isolation_level is not None else {}),
        **parse_pairs(properties, "--property"),
    }
    store = session.store
    with (
        Interrupts() as interrupts,
        store.consumer(*(() if chosen else names), group_id=group_id, config=config) as consumer,
    ):
        if chosen:
            consumer.assign(chosen)
        for tp in chosen if offset is not None else ():
            consumer.seek(tp, offset or 0)
        printer = _Printer(consumer, interrupts, metadata=metadata)
        printed = printer.run(store.runtime.clock, max_messages, timeout_ms)
    is_out_of_time = timeout_ms is not None and (max_messages is None or printed < max_messages)
    if is_out_of_time and consumer.isolation_level == "read_committed":
        _say_what_waits(session, names, chosen)
    if not printed and timeout_ms is not None and sys.stderr.isatty():
        where = "" if from_beginning or offset is not None else "; --from-beginning shows what is there already"
        typer.echo(f"No rows within {duration_text(timeout_ms)}{where}.", err=True)


def _say_what_waits(session: Session, names: list[str], chosen: list[TopicPartition]) -> None:
    """Name the open transactions that hold committed rows back, because then rows may exist although none was printed."""
    ends = session.admin.list_offsets(names)
    held = {tp for tp, info in ends.items() if info.last_stable_offset < info.log_end_offset} & set(chosen or ends)
    hanging = [each for name in sorted({tp.topic for tp in held}) for each in session.admin.find_hanging(-1, name)]
    for tp in sorted(held):
        here = [each for each in hanging if (each.topic, each.partition) == (tp.topic, tp.partition)]
        if not here:
            continue  # it ended meanwhile
        first = min(here, key=lambda each: each.first_offset)
        whose = f"of {first.transactional_id!r}" if first.transactional_id else f"of producer {first.producer_id}"
        waiting = count_text(ends[tp].log_end_offset - ends[tp].last_stable_offset, "offset")
        typer.echo(
            f"{tp}: {waiting} from {ends[tp].last_stable_offset} on wait behind an open transaction {whose}, quiet for "
            f"{duration_text(first.open_ms)}; {first.advice}.",
            err=True,
        )


def _chosen_partitions(
    names: list[str], partition: str | None, offset: int | None, group_id: str | None
) -> list[TopicPartition]:
    if partition is None:
        if offset is not None:
            raise InvalidRequestError("--offset needs --partition")
        return []
    if len(names) != 1:
        raise InvalidRequestError(f"--partition needs one topic, and {len(names)} are named")
    if group_id is not None:
        raise InvalidRequestError("--partition and --group exclude each other: a group's member reads all partitions")
    return [TopicPartition(names[0], number) for number in parse_partitions(partition, "--partition")]


def _reset_policy(from_beginning: bool, offset: int | None) -> dict[str, str]:
    if offset is not None:
        return {"auto.offset.reset": "none"}  # an offset outside of the log is an error, not a jump to its end
    return {"auto.offset.reset": "earliest"} if from_beginning else {}


class _Printer:
    """Print rows. If the consumer has a group, commit after each printed part."""

    def __init__(self, consumer: Consumer, interrupts: Interrupts, *, metadata: bool) -> None:
        self._consumer = consumer
        self._interrupts = interrupts
        self._metadata = metadata

    def run(self, clock: Clock, max_messages: int | None, timeout_ms: int | None) -> int:
        """Run until there are enough rows, or none came for too long. Return the number of rows. Raises Interrupted."""
        printed = 0
        due_ms = clock.monotonic_ms() + (timeout_ms or 0)
        while max_messages is None or printed < max_messages:
            left_ms = _POLL_MS if timeout_ms is None else max(due_ms - clock.monotonic_ms(), 0)
            batch = self._consumer.poll(min(left_ms, _POLL_MS))
            self._interrupts.check()
            if batch is not None:
                if max_messages is not None:
                    batch = batch.slice(0, max_messages - printed)
                self._print(batch)
                printed += batch.num_rows
                due_ms = clock.monotonic_ms() + (timeout_ms or 0)
            elif timeout_ms is not None and clock.monotonic_ms() >= due_ms:
                break
        if self._consumer.group_id is not None and (max_messages is None or printed < max_messages):
            self._consumer.commit()  # positions may have moved past rows that are not shown
        return printed

    def _print(self, batch: pa.RecordBatch) -> None:
        printed: pa.RecordBatch | None = None
        interrupt: Interrupted | None = None
        try:
            for start in range(0, batch.num_rows, _PRINT_ROWS):
                part = batch.slice(start, _PRINT_ROWS)
                self._interrupts.check()
                rows = _columns(part, self._metadata).to_pylist()
                write_lines([f"{encode_row(row)}\n" for row in rows], sys.stdout, self._interrupts)
                printed = part
        except Interrupted as error:
            interrupt = error
        if self._consumer.group_id is not None and printed is not None:
            self._consumer.commit(_next_offset(printed))
        if interrupt is not None:
            raise interrupt


def _columns(batch: pa.RecordBatch, metadata: bool) -> pa.RecordBatch:
    own = [name for name in batch.schema.names if name not in OWN_COLUMNS]
    return batch.select([*(name for name in OWN_COLUMNS if metadata), *own])


def _next_offset(batch: pa.RecordBatch) -> dict[TopicPartition, int]:
    last = batch.slice(batch.num_rows - 1).select(list(OWN_COLUMNS)).to_pylist()[0]
    return {TopicPartition(last["_topic"], last["_partition"]): last["_offset"] + 1}
