"""How does a whole store look? Topics, transactions, groups, files and maintenance, as a page.

The look only reads. Its requests are bounded: it opens MAX_PARTITIONS partitions and reads MAX_INDEXES indexes, the
newest of each partition, and MAX_RUNS runs of maintenance. The page counts the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from txlog.client.admin.descriptions import GroupInfo, TransactionDescription
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core.names import TopicPartition
from txlog.core.records import CleanupRun
from txlog.drawing.values import Page, Section
from txlog.errors import CorruptLogError
from txlog.inspection.look import StoreMonitor
from txlog.inspection.partition_look import PartitionLook, look_at_partitions
from txlog.inspection.sections import (
    OVERDUE,
    Piece,
    Transaction,
    files_section,
    groups_section,
    journal_section,
    topic_section,
    transactions_section,
)
from txlog.protocol.table import state_partition
from txlog.text import bytes_text, count_text, duration_text, time_text

MAX_PARTITIONS = 500
MAX_INDEXES = 5_000
MAX_RUNS = 100
MAX_TRANSACTIONS = 150
MAX_STEPS = 300
MAX_DRAWN_TOPICS = 40
"""Further topics are tables only. A drawing costs 50 ms and 8 KB, even if it is empty."""
_MAX_SPANS = 6_000
"""Of all drawings together, so that the page stays below 2 MB."""
_OPEN = ("ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT")


def spans_of_each(partitions: int) -> int:
    """Return how many spans a band of a partition may have."""
    return min(max(_MAX_SPANS // max(partitions, 1) // 2, 6), 400)


def look(runtime: Runtime, topics: Sequence[str] = ()) -> Page:
    """Return a page about these topics (empty: all), and about the transactions, groups and maintenance of the store.

    Costs what the first look of a monitor costs (`inspection/look.py`), and one or two GETs for each index. Damaged
    partitions become warnings on the page.
    Raises UnknownTopicOrPartitionError, NotAStoreError.
    """
    runtime.require_store()
    for name in topics:
        runtime.topic(name, 0)
    seen = StoreMonitor(runtime, "inspection", max_runs=MAX_RUNS, max_partitions=MAX_PARTITIONS).look(topics)
    found = [seen.topics[name] for name in dict.fromkeys(topics or seen.topics) if name in seen.topics]
    every = [TopicPartition(topic.topic, number) for topic in found for number in range(topic.partitions)]
    opened = {tp: seen.views[tp] for tp in every[:MAX_PARTITIONS] if tp in seen.views}
    damaged: list[CorruptLogError] = []
    looks = look_at_partitions(
        Session(runtime, runtime.settings.client_config(), f"inspection of {runtime.where}"),
        opened,
        max_indexes=MAX_INDEXES,
        max_spans=spans_of_each(len(opened)),
        max_pieces=MAX_TRANSACTIONS,
        damaged=damaged,
    )
    now_ms = seen.at_ms
    ids = [
        TransactionDescription.of(row, state_partition(runtime.context(), row.value.transactional_id), now_ms)
        for row in seen.transactions
    ]
    groups = seen.group_infos(topics)
    transactions = _transactions(ids, [piece for each in looks.values() for piece in each.pieces], topics, now_ms)
    runs = seen.runs[::-1]
    steps = [(run.by, step) for run in runs for step in reversed(run.steps) if not topics or step.topic in topics]
    unopened = max(len(every) - MAX_PARTITIONS, 0)
    warnings = [str(error) for error in (*(error for _, error in seen.damaged), *damaged)]
    if unopened:
        warnings.append(f"{count_text(unopened, 'partition')} beyond the first {MAX_PARTITIONS:,} are left out.")
    return Page(
        title="txlog store",
        subtitle=f"{runtime.where}, read {time_text(now_ms)}. All times are UTC.",
        figures=_figures(len(found), looks, ids, groups, transactions, runs, now_ms),
        warnings=warnings,
        sections=[
            Section(
                title="Topics",
                note="Offsets grow to the right. The upper band of a partition is the state of its offsets, the lower "
                "one where its rows are stored. Aborted ones are drawn lower. A compaction or a merge leaves "
                "committed offsets without rows."
                + (f" Only {MAX_DRAWN_TOPICS} topics are drawn." if len(found) > MAX_DRAWN_TOPICS else ""),
            ),
            *topic_sections(looks.values()),
            transactions_section(
                transactions[:MAX_TRANSACTIONS],
                "The newest transactions that the log still shows, and open ones. A merge forgets who wrote old rows.",
            ),
            groups_section(groups),
            files_section(
                [point for each in looks.values() for point in each.files],
                "Each file counts at the append time of its last row.",
            ),
            journal_section(
                steps[:MAX_STEPS],
                f"The newest {MAX_STEPS} steps of the newest {MAX_RUNS} runs; `txlog history` has all." if runs else "",
            ),
        ],
    )


def topic_sections(looks: Iterable[PartitionLook]) -> list[Section]:
    """Return a section for each topic of these partitions."""
    topics: dict[str, list[PartitionLook]] = {}
    for each in looks:
        topics.setdefault(each.ribbon.topic, []).append(each)

    def rank(topic: str) -> tuple[int, int]:
        """Open transactions first, then the longest logs."""
        ribbons = [each.ribbon for each in topics[topic]]
        offsets = sum(each.log_end_offset - each.log_start_offset for each in ribbons)
        return -any(each.open_transactions for each in ribbons), -offsets

    drawn = sorted(topics, key=rank)[:MAX_DRAWN_TOPICS]
    sections = []
    for topic, parts in topics.items():
        unread = sum(each.unread for each in parts)
        note = f"{count_text(unread, 'old segment')} not read: only the offsets are known." if unread else ""
        section = topic_section(topic, [each.ribbon for each in parts], note)
        sections.append(section if topic in drawn else replace(section, drawing=None))
    return sections


def _state_of(txn: TransactionDescription) -> str:
    """Return the state of an id's last transaction, or that it is past its time-out."""
    return OVERDUE if txn.state == "ONGOING" and txn.duration_ms > txn.timeout_ms else txn.state


