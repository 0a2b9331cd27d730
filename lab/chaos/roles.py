"""What does a process of a storm do until it is killed? One function is one role."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import typer

from lab.chaos import erasures, plan
from lab.chaos.plan import AUDIT, JOBS, MADE, ORDERS, PARTITIONS, Assignment, job_content
from lab.chaos.workers import Offsets, Worker, die_with_parent, rows_of
from lab.histories.events import Assign, CommitOffsets, Ends, FetchOffsets, OffsetRange, Poll, SendOffsets
from lab.histories.offsets import made_from
from txlog.cli import program
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.clock import SystemClock
from txlog.core.names import TopicPartition
from txlog.errors import (
    CommitFailedError,
    FencedError,
    OutcomeUnknownError,
    TxlogError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
)


def eager(worker: Worker) -> None:
    """A producer of transactions over several partitions and topics, whose rows enter the log when they are sent."""
    _producer(worker, is_staged=False)


def deferred(worker: Worker) -> None:
    """A producer whose rows wait for the commit, unless a send of the transaction asks for its offset."""
    _producer(worker, is_staged=None)


def staged(worker: Worker) -> None:
    """... and a producer whose rows enter the log with the commit."""
    _producer(worker, is_staged=True)


def plain(worker: Worker) -> None:
    """An idempotent producer without transactions."""
    with closing(worker.store.producer()) as producer:
        while not worker.stopping:
            topic = worker.random.choice((ORDERS, AUDIT))
            try:
                worker.send(producer, topic, worker.random.randrange(PARTITIONS[topic]), worker.random.randrange(1, 15))
            except (OutcomeUnknownError, TxlogTimeoutError):
                continue
            worker.pause(60)


def job(worker: Worker) -> None:
    """A batch job that commits version after version, each once, however often it starts."""
    with closing(worker.store.producer(worker.name, staged=True)) as producer:
        worker.init(producer)
        # A job whose predecessor died without a message does this: it repeats the last version, which must be skipped.
        version = max(worker.store.admin().describe_transaction(worker.name).txn_version, 0)
        while not worker.stopping:
            label = worker.label()
            contents = [job_content(worker.name, version)] * (plan.JOB_ROWS // PARTITIONS[JOBS])

            def body(label: str = label, contents: Sequence[str] = contents) -> None:
                for partition in range(PARTITIONS[JOBS]):
                    worker.send(producer, JOBS, partition, len(contents), label, contents)
                    worker.pause(20)

            if worker.transaction(producer, label, body, version):
                version += 1
            worker.pause(100)


def pipeline(worker: Worker, *, until_idle: bool = False) -> None:
    """Consume, transform, produce: a row of `made` for each row of `orders`, with its offset in the same
    transaction."""
    with (
        closing(worker.store.producer(worker.name)) as producer,
        worker.store.consumer(
            group_id=plan.PIPELINE_GROUP,
            group_instance_id=worker.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=500,
        ) as consumer,
    ):
        worker.init(producer)
        consumer.subscribe(ORDERS)
        done = _find_positions(worker, consumer)
        label = worker.label()
        while not worker.stopping:
            worker.check_deadline(f"group {plan.PIPELINE_GROUP!r} is at {done}")
            found = [worker.poll(consumer, label) for _ in range(worker.random.randrange(1, 4))]
            taken = [each for each in found if each is not None]
            if not taken:
                if until_idle:
                    return
                continue

            ends = {tp: end for tp, end, _ in taken}
            # A range begins at the end of the range before: markers and aborted rows in between also count as
            # processed.
            ranges = _ranges(ends, done)

            def body(taken: list[Any] = taken, label: str = label, ends: Offsets = ends, ranges: Any = ranges) -> None:
                for tp, _, batch in taken:
                    contents = [made_from(plan.PIPELINE_GROUP, tp, row.offset) for row in rows_of(batch)]
                    partition = worker.random.randrange(PARTITIONS[MADE])
                    waits = worker.random.random() < 0.5
                    worker.send(producer, MADE, partition, len(contents), label, contents, waits=waits)
                sent = SendOffsets(txn=label, group=plan.PIPELINE_GROUP, ranges=ranges)

                def attempt() -> SendOffsets:
                    producer.send_offsets_to_transaction(ends, consumer.group_metadata())
                    return sent

                worker.recorder.call(worker.process, sent, attempt)

            if worker.transaction(producer, label, body, abort=0 if until_idle else 0.1):
                done |= ends
            else:
                consumer.seek_to_committed()
                done = _find_positions(worker, consumer)
            label = worker.label()


def member(worker: Worker, *, until_idle: bool = False) -> None:
    """A pipeline whose group has several members. A member leaves after some transactions, and another one is started.

    Each process has another transactional.id. So no epoch fences a member that lost its partitions, except a static
    one: the group's generation does (KIP-447).
    """
    is_static = worker.name in plan.STATIC
    remaining = worker.random.randrange(5, 60)
    done: Offsets = {}
    ends: Offsets = {}
    taken: dict[TopicPartition, list[pa.RecordBatch]] = {}
    inputs = plan.INPUTS[plan.SHARED_GROUP]
    with (
        closing(worker.store.producer(worker.name if is_static else worker.process)) as producer,
        worker.store.consumer(
            group_id=plan.SHARED_GROUP,
            group_instance_id=worker.name if is_static else None,
            client_id=worker.process,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=200,
            # The recovery has no time limit: on a busy machine, short sessions would end again and again.
            config=plan.SHARED_CONFIG if not until_idle else {},
        ) as consumer,
    ):

        def begin_at(tps: Sequence[TopicPartition]) -> None:
            # For the other partitions, `done` has what this member has committed.
            done.update({**dict.fromkeys(tps, 0), **_find_positions(worker, consumer, tps)})

        def drop(tps: Sequence[TopicPartition]) -> None:
            for tp in tps:
                taken.pop(tp, None)
                ends.pop(tp, None)

        worker.init(producer)
        consumer.subscribe(inputs, on_assign=begin_at, on_revoke=drop, on_lost=drop)
        while not worker.stopping and (remaining or until_idle):
            worker.check_deadline(f"group {plan.SHARED_GROUP!r} is at {done}, and owns {consumer.assignment()}")
            label = worker.label()
            drop(tuple(taken))
            for _ in range(worker.random.randrange(1, 4)):
                polled = _poll_share(worker, consumer, label, done, ends)
                if polled is not None:
                    taken.setdefault(polled[0], []).append(polled[2])
                    ends[polled[0]] = polled[1]
            if not taken:
                if until_idle and len(consumer.assignment()) == sum(PARTITIONS[topic] for topic in inputs):
                    return
                continue
            if _process(worker, producer, consumer, label, taken, ends, done, may_abort=not until_idle):
                done |= ends
                remaining = max(remaining - 1, 0)
            else:
                consumer.seek_to_committed()
                begin_at(consumer.assignment())


def reader(worker: Worker) -> None:
    """A consumer with auto-commit."""
    with worker.store.consumer(
        group_id=worker.name, group_instance_id=worker.name, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe((ORDERS, AUDIT, JOBS, MADE))
        done = _find_positions(worker, consumer)
        ends: Offsets = {}
        while not worker.stopping:
            polled = worker.poll(consumer)
            if polled is not None:
                ends[polled[0]] = polled[1]
            if ends and worker.random.random() < 0.2:
                committed = CommitOffsets(group=worker.name, ranges=_ranges(ends, done))

                def attempt(committed: CommitOffsets = committed, ends: Offsets = ends) -> CommitOffsets:
                    consumer.commit(ends)
                    return committed

                worker.recorder.call(worker.process, committed, attempt)
                done |= ends
                ends = {}


def peeker(worker: Worker) -> None:
    """A read_uncommitted reader, from the log's end on."""
    with worker.store.consumer(
        ORDERS, AUDIT, isolation_level="read_uncommitted", auto_offset_reset="latest"
    ) as consumer:
        worker.recorder.single(worker.process, Assign())
        while not worker.stopping:
            worker.poll(consumer)
            worker.pause(50)


