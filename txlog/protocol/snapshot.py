"""How is one cut over partitions and topics taken, in which every transaction is whole?

First the whole table of transactions is read, then the ends of the logs. So a transaction that the table shows complete
has all its markers below the ends. A transaction that began later is recognised by its epoch or its producer id
(PROTOCOL.md, "Reading"). A snapshot writes nothing and waits for no other process: a hanging transaction hides only
itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.core import names
from txlog.core.append_rules import marker_is_there
from txlog.core.effects import Gather, Program, ReadClocks
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.core.snapshots import SnapshotCut
from txlog.core.transactions import PREPARED
from txlog.protocol.context import Context, Views
from txlog.protocol.load import gather_fresh_views
from txlog.protocol.staged_lists import partitions_of


def fold_table(ctx: Context, views: Views) -> Program[tuple[Views, list[TransactionMetadata], tuple[int, ...]]]:
    """Return what the whole table of transactions holds now, and where each of its partitions ended."""
    table = [
        TopicPartition(names.TRANSACTION_STATE_TOPIC, n) for n in range(ctx.constants.transaction_state_partitions)
    ]
    views = yield from gather_fresh_views(ctx, views, table)
    rows = [row.value for tp in table for row in views[tp].state.transactions.values()]
    return views, rows, tuple(views[tp].state.next_offset for tp in table)


def take_snapshot(
    ctx: Context, views: Views, partitions: Iterable[TopicPartition]
) -> Program[tuple[Views, SnapshotCut]]:
    """Take one cut over `partitions`.

    Every commit that had returned before this call is in it. Each transaction is in it wholly or not at all. It holds a
    prefix of one id's transactions. Costs one GET per partition of the table and then one per partition, if their views
    are warm and nothing is new.
    """
    wanted = sorted(set(partitions))
    taken_at = yield ReadClocks()
    views, rows, table_ends = yield from fold_table(ctx, views)
    commits = [txn for txn in rows if txn.state == "PREPARE_COMMIT"]
    found = yield Gather(tuple(partitions_of(ctx, txn) for txn in commits))
    touched = {
        txn.producer_id: [tp for tp in tps if tp.topic not in INTERNAL_TOPICS]
        for txn, tps in zip(commits, found, strict=True)
        if not set(wanted).isdisjoint(tps)
    }
    views = yield from gather_fresh_views(
        ctx, views, sorted({*wanted, *(tp for tps in touched.values() for tp in tps)})
    )

    def settled(txn: TransactionMetadata) -> int:
        if txn.state not in PREPARED:
            return txn.producer_epoch
        # If it is prepared to abort, its rows are hidden. If it is prepared to commit, it is whole only with its marker
        # in every partition.
        whole = txn.state == "PREPARE_COMMIT" and all(
            marker_is_there(views[tp].state, txn.producer_id, txn.producer_epoch)
            for tp in touched.get(txn.producer_id, ())
        )
        return txn.producer_epoch if whole else txn.producer_epoch - 1

    return views, SnapshotCut(
        ends={tp: views[tp].state.next_offset for tp in wanted},
        settled={txn.producer_id: settled(txn) for txn in rows},
        table_ends=table_ends,
        taken_at=taken_at,
    )
