"""`txlog consume`: print the rows of topics as lines of JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.lines import write_lines
from txlog.cli.options import Session, TopicsOption, argument, option, parse_pairs
from txlog.cli.partitions import parse_partitions
from txlog.cli.rows import encode_row
from txlog.clock import Clock
from txlog.core.names import TopicPartition
from txlog.core.schema import OWN_COLUMNS
from txlog.errors import InvalidRequestError
from txlog.text import count_text, duration_text

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.client import Consumer

_POLL_MS = 500
"""How long one poll waits. The program reacts to Ctrl-C after this time at the latest."""
_PRINT_ROWS = 1000
"""How many rows are printed together. If Ctrl-C interrupts them, the group's next run prints them again."""


def consume(
    session: Session,
    topic: Annotated[list[str] | None, argument("TOPIC", "The topics.")] = None,
    topic_option: TopicsOption = None,
    from_beginning: Annotated[
        bool, option("--from-beginning", "Start at the log start instead of the end if no offset is committed.")
    ] = False,
    partition: Annotated[str | None, option("--partition 0,1,…", "Only these partitions of one topic.")] = None,
    offset: Annotated[int | None, option("--offset N", "Start at this offset in each --partition.")] = None,
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
