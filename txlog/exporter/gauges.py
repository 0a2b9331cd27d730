"""Which metrics of a store follow from what a look has found?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from txlog.core.cleaning import count_small
from txlog.core.fates import walk_batches
from txlog.core.names import TopicPartition, is_reserved
from txlog.core.transactions import IDLE, is_timed_out
from txlog.inspection.look import StoreState, aborted_in_tail, rows_end
from txlog.metrics.registry import Labels

Gauges: TypeAlias = dict[str, dict[Labels, float]]

OPEN_STATES = ("ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT")
JOBS = frozenset({"merge", "compact", "retention", "vacuum", "repair"})
"""Jobs that have their own label. A journal may name others, and labels must be bounded."""
OTHER_JOB = "other"


def gauges(seen: StoreState) -> Gauges:
    """Return all metrics of the store, by name and labels."""
    found: Gauges = {}
    for samples in (_topics, _partitions, _transactions, _groups, _published, _maintenance):
        for name, labels, value in samples(seen):
            found.setdefault(f"txlog_{name}", {})[labels] = value
    return found


_Samples: TypeAlias = Iterator[tuple[str, Labels, float]]


def _topics(seen: StoreState) -> _Samples:
    damaged = {name for name, _ in seen.damaged}
    yield "up", (), 1
    for name in {*seen.topics, *(name for name in damaged if name and not is_reserved(name))}:
        yield "topic_up", (name,), int(name not in damaged)


def _partitions(seen: StoreState) -> _Samples:
    # An init between the looks at the partition and at the id leaves no start.
    started = {row.value.producer_id: row.value.started_at for row in seen.transactions if row.value.started_at >= 0}
    for tp, view in seen.views.items():
        labels = _labels(tp)
        state = view.state
        yield "log_start_offset", labels, state.log_start_offset
        yield "last_stable_offset", labels, state.last_stable_offset
        yield "log_end_offset", labels, state.next_offset
        yield "lso_hold_offsets", labels, state.next_offset - state.last_stable_offset
        # The time of a producer is that of its last row, and its id knows when the transaction began.
        since = [
            min(entry.timestamp, started.get(entry.producer_id, entry.timestamp)) for entry in state.open_transactions
        ]
        yield "lso_hold_seconds", labels, _seconds(seen, min(since, default=seen.at_ms))
        walk = seen.walk(tp)
        sizes = seen.sizes[tp]
        tail = [stored.record for stored in view.tail]
        yield "segments", (*labels, "sealed"), len(walk)
        yield "segments", (*labels, "unsealed"), len({record.segment_base for record in tail})
        yield "tail_batches", labels, len(tail)
        tail_files = {file.path: file for record in tail for file in record.files}.values()
        yield "files", labels, sum(size.files for size in sizes.values()) + len(tail_files)
        yield "small_files", labels, sum(size.small_files for size in sizes.values()) + count_small(tail_files)
        tail_bytes = sum(file.bytes for file in tail_files) + sum(record.payload_bytes for record in tail)
        yield "log_size_bytes", labels, sum(size.bytes for size in sizes.values()) + tail_bytes
        yield "unmeasured_segments", labels, len(walk) - len(sizes)


def _transactions(seen: StoreState) -> _Samples:
    rows = [row.value for row in seen.transactions if row.value.state not in IDLE]
    for state in OPEN_STATES:
        yield "open_transactions", (state,), sum(txn.state == state for txn in rows)
    # A decided transaction may keep its state until the next one of its id begins, so its age means nothing.
    oldest = min((txn.started_at for txn in rows if txn.state == "ONGOING"), default=seen.at_ms)
    yield "oldest_open_transaction_seconds", (), _seconds(seen, oldest)
    yield "overdue_transactions", (), sum(is_timed_out(txn, seen.at_ms) for txn in rows)


def _groups(seen: StoreState) -> _Samples:
    for group in seen.groups:
        is_alone = group.member is not None and bool(group.member.member_id)
        yield "group_members", (group.group,), len(group.living) or int(is_alone)
        for tp, value in group.offsets.items():
            for name, lag in _lag(seen, tp, value.offset, None):
                yield f"group_lag_{name}", (group.group, *_labels(tp)), lag


def _published(seen: StoreState) -> _Samples:
    for topic, published in seen.published.items():
        worst: dict[str, float] = {}
        for number in range(seen.topics[topic].partitions):
            tp = TopicPartition(topic, number)
            shown = published.ends[number] if number < len(published.ends) else 0
            for name, lag in _lag(seen, tp, shown, _last_row(seen, tp)):
                # Offsets that wait add up over partitions, and the time is that of the oldest.
                worst[name] = worst.get(name, 0) + lag if name == "offsets" else max(worst.get(name, 0), lag)
        for name, lag in worst.items():
            for each in published.formats:
                yield f"publication_lag_{name}", (topic, each), lag


def _lag(seen: StoreState, tp: TopicPartition, offset: int, last_row: int | None) -> Iterator[tuple[str, float]]:
    """Yield how many offsets wait after `offset`, and for how long, if it is known.

    No offset waits from the end `last_row` on. None: all offsets up to the last stable one wait.
    """
    view = seen.views.get(tp)
    if view is None:
        return
    end = view.state.last_stable_offset
    first = max(offset, view.state.log_start_offset)
    if first >= (end if last_row is None else min(end, last_row)):
        yield "offsets", 0
        yield "seconds", 0
        return
    yield "offsets", end - first
    at_ms = seen.times.get((tp, first))
    if at_ms is not None:
        yield "seconds", _seconds(seen, at_ms)


def _last_row(seen: StoreState, tp: TopicPartition) -> int | None:
    """Return the end of the last visible row, if it is known: a table never shows the markers after it."""
    view = seen.views.get(tp)
    if view is None:
        return None
    stable = view.state.last_stable_offset
    records = [stored.record for stored in view.tail if stored.record.base_offset < stable]
    end = rows_end(walk_batches(tp=tp, indexes=(), tail=records, aborted=aborted_in_tail(view)))
    if end >= 0:
        return end
    for name in reversed(seen.walk(tp)):
        size = seen.sizes[tp].get(name)
        if size is None:
            return None
        if size.rows_end >= 0:
            return size.rows_end
    return -1


def _maintenance(seen: StoreState) -> _Samples:
    last: dict[str, tuple[float, float, float]] = {}
    for run in sorted(seen.runs, key=lambda run: run.ended_at):
        for job in {step.job for step in run.steps}:
            steps = [step for step in run.steps if step.job == job]
            last[job if job in JOBS else OTHER_JOB] = (
                max(step.ended_at for step in steps) / 1000,
                sum(step.rows_written for step in steps),
                sum(step.outcome == "failed" for step in steps),
            )
    for job, (ended, rows, failures) in last.items():
        yield "maintenance_last_run_timestamp_seconds", (job,), ended
        yield "maintenance_last_run_rows", (job,), rows
        yield "maintenance_last_run_failures", (job,), failures


def _labels(tp: TopicPartition) -> Labels:
    return tp.topic, str(tp.partition)


def _seconds(seen: StoreState, since_ms: int) -> float:
    return max(seen.at_ms - since_ms, 0) / 1000