def witness(worker: Worker) -> None:
    """A reader that no fault hits: how long did it wait for rows that were already in the log?

    Writes `witness.json`: the longest time in which a partition's read_committed position stood still below the log
    end. The time in which this process did not run does not count. The file also has the longest such pause.
    """
    said: dict[str, Any] = {"stall_ms": 0, "where": "", "pause_ms": 0, "now_ms": 0}
    since: dict[TopicPartition, tuple[int, int]] = {}
    admin = worker.store.admin()
    topics = (ORDERS, AUDIT, JOBS, MADE)
    looked_ms = worker.clock.monotonic_ms()
    with worker.store.consumer(*topics, auto_offset_reset="earliest") as consumer:
        worker.recorder.single(worker.process, Assign())
        while not worker.stopping:
            # If the writers are faster, this loop has no other end.
            while not worker.stopping and worker.poll(consumer, timeout_ms=0) is not None:
                pass
            asked = {tp: Ends(topic=tp.topic, partition=tp.partition) for tp in consumer.assignment()}
            operations = {tp: worker.recorder.invoke(worker.process, what) for tp, what in asked.items()}
            ends = admin.list_offsets(topics)
            now_ms = worker.clock.monotonic_ms()
            pause_ms, looked_ms = now_ms - looked_ms, now_ms
            standing = 0
            for tp, info in ends.items():
                worker.recorder.ok(
                    worker.process,
                    operations[tp],
                    Ends(
                        topic=tp.topic,
                        partition=tp.partition,
                        log_start=info.log_start_offset,
                        last_stable=info.last_stable_offset,
                        log_end=info.log_end_offset,
                    ),
                )
                position = consumer.position(tp)
                if position >= info.log_end_offset or since.get(tp, (-1, 0))[0] != position:
                    since[tp] = position, now_ms
                    continue
                stall_ms = now_ms - since[tp][1]
                standing = max(standing, stall_ms)
                if stall_ms > said["stall_ms"]:
                    said |= {"stall_ms": stall_ms, "where": str(tp)}
            said |= {"pause_ms": max(said["pause_ms"], pause_ms), "now_ms": standing}
            _replace(worker.histories / "witness.json", json.dumps(said))
            worker.clock.sleep_ms(100)