def transaction_of(txn: TransactionDescription, start_ms: int, end_ms: int, topics: Sequence[str] = ()) -> Transaction:
    """Return a transaction as its id knows it, without rows. It began at `start_ms` if its id has no start."""
    return Transaction(
        name=txn.transactional_id,
        state=_state_of(txn),
        start_ms=txn.started_at if txn.started_at >= 0 else start_ms,
        end_ms=end_ms,
        pieces=(),
        partitions=_registered(txn, topics),
    )


def _transactions(
    ids: Sequence[TransactionDescription], pieces: Sequence[Piece], topics: Sequence[str], now_ms: int
) -> list[Transaction]:
    """Return transactions, newest first: those that the log shows, and open ones without rows."""
    names = {each.producer_id: each for each in ids}
    together: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        together.setdefault((piece.producer_id, piece.producer_epoch), []).append(piece)
    made = []
    seen = set()
    for (pid, _), parts in together.items():
        known = names.get(pid)
        state = "COMPLETE_ABORT" if any(each.kind == "aborted" for each in parts) else "COMPLETE_COMMIT"
        is_open = any(each.kind == "open" for each in parts)
        if is_open:
            state = _state_of(known) if known is not None and known.state in _OPEN else "ONGOING"
            seen.add(pid)
        made.append(
            Transaction(
                name=known.transactional_id if known is not None else f"producer {pid}",
                state=state,
                start_ms=min(each.start_ms for each in parts),
                end_ms=now_ms if is_open else max(each.end_ms for each in parts),
                pieces=sorted(parts, key=lambda each: each.partition),
                partitions=_registered(known, topics) if known is not None and is_open else (),
            )
        )
    without_rows = [each for each in ids if each.state in _OPEN and each.producer_id not in seen]
    made += [transaction_of(each, now_ms, now_ms, topics) for each in without_rows]
    return sorted(made, key=lambda txn: (-txn.end_ms, -txn.start_ms, txn.name))


def _registered(txn: TransactionDescription, topics: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{topic}-{partition}" for topic, partition in txn.partitions if not topics or topic in topics)


def _figures(
    topics: int,
    looks: dict[TopicPartition, PartitionLook],
    ids: Sequence[TransactionDescription],
    groups: Sequence[GroupInfo],
    transactions: Sequence[Transaction],
    runs: Sequence[CleanupRun],
    now_ms: int,
) -> list[tuple[str, str]]:
    ribbons = [each.ribbon for each in looks.values()]
    opened = [txn for txn in transactions if txn.state in (*_OPEN, OVERDUE)]
    lags = [offset.lag for group in groups for offset in group.offsets if offset.lag is not None]
    waiting = sum(each.log_end_offset - each.last_stable_offset for each in ribbons)
    at_least = "at least " if any(each.unread for each in looks.values()) else ""

    def total(of: str) -> int:
        return sum(look.totals[of] for look in looks.values())

    oldest = f", oldest {duration_text(max(now_ms - txn.start_ms for txn in opened))}" if opened else ""
    return [
        ("topics", f"{topics:,}"),
        ("partitions", f"{len(ribbons):,}"),
        ("rows, also aborted and open", f"{at_least}{total('rows'):,}"),
        ("files", f"{at_least}{total('files'):,}"),
        ("size", f"{at_least}{bytes_text(total('bytes'))}"),
        ("transactional.ids", f"{len(ids):,}"),
        ("open transactions", f"{len(opened):,}{oldest}"),
        ("offsets above the LSO", f"{waiting:,}"),
        ("consumer groups", f"{len(groups):,}"),
        ("largest lag", f"{max(lags):,}" if lags else "-"),
        ("last maintenance", f"{duration_text(max(now_ms - runs[0].ended_at, 0))} ago" if runs else "never"),
    ]
