"""Which objects of a partition are dead, why, and until when must they stay (PROTOCOL.md, C8 to C11)?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txlog.core import names, vacuum
from txlog.core.effects import Modified, Program
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, TransactionEntry, TransactionMetadata
from txlog.core.vacuum import NOT_KNOWN_YET, Dead, Kind, Why
from txlog.protocol.requests import many, modified
from txlog.protocol.vacuum_chain import ChainContent, read_record


def judge_drawn(
    tp: TopicPartition, files: Sequence[str], known: ChainContent, now_ms: int, grace_ms: int
) -> Program[dict[str, Why]]:
    """Return those unnamed files of drawn producer ids that are dead, each with the reason (C9)."""
    wanted = []
    for path in files:
        parsed = names.parse_rows_path(path)
        if parsed is not None and parsed.producer_id >= FIRST_DRAWN_PRODUCER_ID and path not in known.named:
            wanted.append(path)
    if not wanted:
        return {}
    last = known.view.tail[-1].record.base_offset if known.view.tail else None
    last_slot_ms = None if last is None else (yield Modified(tp.folder + names.batch_name(last)))
    times = yield from many([modified(f"{tp.topic}/{path}") for path in wanted])
    found = {}
    for path, modified_ms in zip(wanted, times, strict=True):
        why = vacuum.judge_drawn(modified_ms, last_slot_ms, now_ms, grace_ms)
        if why is not None:
            found[path] = why
    return found


def dead_files(
    tp: TopicPartition,
    files: Iterable[str],
    known: ChainContent,
    drawn: Mapping[str, Why],
    table: Mapping[int, TransactionMetadata],
) -> list[Dead]:
    found = []
    for path in files:
        parsed = names.parse_rows_path(path)
        if parsed is None or path in known.named:
            continue
        why = drawn.get(path) or vacuum.judge_producer(parsed.producer_id, parsed.producer_epoch, table)
        if why is not None:
            found.append(Dead(path=f"{tp.topic}/{path}", kind=Kind.ROWS, why=why))
    return found


def dead_staged_lists(
    tp: TopicPartition, staged_lists: Sequence[str], known: ChainContent, table: Mapping[int, TransactionMetadata]
) -> Program[list[Dead]]:
    whys = {}
    for name in staged_lists:
        parsed = names.parse_staged_list_name(name)
        why = None if parsed is None else vacuum.judge_producer(parsed[0], parsed[1], table)
        if why is not None:
            whys[name] = why
    if not whys:
        return []
    records = [stored.record for stored in known.view.tail]
    held = {record.base_offset for record in records}
    records += yield from many([read_record(tp, base) for base in known.folder.slots if base not in held])
    named = {
        entry.value.staged_object.name
        for record in records
        for entry in record.entries
        if isinstance(entry, TransactionEntry) and entry.value is not None and entry.value.staged_object is not None
    }
    return [
        Dead(path=tp.folder + name, kind=Kind.STAGED_LIST, why=why) for name, why in whys.items() if name not in named
    ]


_KINDS = {"index": Kind.INDEX, "txnindex": Kind.TXNINDEX, "parquet": Kind.SEGMENT_ROWS}


def dead_parts(
    tp: TopicPartition,
    known: ChainContent,
    bounds_ms: Mapping[int, int | None],
    boundary: int,
    now_ms: int,
    grace_ms: int,
) -> tuple[list[Dead], frozenset[str]]:
    """Return superseded objects of segments and runs, indexes first.

    The second value holds the names of those that no `.clean` lists yet.
    """
    internal = tp.topic in INTERNAL_TOPICS
    folder = known.folder
    runs = known.clean.runs if known.clean is not None else ()
    prefix = f"{tp.partition}/"
    named = {path.removeprefix(prefix) for path in known.named}
    gone_below = folder.listing.boundary if internal else known.state.log_start_offset
    superseded = vacuum.superseded_parts(folder, runs, gone_below, named, internal=internal)
    notes = vacuum.collect_notes(known.cleans)
    marks = set()
    found = []
    # An index is deleted before its transaction index. A reader that finds the index missing lists again, but an index
    # that announces a missing `.txnindex` is damage.
    for part in sorted(superseded, key=lambda each: (list(_KINDS).index(each.kind), each.segment)):
        why = superseded[part]
        if internal:
            since = vacuum.first_above(folder.boundaries, bounds_ms, part.segment.end_offset)
        else:
            since = vacuum.noted_since(part, notes)
            if since is None:
                marks.add(vacuum.note_of(part, why))
        waits = _wait(since, now_ms, grace_ms)
        if part.segment.generation == 0 and part.segment.end_offset > boundary:
            # The index's own age shows when the slots may be deleted, so it stays until then.
            waits = waits or NOT_KNOWN_YET
        found.append(
            Dead(path=tp.folder + vacuum.part_name(part), kind=_KINDS[part.kind], why=why, waits_until_ms=waits)
        )
    return found, frozenset(marks)


def dead_numbers(
    tp: TopicPartition, known: ChainContent, bounds_ms: Mapping[int, int | None], now_ms: int, grace_ms: int
) -> list[Dead]:
    """Return superseded snapshots, boundaries and lists of cleaned runs."""
    folder = known.folder
    cleans_ms = {clean.number: modified_ms for clean, modified_ms in known.cleans}
    return [
        Dead(
            path=tp.folder + name_of(number),
            kind=kind,
            why=why,
            waits_until_ms=_wait(times_ms.get(higher), now_ms, grace_ms),
        )
        for name_of, kind, why, old, times_ms in (
            (names.snapshot_name, Kind.SNAPSHOT, Why.OLD_SNAPSHOT, vacuum.old_snapshots(folder), bounds_ms),
            (names.boundary_name, Kind.BOUNDARY, Why.OLD_BOUNDARY, vacuum.old_numbers(folder.boundaries), bounds_ms),
            (names.clean_name, Kind.CLEAN, Why.OLD_CLEAN, vacuum.old_numbers(folder.cleans), cleans_ms),
        )
        for number, higher in old.items()
    ]


def _wait(since_ms: int | None, now_ms: int, grace_ms: int) -> int | None:
    """Return until when an object that was superseded at `since_ms` must stay; None if it may be deleted now."""
    if since_ms is None or since_ms == NOT_KNOWN_YET:
        return NOT_KNOWN_YET
    return None if now_ms - since_ms >= grace_ms else since_ms + grace_ms
