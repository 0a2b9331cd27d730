"""Which objects of a damaged store can be recreated?

Only objects that are pure functions of the log: `.snapshot`, and `.txnindex` and `.index` of generation 0, while the
records behind them exist (PROTOCOL.md, "Sealing"). Rows, records, decisions and lists of cleaned runs cannot be
computed: you can only restore them from a copy. Only partitions with findings are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core import names
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.fsck.findings import Finding
from txlog.maintenance.history import recorded
from txlog.protocol.repair import repair_partition


class RepairedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was damaged or missing, and whether it was (or can be) recreated."""

    path: str
    is_made: bool
    why: str
    """What was wrong with it and, if it was not recreated, why not."""


def repair(runtime: Runtime, findings: Iterable[Finding], *, dry_run: bool) -> tuple[RepairedObject, ...]:
    """Recreate what can be recreated in the partitions of `findings`. With `dry_run`, only report it.

    This is safe beside writers, readers and other repairs: whichever process creates an object first, the bytes are
    equivalent. The result has a reason for each object that cannot be recreated. The history lists each object that was
    recreated.
    """
    damaged = sorted(
        {tp for found in findings if found.kind != "note" and (tp := _partition_of(found.path)) is not None}
    )
    if damaged and not dry_run:
        runtime.ensure_writable()
    done: list[RepairedObject] = []
    with recorded(runtime, "repair") as history:
        for tp in damaged:
            try:
                found = runtime.run(repair_partition(runtime.context(), tp, dry_run=dry_run))
            except TxlogError as error:
                done.append(RepairedObject(path=tp.folder, is_made=False, why=error.problem))
                continue
            for each in found:
                done.append(RepairedObject(path=each.path, is_made=each.is_made, why=each.why))
                if each.is_made and not dry_run:
                    history.add(
                        tp,
                        "published",
                        base_offset=each.segment.base_offset,
                        end_offset=each.segment.end_offset,
                        message=f"{each.name}: {each.why}",
                    )
    return tuple(done)


def _partition_of(path: str) -> TopicPartition | None:
    topic, _, rest = path.partition("/")
    partition = names.parse_partition_folder(rest.partition("/")[0] + "/")
    return None if partition is None or not names.is_topic_name(topic) else TopicPartition(topic, partition)
