"""Was every row that readers saw written, and was every written row seen, once, whole and in its place?"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.events import NO_OFFSET, Assign, Ends, Isolation, Poll, Send, partition_of
from lab.histories.facts import Call, Facts, Transaction, Written
from txlog.core.names import TopicPartition

_OF_THE_TRANSACTION = (
    "TransactionAbortableError",
    "TransactionAbortedError",
    "ProducerFencedError",
    "InvalidProducerIdMappingError",
    "InvalidTxnStateError",
)
_UNCOMMITTED_LATER = ("read_committed", "read_uncommitted")
_DAMAGE = ("MissingObjectError", "CorruptRecordError", "CorruptLogError")


def check_values(facts: Facts) -> Iterator[Anomaly]:
    """malformed, checksum-escape, duplicate, inconsistent-offsets."""
    for written, send in facts.reused:
        yield anomaly("malformed", f"value {written.value} was sent twice", written.send.events, send.events)
    for value, sightings in facts.sightings.items():
        known = facts.written.get(value)
        if known is None:
            first = sightings[0]
            yield anomaly(
                "checksum-escape", f"nobody wrote {value}, read at offset {first.row.offset}", first.poll.events
            )
            continue
        for sighting in sightings:
            if known.content is not None and sighting.row.content != known.content:
                yield anomaly(
                    "checksum-escape",
                    f"row {value} was written with {known.content!r} and read with {sighting.row.content!r}",
                    known.send.events,
                    sighting.poll.events,
                )
                break
        places = {(partition_of(s.poll.what), s.row.offset): s.poll.events for s in reversed(sightings)}
        if known.acked_at >= 0:
            places.setdefault((known.tp, known.acked_at), known.send.events)
        wrong = [tp for tp, _ in places if tp != known.tp]
        if len(places) > 1 or wrong:
            where = ", ".join(f"{tp} offset {offset}" for tp, offset in sorted(places))
            yield anomaly(
                "duplicate",
                f"row {value}, sent to {known.tp}, stands at {where}",
                known.send.events,
                *places.values(),
            )
    for tp, at in _holders(facts).items():
        for offset, holders in at.items():
            if len(holders) > 1:
                yield anomaly(
                    "inconsistent-offsets",
                    f"{tp} offset {offset} held {sorted(holders)}",
                    *(call.events for call in holders.values()),
                )


def check_outcomes(facts: Facts) -> Iterator[Anomaly]:
    """G1a, fail-but-visible, changed-outcome, precommitted-read."""
    for txn in facts.all_transactions:
        answers = {end.what.outcome: end for end in txn.ends if end.status == "ok"}
        if "committed" in answers and len(answers) > 1:
            yield anomaly(
                "changed-outcome",
                f"{txn.name} was said to be {' and '.join(sorted(answers))}",
                *(end.events for end in txn.ends),
            )
    for value, sightings in facts.sightings.items():
        written = facts.written.get(value)
        if written is None or not written.never:
            continue
        committed = facts.seen_committed(value)
        if written.send.status == "fail" and (committed or not _only_aborts(written)):
            yield anomaly(
                "fail-but-visible",
                f"row {value} was refused ({written.send.error}), and stands at offset {sightings[0].row.offset}",
                written.send.events,
                sightings[0].poll.events,
            )
        elif committed:
            yield anomaly(
                "G1a",
                f"row {value} of {written.txn.name}, which is aborted, was read at offset {committed[0].row.offset}",
                written.events,
                committed[0].poll.events,
            )
    for poll in facts.polls:
        if poll.status != "ok" or not poll.what.txn or poll.what.isolation != "read_committed":
            continue
        for row in poll.what.rows:
            written = facts.written.get(row.value)
            if written is not None and written.txn.label == poll.what.txn:
                yield anomaly(
                    "precommitted-read",
                    f"{written.txn.name} read its own row {row.value}",
                    written.send.events,
                    poll.events,
                )
                break


def check_coverage(facts: Facts) -> Iterator[Anomaly]:
    """Rows that a read skipped: G1b-range, view-drift, lost-write, ok-but-absent, compaction-loss; unseen."""
    known = _known_offsets(facts)
    newest = _newest_of_keys(facts)
    reported: set[tuple[str, int]] = set()
    for poll in facts.polls:
        what = poll.what
        if poll.status != "ok" or what.end <= what.start:
            continue
        tp = partition_of(what)
        offsets, values = known.get(tp, ([], []))
        low = max(what.start, what.log_start, 0)
        returned = {row.value for row in what.rows}
        present = {facts.written[value].txn for value in returned if value in facts.written}
        for at in range(bisect_left(offsets, low), bisect_left(offsets, what.end)):
            written = values[at]
            if written.value in returned or _is_superseded(facts, written, newest):
                continue
            for name, text in _passed_over(facts, written, poll, present):
                if (name, written.value) not in reported:
                    reported.add((name, written.value))
                    where = f"{tp} offset {offsets[at]}, not in a {what.isolation} read of [{what.start}, {what.end})"
                    others = facts.seen_committed(written.value)[:1] if name == "view-drift" else []
                    yield anomaly(
                        name,
                        f"row {written.value} of {written.txn.name}: {text}; {where}",
                        written.events,
                        poll.events,
                        *(other.poll.events for other in others),
                    )
    yield from _unseen(facts, newest)


def check_resurrection(facts: Facts) -> Iterator[Anomaly]:
    """compaction-resurrect: a row that a process saw compacted away is shown to it again, or in the final read.

    Another process may know the older log as long as its views may be old. A read_uncommitted reader sees an aborted
    row until a maintenance pass has removed it.
    """
    newest = _newest_of_keys(facts)
    polls = [p for p in facts.polls if p.status == "ok" and p.what.topic in facts.compacted]
    for value, sightings in facts.sightings.items():
        written = facts.written.get(value)
        if written is None or written.never or not _is_superseded(facts, written, newest):
            continue
        offset = sightings[0].row.offset
        without = [
            poll
            for poll in polls
            if partition_of(poll.what) == written.tp
            and max(poll.what.start, poll.what.log_start, 0) <= offset < poll.what.end
            and all(row.value != value for row in poll.what.rows)
        ]
        for sighting in sightings:
            before = next((poll for poll in without if _knew(written, poll, sighting.poll)), None)
            if before is not None:
                yield anomaly(
                    "compaction-resurrect",
                    f"row {value} of key {written.key!r} was gone from {written.tp}, and came back at offset {offset}",
                    before.events,
                    sighting.poll.events,
                )
                break


def check_torn(facts: Facts) -> Iterator[Anomaly]:
    """torn-transaction: by the final reads, which show what stays visible."""
    final = _final_polls(facts)
    newest = _newest_of_keys(facts)
    for txn in facts.all_transactions:
        seen: list[int] = []
        unseen: list[int] = []
        proofs: list[Call[Poll]] = []
        for value in txn.values:
            written = facts.written[value]
            poll = final.get(written.tp)
            if poll is None or written.txn is not txn or _is_superseded(facts, written, newest):
                continue
            if _is_below_start(facts, written, poll):
                continue
            shown = any(row.value == value for row in poll.what.rows)
            (seen if shown else unseen).append(value)
            proofs.append(poll)
        if seen and unseen:
            yield anomaly(
                "torn-transaction",
                f"{txn.name}: of its rows {seen[:5]} are visible and {unseen[:5]} are not",
                txn.events,
                *(poll.events for poll in dict.fromkeys(proofs)),
            )


def check_deletions(facts: Facts) -> Iterator[Anomaly]:
    """deleted-but-visible, written-to-deleted."""
    for value, sightings in facts.sightings.items():
        written = facts.written.get(value)
        shown = next((s for s in sightings if written is not None and _is_deleted(written, s.poll)), None)
        if written is not None and shown is not None:
            yield anomaly(
                "deleted-but-visible",
                f"row {value}, made for version {written.schema_id} of {written.tp.topic}, was read at offset "
                f"{shown.row.offset} after version {shown.poll.what.deleted_version} had deleted it",
                written.send.events,
                shown.poll.events,
            )
    for written in facts.written.values():
        deletions = facts.deletions[written.tp.topic] if written.schema_id >= 0 else []
        deletion = next((each for each in deletions if each.what.version > written.schema_id), None)
        if deletion is not None and _accepted_after(written, deletion.ended):
            yield anomaly(
                "written-to-deleted",
                f"row {written.value}, made for version {written.schema_id} of {written.tp.topic}, was accepted after "
                f"version {deletion.what.version} had deleted it",
                deletion.events,
                written.events,
            )


def check_order(facts: Facts) -> Iterator[Anomaly]:
    """poll-skip, nonmonotonic-poll, nonmonotonic-send, and the same within a transaction: int-poll-skip,
    int-nonmonotonic-poll, int-nonmonotonic-send."""
    known = _known_offsets(facts, every=True)
    index = {tp: {w.value: at for at, w in enumerate(values)} for tp, (_, values) in known.items()}
    newest = _newest_of_keys(facts)
    # A reader skips the rows that a compaction may have removed.
    staying = {
        tp: [v for v in values if v.must and not _is_superseded(facts, v, newest)] for tp, (_, values) in known.items()
    }
    committed = {tp: {w.value: at for at, w in enumerate(values)} for tp, values in staying.items()}
    for calls in facts.by_process.values():
        yield from _poll_order(calls, committed, index)
    for calls in facts.by_process.values():
        sends = [call for call in calls if isinstance(call.what, Send)]
        yield from _send_order(facts, sends)


def check_damage(facts: Facts) -> Iterator[Anomaly]:
    """snapshot-hole, silent-gap."""
    for poll in facts.polls:
        what = poll.what
        if poll.status != "ok":
            name = poll.error.partition(":")[0]
            if name in _DAMAGE:
                yield anomaly("snapshot-hole", f"a read of {partition_of(what)} failed: {poll.error}", poll.events)
            elif name == "OffsetOutOfRangeError" and (inside := _within(facts, poll)) is not None:
                yield anomaly(
                    "snapshot-hole",
                    f"a read of {partition_of(what)} from {what.start}, which the log held, failed: {poll.error}",
                    inside.events,
                    poll.events,
                )
        elif what.start >= 0 and what.rows and (told := _log_start_above(facts, poll)) is not None:
            yield anomaly(
                "silent-gap",
                f"a read of {partition_of(what)} from {what.start}, below the log start "
                f"{told.what.log_start}, returned rows",
                told.events,
                poll.events,
            )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _only_aborts(written: Written) -> bool:
    """Return whether the error concerns only the transaction: it cannot commit, but read_uncommitted may return its
    rows."""
    return bool(written.txn.label) and written.send.error.partition(":")[0] in _OF_THE_TRANSACTION


_Newest: TypeAlias = Mapping[tuple[TopicPartition, str], Written | None]


def _holders(facts: Facts) -> dict[TopicPartition, dict[int, dict[int, Call[Send] | Call[Poll]]]]:
    """Return partition -> offset -> value -> the call that reported it. An aborted row also keeps its offset."""
    found: dict[TopicPartition, dict[int, dict[int, Call[Send] | Call[Poll]]]] = defaultdict(lambda: defaultdict(dict))
    for written in facts.written.values():
        if written.acked_at >= 0:
            found[written.tp][written.acked_at][written.value] = written.send
    for tp, rows in facts.rows_at.items():
        for offset, sightings in rows.items():
            for sighting in sightings:
                found[tp][offset].setdefault(sighting.row.value, sighting.poll)
    return found


def _known_offsets(facts: Facts, *, every: bool = False) -> dict[TopicPartition, tuple[list[int], list[Written]]]:
    """Return, for each partition, rows that must be visible (or every row) at their first known offset, in order."""
    found: dict[TopicPartition, list[tuple[int, int, Written]]] = defaultdict(list)
    for written in facts.written.values():
        if (every or written.must or not written.never) and (offsets := facts.offsets_of(written)):
            found[written.tp].append((offsets[0], written.value, written))
    ordered = {tp: sorted(rows, key=lambda row: row[:2]) for tp, rows in found.items()}
    return {tp: ([row[0] for row in rows], [row[2] for row in rows]) for tp, rows in ordered.items()}


def _passed_over(
    facts: Facts, written: Written, poll: Call[Poll], present: set[Transaction]
) -> Iterator[tuple[str, str]]:
    """Return the anomaly of a row that the poll did not return, although the poll covers its offset."""
    what = poll.what
    committed = what.isolation == "read_committed"
    if committed and written.txn in present and not written.never:
        yield "G1b-range", "other rows of it were shown"
    if not written.must:
        return
    if written.tp.topic in facts.compacted:
        yield "compaction-loss", "the newest of its key"
    elif facts.seen_committed(written.value):
        yield "view-drift", "shown by another read"
    elif written.txn.label:
        yield "lost-write", "committed, and nobody saw it"
    else:
        yield "ok-but-absent", "acknowledged"


def _unseen(facts: Facts, newest: _Newest) -> Iterator[Anomaly]:
    final = _final_polls(facts)
    shown = {tp: {row.value for row in poll.what.rows} for tp, poll in final.items()}
    for written in facts.written.values():
        poll = final.get(written.tp)
        if poll is None or not written.must or written.value in shown[written.tp]:
            continue
        if _is_superseded(facts, written, newest) or _is_below_start(facts, written, poll):
            continue
        if not written.txn.seen and written.txn.decided >= poll.began:
            continue
        yield anomaly(
            "unseen",
            f"row {written.value} of {written.txn.name} is committed and not in the final read of {written.tp}",
            written.events,
            poll.events,
        )


def _final_polls(facts: Facts) -> dict[TopicPartition, Call[Poll]]:
    return {
        partition_of(poll.what): poll
        for poll in facts.polls
        if poll.status == "ok" and poll.what.final and poll.what.isolation == "read_committed"
    }


def _is_deleted(written: Written, poll: Call[Poll]) -> bool:
    """Return whether `poll` found that the row's topic had been deleted since the row was made."""
    return 0 <= written.schema_id < poll.what.deleted_version