def maintain(worker: Worker) -> None:
    """Run `txlog maintain --daemon` as shipped.

    The actions of its rounds go to a file beside the histories, a JSON line each.
    """
    place = worker.place
    options = [f"--storage-option={name}={json.dumps(value)}" for name, value in place.storage_options.items()]
    with (worker.histories / f"{worker.process}{plan.MAINTAINED_SUFFIX}").open("ab") as file:
        os.dup2(file.fileno(), 1)
    arguments = ["maintain", *plan.MAINTAIN_OPTIONS, "--store", place.url, *options, "--output", "json"]
    skew_ms = place.clock_skew_ms if worker.name == plan.AHEAD else -place.clock_skew_ms
    try:
        with clocks_wrong_by(skew_ms):
            typer.main.get_command(program.app).main(arguments, prog_name="txlog")
    except SystemExit as ended:
        if ended.code:
            # The command must not end without a signal, even after an error.
            raise TxlogError(f"txlog {' '.join(arguments[:2])} ended with status {ended.code}") from None


@contextmanager
def clocks_wrong_by(ms: int) -> Iterator[None]:
    """Set every wall clock that this process makes ahead by that much (below 0: behind)."""
    right = SystemClock.now_ms
    with patch.object(SystemClock, "now_ms", lambda clock: right(clock) + ms):
        yield


def _producer(worker: Worker, *, is_staged: bool | None) -> None:
    with closing(worker.store.producer(worker.name, staged=is_staged)) as producer:
        worker.init(producer)
        while not worker.stopping:
            label = worker.label()

            def body(label: str = label) -> None:
                for _ in range(worker.random.randrange(1, 4)):
                    topic = worker.random.choice((ORDERS, ORDERS, AUDIT))
                    partition = worker.random.randrange(PARTITIONS[topic])
                    waits = is_staged is not None or worker.random.random() < 0.2
                    worker.send(producer, topic, partition, worker.random.randrange(1, 15), label, waits=waits)
                    worker.pause(30)

            worker.transaction(producer, label, body)
            worker.pause(60)


