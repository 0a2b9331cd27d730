"""Did newer instances fence older ones, and is every transaction closed?"""

from __future__ import annotations

from collections.abc import Iterator

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.events import Begin, Init, Inspect, InspectTransactions, partition_of
from lab.histories.facts import Call, Facts
from txlog.core.names import TopicPartition


def check_fences(facts: Facts) -> Iterator[Anomaly]:
    """zombie-commit and fence-leak, from the answers of clients and from the log; hanging-txn, view-drift."""
    yield from _check_told(facts)
    for inspection in facts.inspections:
        if inspection.status == "ok":
            yield from _check_epochs(inspection)
            yield from _check_open(inspection)
    for poll in facts.polls:
        what = poll.what
        if poll.status == "ok" and what.final and 0 <= what.last_stable < what.log_end:
            yield anomaly(
                "hanging-txn",
                f"{partition_of(what)}: everything has recovered, and the last stable offset {what.last_stable} is "
                f"below the log end {what.log_end}",
                poll.events,
            )
    for table in facts.tables:
        if table.status == "ok":
            yield from _check_table(table)
    yield from _check_digests(facts)


def _check_told(facts: Facts) -> Iterator[Anomaly]:
    inits: dict[str, list[Call[Init]]] = {}
    for init in facts.inits:
        if init.status == "ok":
            inits.setdefault(init.what.transactional_id, []).append(init)
    for txn in facts.transactions.values():
        if txn.begin is None:
            continue
        begin: Call[Begin] = txn.begin
        newer = [init for init in inits.get(begin.what.transactional_id, ()) if _is_newer(init, begin)]
        if not newer:
            continue
        first = min(newer, key=lambda init: init.ended)
        for send in txn.sends:
            if send.status == "ok" and send.what.base_offset >= 0 and send.began > first.ended:
                yield anomaly(
                    "fence-leak",
                    f"{txn.name} of {begin.what.transactional_id!r}, epoch {begin.what.producer_epoch}, appended to "
                    f"{partition_of(send.what)} after epoch {first.what.producer_epoch} had been initialised",
                    first.events,
                    send.events,
                )
        commits = [end for end in txn.ends if end.what.commit or end.what.outcome == "committed"]
        # An earlier commit may have won without an answer; the repetition joins it.
        if any(end.what.outcome == "committed" for end in commits) and all(end.began > first.ended for end in commits):
            yield anomaly(
                "zombie-commit",
                f"{txn.name} of {begin.what.transactional_id!r}, epoch {begin.what.producer_epoch}, was committed "
                f"after epoch {first.what.producer_epoch} had been initialised",
                first.events,
                *(end.events for end in commits),
            )


def _is_newer(init: Call[Init], begin: Call[Begin]) -> bool:
    if init.what.producer_id == begin.what.producer_id:
        return init.what.producer_epoch > begin.what.producer_epoch
    return init.began > begin.ended


def _check_epochs(inspection: Call[Inspect]) -> Iterator[Anomaly]:
    newest: dict[int, int] = {}
    for batch in inspection.what.batches:
        if batch.producer_id < 0:
            continue
        seen = newest.get(batch.producer_id, -1)
        if batch.producer_epoch < seen:
            yield anomaly(
                "fence-leak",
                f"{partition_of(inspection.what)} offset {batch.base_offset}: a {batch.kind} batch of producer "
                f"{batch.producer_id}, epoch {batch.producer_epoch}, behind epoch {seen}",
                inspection.events,
            )
        newest[batch.producer_id] = max(seen, batch.producer_epoch)


def _check_open(inspection: Call[Inspect]) -> Iterator[Anomaly]:
    if inspection.what.final:
        for txn in inspection.what.open:
            yield anomaly(
                "hanging-txn",
                f"{partition_of(inspection.what)}: everything has recovered, and producer {txn.producer_id}, epoch "
                f"{txn.producer_epoch}, is open since offset {txn.first_offset}",
                inspection.events,
            )


def _check_table(table: Call[InspectTransactions]) -> Iterator[Anomaly]:
    """PREPARE_COMMIT of an epoch below one that an init had raised."""
    initialised: dict[str, tuple[int, int]] = {}
    for record in table.what.records:
        if record.state == "EMPTY":
            initialised[record.transactional_id] = record.producer_id, record.producer_epoch
        elif record.state == "PREPARE_COMMIT" and record.transactional_id in initialised:
            producer_id, epoch = initialised[record.transactional_id]
            if record.producer_id != producer_id or record.last_epoch < epoch:
                yield anomaly(
                    "zombie-commit",
                    f"{record.transactional_id!r}: PREPARE_COMMIT of producer {record.producer_id}, epoch "
                    f"{record.last_epoch}, at {record.offset} of the table, after the init of producer "
                    f"{producer_id}, epoch {epoch}",
                    table.events,
                )


def _check_digests(facts: Facts) -> Iterator[Anomaly]:
    seen: dict[tuple[TopicPartition, int], Call[Inspect]] = {}
    for inspection in facts.inspections:
        what = inspection.what
        if inspection.status != "ok" or not what.digest or not what.batches:
            continue
        key = partition_of(what), what.batches[-1].end_offset
        before = seen.setdefault(key, inspection)
        if before.what.digest != what.digest:
            yield anomaly(
                "view-drift",
                f"{key[0]}: two looks at a log that ends at {key[1]} found different last records",
                before.events,
                inspection.events,
            )