def _accepted_after(written: Written, moment: float) -> bool:
    """Return whether the log took a row only after `moment`: a staged row at its commit, any other row at its send."""
    if written.send.status != "ok":
        return False
    if written.acked_at >= 0:
        return written.send.began > moment
    asked = min((end.began for end in written.txn.ends if end.what.commit), default=0)
    return written.txn.outcome == "committed" and asked > moment


def _is_below_start(facts: Facts, written: Written, poll: Call[Poll]) -> bool:
    """Return whether retention, or the deletion of its topic, may have removed the row before `poll`."""
    if written.schema_id >= 0:
        # Without retention, a row that was not deleted exists, wherever the log starts.
        return _is_deleted(written, poll)
    offsets = facts.offsets_of(written)
    low = max(poll.what.log_start, poll.what.start)
    return offsets[0] < low if offsets else low > 0


def _knew(written: Written, before: Call[Poll], later: Call[Poll]) -> bool:
    """Return whether the reader of `later` must know that a row, which `before` skipped, was removed."""
    may_be_aborted = not written.must and (before.what.isolation, later.what.isolation) == _UNCOMMITTED_LATER
    return not may_be_aborted and before.ended < later.began and (before.process == later.process or later.what.final)


def _newest_of_keys(facts: Facts) -> _Newest:
    """Return the row of each key in compacted topics that is certainly the newest; None if it is not certain."""
    rows: dict[tuple[TopicPartition, str], list[Written]] = defaultdict(list)
    for written in facts.written.values():
        if written.tp.topic in facts.compacted and written.key is not None and not written.never:
            rows[written.tp, written.key].append(written)
    return {key: _surely_newest(facts, found) for key, found in rows.items()}