def _poll_share(
    worker: Worker, consumer: Consumer, label: str, done: Offsets, ends: Offsets
) -> tuple[TopicPartition, int, pa.RecordBatch] | None:
    """Return the next rows of a member: (partition, position after them, rows).

    The poll may take and lose partitions, which changes `done` and `ends`. `on_assign` records what it takes. So the
    poll itself is recorded after it returned.
    """
    batch = consumer.poll(100)
    if batch is None:
        return None
    tp = TopicPartition(batch["_topic"][0].as_py(), batch["_partition"][0].as_py())
    rows, membership = rows_of(batch), consumer.group_metadata()
    polled = Poll(
        topic=tp.topic,
        partition=tp.partition,
        txn=label,
        start=ends.get(tp, done[tp]),
        end=rows[-1].offset + 1,
        rows=rows,
        group=membership.group_id,
        generation=membership.generation_id,
        member=worker.name if worker.name in plan.STATIC else membership.member_id,
    )
    worker.recorder.single(worker.process, polled)
    return tp, polled.end, batch


def _process(
    worker: Worker,
    producer: Producer,
    consumer: Consumer,
    label: str,
    taken: Mapping[TopicPartition, Sequence[pa.RecordBatch]],
    ends: Offsets,
    done: Offsets,
    *,
    may_abort: bool,
) -> bool:
    """Write a row for each row that a member has read, with the offsets; return whether that was committed."""

    def body() -> None:
        for tp, batches in taken.items():
            contents = [made_from(plan.SHARED_GROUP, tp, row.offset) for batch in batches for row in rows_of(batch)]
            worker.send(producer, MADE, worker.random.randrange(PARTITIONS[MADE]), len(contents), label, contents)
        worker.pause(50)
        sent = SendOffsets(txn=label, group=plan.SHARED_GROUP, ranges=_ranges(ends, done))

        def attempt() -> SendOffsets:
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            return sent

        worker.recorder.call(worker.process, sent, attempt)

    try:
        return worker.transaction(producer, label, body, abort=0.1 if may_abort else 0)
    except CommitFailedError:
        # The transaction is aborted. A later poll finds out why, and joins the group again.
        return False


def _find_positions(worker: Worker, consumer: Consumer, tps: Sequence[TopicPartition] | None = None) -> Offsets:
    """Record where the group continues, in all partitions of the consumer or in `tps`.

    Wait for an undecided transaction that holds newer offsets.
    """
    group = consumer.group_id
    assert group is not None
    if tps is None:
        tps = consumer.assignment()
    if not tps:
        return {}
    asked = FetchOffsets(group=group, ranges=_ranges(dict.fromkeys(tps, -1), {}))
    found: Offsets = {}

    def attempt() -> FetchOffsets:
        found.update({tp: value.offset for tp, value in consumer.committed(*tps).items() if value is not None})
        return FetchOffsets(group=group, ranges=_ranges({tp: found.get(tp, -1) for tp in tps}, {}))

    while True:
        try:
            worker.recorder.call(worker.process, asked, attempt)
            break
        except UnstableOffsetCommitError as error:
            worker.check_deadline(str(error))
    for tp in tps:
        worker.recorder.single(worker.process, Assign(topic=tp.topic, partition=tp.partition))
    return found


def _ranges(ends: Offsets, done: Offsets) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic=tp.topic, partition=tp.partition, start=done.get(tp, 0), end=end) for tp, end in ends.items()
    )


def _replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


ROLES: Mapping[str, Callable[[Worker], None]] = {
    "eager": eager,
    "staged": staged,
    "deferred": deferred,
    "plain": plain,
    "job": job,
    "pipeline": pipeline,
    "member": member,
    "reader": reader,
    "peeker": peeker,
    "witness": witness,
    "maintain": maintain,
    "write": erasures.write,
    "erase": erasures.erase,
}


def run(assignment: Assignment) -> None:
    """Run one process from start to end; ends in SystemExit."""
    die_with_parent()
    worker = Worker(assignment)
    signal.signal(signal.SIGTERM, worker.finish)
    # Ctrl-C reaches the whole group. The parent decides about the end of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(work(worker))


def work(worker: Worker) -> int:
    """Run the role, and return the exit status."""
    try:
        ROLES[worker.role](worker)
    except (FencedError, CommitFailedError):
        return plan.FENCED
    except TxlogError as error:
        print(f"{worker.process}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return plan.FAILED
    return 0
