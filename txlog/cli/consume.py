"""`txlog consume`: print the rows of topics as lines of JSON, or as CSV, Parquet or Arrow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from txlog.cli.formats import FileFormat, RowOutput, row_output
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.options import Session, argument, option, parse_moment, parse_pairs
from txlog.cli.partitions import parse_partitions
from txlog.core.names import TopicPartition
from txlog.core.schema import OFFSET_COLUMN, OWN_COLUMNS, TIMESTAMP_COLUMN
from txlog.errors import InvalidRequestError, TxlogError
from txlog.text import count_text, duration_text

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.client import Consumer
    from txlog.clock import Clock

_POLL_MS = 500
"""How long one poll waits. The program reacts to Ctrl-C after this time at the latest."""
_PRINT_ROWS = 1000
"""How many rows are printed together. If Ctrl-C interrupts them, the group's next run prints them again."""
NOTICE_MS = 5000
"""After this time without rows the program says once which transactions other rows wait for."""

_Why: TypeAlias = Literal["enough", "quiet", "end"]


def consume(
    session: Session,
    names: Annotated[list[str], argument("TOPIC", "The topics.")],
    from_beginning: Annotated[
        bool, option("--from-beginning", "Start at the log start instead of the end if no offset is committed.")
    ] = False,
    partition: Annotated[str | None, option("--partition 0,1,…", "Only these partitions of one topic.")] = None,
    offset: Annotated[int | None, option("--offset N", "Start at this offset in each --partition.")] = None,
    to_offset: Annotated[int | None, option("--to-offset N", "End before this offset in each --partition.")] = None,
    until_timestamp: Annotated[
        str | None,
        option(
            "--until-timestamp TIME",
            "End before the first row that was appended at or after a time: 2013-01-31T05:17:00Z, or "
            "milliseconds since 1970.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        option("--columns NAME,…", "Only these columns. _topic, _partition, _offset and _timestamp are columns too."),
    ] = None,
    where: Annotated[
        str | None,
        option("--where CONDITION", "Only the rows for which this is true, as in \"amount > 5 AND country = 'FR'\"."),
    ] = None,
    latest: Annotated[
        bool,
        option(
            "--latest",
            "Only the newest committed row of each key, without tombstones, of all partitions as they are now. The "
            "command ends after them.",
        ),
    ] = False,
    file_format: Annotated[
        FileFormat, option("--format FORMAT", "json (one object on each line), csv, parquet or arrow.")
    ] = FileFormat.JSON,
    group_id: Annotated[
        str | None,
        option(
            "--group GROUP",
            "Continue from the committed offsets of this consumer group, and commit the rows that are printed.",
        ),
    ] = None,
    isolation_level: Annotated[
        str | None,
        option(
            "--isolation-level LEVEL",
            "read_committed, or read_uncommitted: rows of open and aborted transactions too. (default: read_committed)",
        ),
    ] = None,
    max_messages: Annotated[int | None, option("--max-messages N", "End after this number of rows.")] = None,
    timeout_ms: Annotated[int | None, option("--timeout-ms MS", "End if no row arrives for this long.")] = None,
    metadata: Annotated[
        bool, option("--metadata", "Also show _topic, _partition, _offset and _timestamp of each row.")
    ] = False,
    properties: Annotated[
        list[str] | None, option("--property KEY=VALUE", "A setting of the consumer; may be repeated.")
    ] = None,
) -> None:
    """Print rows until Ctrl-C or SIGTERM.

    `produce` can read the output in each format. Only committed rows are printed, unless --isolation-level is
    read_uncommitted. If rows wait behind an open transaction, a line on the standard error names the transaction.
    """
    if not names:
        raise InvalidRequestError("which topic? Name it after the command")
    if max_messages is not None and max_messages < 0:
        raise InvalidRequestError(f"--max-messages {max_messages}: expected a number of rows, at least 0")
    if timeout_ms is not None and timeout_ms < 0:
        raise InvalidRequestError(f"--timeout-ms {timeout_ms}: expected milliseconds, at least 0")
    chosen = _chosen_partitions(names, partition, offset, to_offset, group_id)
    until_ms = None if until_timestamp is None else parse_moment(until_timestamp, "--until-timestamp")
    asked = None if columns is None else [name.strip() for name in columns.split(",")]
    if asked is not None and metadata:
        asked = [*(name for name in OWN_COLUMNS if name not in asked), *asked]
    # An offset outside of the log is an error, not a jump to its end.
    reset = "none" if offset is not None else "earliest" if from_beginning else None
    config = {
        # The program commits exactly what it has printed, so no automatic commits.
        "enable.auto.commit": "false",
        **({"auto.offset.reset": reset} if reset is not None else {}),
        **({"isolation.level": isolation_level} if isolation_level is not None else {}),
        **parse_pairs(properties, "--property"),
    }
    store = session.store
    as_json = file_format is FileFormat.JSON
    if latest:
        others = {
            "--from-beginning": from_beginning,
            "--partition": partition is not None,
            "--until-timestamp": until_timestamp is not None,
            "--group": group_id is not None,
            "--isolation-level": isolation_level is not None,
            "--timeout-ms": timeout_ms is not None,
            "--property": bool(properties),
        }
        if given := [name for name, is_given in others.items() if is_given]:
            raise InvalidRequestError(f"{given[0]} and --latest exclude each other: --latest reads all committed rows")
    views = {name: _View.of(session, name, asked, where, as_json=as_json, metadata=metadata) for name in names}
    if len(views) > 1 and not as_json:
        raise InvalidRequestError(f"--format {file_format} needs one topic, because topics have their own columns")
    if latest:
        with Interrupts() as interrupts:
            output = row_output(file_format, views[names[0]].schema, interrupts)
            _print_latest(session, names, views, output, interrupts, where, max_messages)
        return
    with (
        Interrupts() as interrupts,
        store.consumer(*(() if chosen else names), group_id=group_id, config=config) as consumer,
    ):
        if chosen:
            consumer.assign(chosen)
        for tp in chosen if offset is not None else ():
            consumer.seek(tp, offset or 0)
        output = row_output(file_format, views[names[0]].schema, interrupts)
        printer = _Printer(consumer, interrupts, output, views, _Ends(consumer, to_offset, until_ms))
        waits = consumer.isolation_level == "read_committed"

        def say_what_waits() -> None:
            if waits:
                _say_what_waits(session, names, chosen)

        why = printer.run(store.runtime.clock, max_messages, timeout_ms, say_what_waits)
    if why == "quiet" or (why == "end" and until_ms is not None):
        say_what_waits()
    if not printer.printed and why != "enough" and sys.stderr.isatty():
        when = f"within {duration_text(timeout_ms or 0)}" if why == "quiet" else "before the end that was asked for"
        hint = "" if from_beginning or offset is not None else "; --from-beginning shows what is there already"
        typer.echo(f"No rows {when}{hint}.", err=True)


def _print_latest(
    session: Session,
    names: list[str],
    views: dict[str, _View],
    output: RowOutput,
    interrupts: Interrupts,
    where: str | None,
    max_messages: int | None,
) -> None:
    """Print the newest row of each key, topic by topic, all of one snapshot."""
    left = max_messages
    with interrupts.at_once():
        snapshot = session.store.snapshot(*names)
    for name in names:
        # JSON lines have all columns, like those of a consumer; the view chooses what is printed.
        schema = views[name].schema
        reader = snapshot.table(name).latest(schema.names if schema is not None else [*OWN_COLUMNS, "*"], where)
        while left != 0:
            with interrupts.at_once():
                batch = next(reader, None)
            if batch is None:
                break
            for start in range(0, batch.num_rows, _PRINT_ROWS):
                rows = batch.slice(start, _PRINT_ROWS if left is None else min(left, _PRINT_ROWS))
                interrupts.check()
                output.write(views[name].columns(rows))
                left = None if left is None else left - rows.num_rows
                if left == 0:
                    break
    output.close()


def _say_what_waits(session: Session, names: list[str], chosen: list[TopicPartition]) -> None:
    """Name the open transactions that hold committed rows back, because then rows may exist although none was
    printed."""
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
    names: list[str], partition: str | None, offset: int | None, to_offset: int | None, group_id: str | None
) -> list[TopicPartition]:
    if partition is None:
        for name, value in (("--offset", offset), ("--to-offset", to_offset)):
            if value is not None:
                raise InvalidRequestError(f"{name} needs --partition")
        return []
    if to_offset is not None and to_offset < 0:
        raise InvalidRequestError(f"--to-offset {to_offset}: expected an offset, at least 0")
    if len(names) != 1:
        raise InvalidRequestError(f"--partition needs one topic, and {len(names)} are named")
    if group_id is not None:
        raise InvalidRequestError(
            "--partition and --group exclude each other: the members of a group share its partitions"
        )
    return [TopicPartition(names[0], number) for number in parse_partitions(partition, "--partition")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """Which rows and columns of a topic are printed."""

    condition: Callable[[pa.RecordBatch], pa.RecordBatch] | None
    schema: pa.Schema | None
    """The columns of all batches. None: all that a batch has, because lines of JSON need not have the same ones."""
    metadata: bool
    """Without a schema: whether txlog's own columns are printed, too."""

    @classmethod
    def of(
        cls, session: Session, topic: str, asked: list[str] | None, where: str | None, *, as_json: bool, metadata: bool
    ) -> _View:
        """Raises SchemaMismatchError for a column that the topic does not have, InvalidRequestError for a wrong
        condition."""
        if asked is None and where is None and as_json:
            return cls(condition=None, schema=None, metadata=metadata)
        # Local imports, because they load what most runs do not need.
        from txlog.client.tables.table import ALL_COLUMNS, columns_of
        from txlog.client.tables.where import bind

        found = session.store.runtime.topic(topic, 0)
        condition = None if where is None else bind(where, found.schema, topic).keep
        if asked is None and not as_json:
            asked = [*(OWN_COLUMNS if metadata else ()), ALL_COLUMNS]
        schema = None if asked is None else columns_of(session.store.runtime, found, asked)
        return cls(condition=condition, schema=schema, metadata=metadata)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows, with all columns."""
        return batch if self.condition is None else self.condition(batch)

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns."""
        if self.schema is not None:
            return batch.select(self.schema.names)
        own = [name for name in batch.schema.names if name not in OWN_COLUMNS]
        return batch.select([*(name for name in OWN_COLUMNS if self.metadata), *own])


class _Ends:
    """Where the read ends in each partition: before an offset, or before the first row of a time. None: nowhere."""

    def __init__(self, consumer: Consumer, offset: int | None, until_ms: int | None) -> None:
        self._consumer = consumer
        self._offset = offset
        self._until_ms = until_ms
        self._reached: set[TopicPartition] = set()

    def cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows before the end. A partition with rows after it is not read further."""
        rows = batch.num_rows
        if self._offset is not None:
            rows = min(rows, _first_at(batch, OFFSET_COLUMN, self._offset))
        if self._until_ms is not None:
            rows = min(rows, _first_at(batch, TIMESTAMP_COLUMN, self._until_ms * 1000))
        if rows < batch.num_rows:
            ((tp, offset),) = _position(batch.slice(rows, 1)).items()
            self._consumer.seek(tp, offset)
            self._consumer.pause(tp)
            self._reached.add(tp)
        return batch.slice(0, rows)

    def are_reached(self, quiet_at_ms: int | None) -> bool:
        """Return whether all partitions are read to their end. `quiet_at_ms`: when a look began that found no row."""
        if (self._offset is None and self._until_ms is None) or self._consumer.awaited:
            return False
        assigned = self._consumer.assignment()
        self._reached.update(tp for tp in assigned if tp not in self._reached and self._is_reached(tp, quiet_at_ms))
        return self._reached.issuperset(assigned)

    def _is_reached(self, tp: TopicPartition, quiet_at_ms: int | None) -> bool:
        if self._offset is not None and self._consumer.position(tp) >= self._offset:
            return True
        return self._until_ms is not None and quiet_at_ms is not None and quiet_at_ms >= self._until_ms


class _Printer:
    """Print rows. If the consumer has a group, commit after each printed part."""

    def __init__(
        self, consumer: Consumer, interrupts: Interrupts, output: RowOutput, views: dict[str, _View], ends: _Ends
    ) -> None:
        self.printed = 0
        """How many rows were printed."""
        self._consumer = consumer
        self._interrupts = interrupts
        self._output = output
        self._views = views
        self._ends = ends
        self._positions: dict[TopicPartition, int] = {}
        """The offsets after printed rows that are not committed yet."""
        self._begun: set[TopicPartition] = set()
        """Partitions that rows came from."""
        self._awaited: set[str] = set()
        """The members of the group that the program has said it waits for."""

    def run(
        self, clock: Clock, max_messages: int | None, timeout_ms: int | None, say_what_waits: Callable[[], None]
    ) -> _Why:
        """Run until there are enough rows, or none came for too long, or the ends are reached. Raises Interrupted."""
        try:
            why = self._run(clock, max_messages, timeout_ms, say_what_waits)
        except (Interrupted, TxlogError) as error:
            # A second signal ends the program at once: the output has no end then.
            torn = isinstance(error, Interrupted) and error.torn
            self._finish(complete=not torn)
            if isinstance(error, Interrupted) and not torn:
                self._commit_others()
            raise
        self._finish()
        if why == "enough":
            self._commit_others()
        elif self._consumer.group_id is not None:
            self._consumer.commit()  # positions may have moved past rows that are not shown
        return why

    def _run(
        self, clock: Clock, max_messages: int | None, timeout_ms: int | None, say_what_waits: Callable[[], None]
    ) -> _Why:
        last_ms = clock.monotonic_ms()
        quiet_at_ms: int | None = None
        said = timeout_ms is not None
        while max_messages is None or self.printed < max_messages:
            if self._ends.are_reached(quiet_at_ms):
                return "end"
            left_ms = _POLL_MS if timeout_ms is None else max(last_ms + timeout_ms - clock.monotonic_ms(), 0)
            began_ms = clock.now_ms()
            batch = self._consumer.poll(min(left_ms, _POLL_MS))
            if batch is not None:
                # Before a signal ends the run: it commits where the rows begin that were not printed.
                self._print(self._ends.cut(batch), max_messages)
            self._interrupts.check()
            quiet_at_ms = began_ms if batch is None else None
            if batch is None:
                self._say_who_is_awaited()
            if batch is not None:
                last_ms = clock.monotonic_ms()
            elif timeout_ms is not None and clock.monotonic_ms() >= last_ms + timeout_ms:
                return "end" if self._ends.are_reached(quiet_at_ms) else "quiet"
            elif not said and clock.monotonic_ms() >= last_ms + NOTICE_MS:
                said = True
                say_what_waits()
        return "enough"

    def _say_who_is_awaited(self) -> None:
        awaited = self._consumer.awaited
        if awaited.keys() - self._awaited:
            # A local import, because it loads what most runs do not need.
            from txlog.client.consumer import awaited_text

            self._awaited |= awaited.keys()
            typer.echo(f"This consumer {awaited_text(awaited)}.", err=True)

    def _print(self, batch: pa.RecordBatch, max_messages: int | None) -> None:
        if batch.num_rows:
            ((tp, offset),) = _position(batch.slice(0, 1)).items()
            self._positions.setdefault(tp, offset)
            self._begun.add(tp)
        for start in range(0, batch.num_rows, _PRINT_ROWS):
            if max_messages is not None and self.printed >= max_messages:
                break  # a later part without a wanted row would move the offset past rows that were not printed
            part = batch.slice(start, _PRINT_ROWS)
            self._interrupts.check()
            view = self._views[part.column("_topic")[0].as_py()]
            rows = view.rows(part)
            if max_messages is not None and rows.num_rows > max_messages - self.printed:
                part = rows = rows.slice(0, max_messages - self.printed)
            if rows.num_rows:
                self._output.write(view.columns(rows))
                self.printed += rows.num_rows
            if part.num_rows:
                self._positions.update(_position(part.slice(part.num_rows - 1), after=1))
        if self._output.is_complete:
            self._commit()

    def _finish(self, *, complete: bool = True) -> None:
        """Write the end of the output, and commit the rows that can be read."""
        if complete:
            self._output.close()
        if complete or self._output.is_complete:
            self._commit()

    def _commit_others(self) -> None:
        """Commit the positions of the partitions that no row came from.

        Without a committed offset the next run of the group would begin at their ends, and pass over their rows.
        """
        if self._consumer.group_id is not None:
            self._positions = {
                tp: self._consumer.position(tp) for tp in self._consumer.assignment() if tp not in self._begun
            }
            self._commit()

    def _commit(self) -> None:
        positions, self._positions = self._positions, {}
        if self._consumer.group_id is not None and positions:
            self._consumer.commit(positions)


def _first_at(batch: pa.RecordBatch, column: str, value: int) -> int:
    """Return the number of the first row with at least this value. The values of the column never decrease."""
    import numpy as np
    import pyarrow as pa

    return int(np.searchsorted(batch.column(column).cast(pa.int64()).to_numpy(), value, "left"))


def _position(batch: pa.RecordBatch, after: int = 0) -> dict[TopicPartition, int]:
    """Return the partition of a batch of one row, and the row's offset plus `after`."""
    (row,) = batch.select(list(OWN_COLUMNS)).to_pylist()
    return {TopicPartition(row["_topic"], row["_partition"]): row["_offset"] + after}