def _surely_newest(facts: Facts, rows: Sequence[Written]) -> Written | None:
    """Return the newest among the rows of a key that are committed, or may be; None if it is not certain."""
    offsets = {written.value: next(iter(facts.offsets_of(written)), NO_OFFSET) for written in rows}
    placed = [written for written in rows if written.must and offsets[written.value] >= 0]
    newest = max(placed, key=lambda written: offsets[written.value], default=rows[0])
    for other in rows:
        # A row that no reader ever saw may be newer, and may have been removed as tombstones are.
        older = 0 <= offsets[other.value] < offsets[newest.value] or other.txn.decided < newest.send.began
        if other is not newest and not older:
            return None
    return newest


def _is_superseded(facts: Facts, written: Written, newest: _Newest) -> bool:
    """Return whether compaction may have removed the row: a later row of its key may be committed, or it is a
    deletion."""
    if written.key is None or written.tp.topic not in facts.compacted:
        return False
    return written.deletes or newest.get((written.tp, written.key)) is not written


def _within(facts: Facts, poll: Call[Poll]) -> Call[Poll] | None:
    """Return an earlier poll which shows that the log held `poll`'s start, if no event shows that retention passed
    it."""
    tp, start = partition_of(poll.what), poll.what.start
    same = [other for other in facts.polls if other.status == "ok" and partition_of(other.what) == tp]
    if any(other.what.log_start > start for other in same):
        return None
    if any(
        each.status == "ok" and partition_of(each.what) == tp and each.what.log_start > start for each in facts.ends
    ):
        return None
    return next((o for o in same if o.ended < poll.began and max(o.what.end, o.what.log_end) >= start >= 0), None)


def _log_start_above(facts: Facts, poll: Call[Poll]) -> Call[Poll] | Call[Ends] | None:
    """Return a call that knew, with this read or before it, that the log starts above the start of the read."""
    tp, start = partition_of(poll.what), poll.what.start
    if poll.what.log_start > start:
        return poll
    for each in facts.log_starts[tp]:
        if each.ended < poll.began and each.what.log_start > start:
            return each
    return None


def _poll_order(
    calls: list[Call[Poll] | Call[Assign] | Call[Send]],
    committed: dict[TopicPartition, dict[int, int]],
    every: dict[TopicPartition, dict[int, int]],
) -> Iterator[Anomaly]:
    last: dict[tuple[TopicPartition, Isolation], tuple[int, Call[Poll]]] = {}
    for call in calls:
        what = call.what
        if isinstance(what, Assign):
            for tp, isolation in list(last):
                if what.topic in ("", tp.topic) and what.partition in (-1, tp.partition):
                    del last[tp, isolation]
            continue
        if not isinstance(what, Poll) or call.status != "ok":
            continue
        poll: Call[Poll] = call  # type: ignore[assignment]
        tp = partition_of(what)
        index = (committed if what.isolation == "read_committed" else every).get(tp, {})
        for row in what.rows:
            at = index.get(row.value)
            if at is None:
                continue
            before = last.get((tp, what.isolation))
            last[tp, what.isolation] = at, poll
            if before is None:
                continue
            step, other = at - before[0], before[1]
            # read_uncommitted may omit aborted rows that maintenance has removed.
            skips = step > 1 and what.isolation == "read_committed"
            if skips or step < 1:
                inside = "int-" if what.txn and what.txn == other.what.txn else ""
                name = f"{inside}poll-skip" if step > 1 else f"{inside}nonmonotonic-poll"
                yield anomaly(
                    name, f"{call.process} read row {row.value} of {tp}, {step} rows on", other.events, poll.events
                )


def _send_order(facts: Facts, sends: list[Call[Send]]) -> Iterator[Anomaly]:
    last: dict[TopicPartition, tuple[int, Written]] = {}
    for send in sends:
        for value in send.what.values:
            written = facts.written[value]
            offsets = facts.offsets_of(written)
            if written.send is not send or not offsets:
                continue
            before = last.get(written.tp)
            last[written.tp] = offsets[0], written
            if before is None or offsets[0] > before[0]:
                continue
            inside = "int-" if written.txn.label and written.txn is before[1].txn else ""
            yield anomaly(
                f"{inside}nonmonotonic-send",
                f"{send.process} sent row {before[1].value} before row {value}, and they stand at offsets {before[0]} "
                f"and {offsets[0]} of {written.tp}",
                before[1].send.events,
                send.events,
            )
