"""After the storm: was anything lost, doubled or torn, and did a fenced client commit?

First everything recovers as PROTOCOL.md promises: one maintenance pass, and an ordinary run of the pipelines. Then the
whole log is read at both levels. The checker of histories judges what every process asked and was answered, and
`lab.invariants` judges the bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import txlog
from lab.chaos import erasures, plan
from lab.chaos.plan import JOBS, MADE, PARTITIONS, Assignment, Place
from lab.chaos.published import Published, judge
from lab.chaos.roles import member, pipeline
from lab.chaos.workers import Worker, rows_of
from lab.histories.checker import Report, check
from lab.histories.events import End, Event, FetchOffsets, Isolation, OffsetRange, Poll, Row
from lab.histories.inspection import inspect_partition, inspect_transactions
from lab.histories.offsets import made_from
from lab.histories.recorder import read_history
from lab.invariants import Census, find_violations
from txlog.client.admin.descriptions import OffsetInfo
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import TransactionalIdNotFoundError
from txlog.maintenance.fsck import check_store
from txlog.protocol.context import Context

COLUMNS: dict[str, frozenset[str]] = {
    "lost": frozenset({"lost-write", "unseen", "ok-but-absent", "view-drift", "stale-read"}),
    "doubled": frozenset({"duplicate", "double-consume", "shared-read", "inconsistent-offsets"}),
    "torn": frozenset({"torn-transaction", "G1b-range", "offset-divergence"}),
    "fenced but committed": frozenset({"G1a", "fail-but-visible", "zombie-commit", "fence-leak", "changed-outcome"}),
}
"""The columns of the table, by anomalies of `lab.histories.anomaly`; "other" is the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The findings."""

    columns: dict[str, int]
    """All are 0 if the proof succeeds."""
    details: list[str]
    report: Report
    census: Census
    transactions: Counter[str]
    """By the answer that their client got."""
    stall_ms: int
    stall_where: str
    witness_pause_ms: int
    made: int
    """Rows that the groups made."""
    generations: int
    """Generations in which members of the shared group read rows."""
    readers: int
    """Members that did so."""
    versions: dict[str, int] = field(default_factory=dict)
    """Versions that each job has committed."""
    maintained: Counter[str] = field(default_factory=Counter)
    """The actions of maintenance rounds, as the reports name them, and their counts."""

    erased: erasures.Erasures | None = None
    """What was erased, if something was."""
    published: Published | None = None
    """The reads of other engines, if some polled."""

    @property
    def holds(self) -> bool:
        return not any(self.columns.values())


def recover(place: Place, instance: int, seed: int) -> None:
    """Run one maintenance pass after all open transactions are overdue, an ordinary run of both groups, and the last
    reads.

    The sessions of dead members are shorter than the transactions. Raises TxlogTimeoutError if a group cannot go on.
    """
    assignment = Assignment(place=place, role="pipeline", name="pipeline", instance=instance, seed=seed)
    worker = Worker(assignment)
    worker.deadline_ms = worker.clock.monotonic_ms() + plan.RECOVERY_MS
    with closing(worker):
        worker.clock.sleep_ms(plan.TRANSACTION_TIMEOUT_MS + 100)
        worker.store.admin().expire()
        pipeline(worker, until_idle=True)
        member(worker, until_idle=True)
        _last_looks(worker)


def prove(
    place: Place, failures: list[str], jobs: tuple[str, ...], *, is_polled: bool = False, erases: bool = False
) -> Proof:
    """Check the histories and the store, which must be at rest."""
    events = read_history(place.histories)
    report = check(events)
    with txlog.open(place.url, storage_options=place.storage_options) as store:
        census, violations = find_violations(store.runtime.store)
        versions = {name: _version_of(store, name) for name in jobs}
    final = _final_rows(events)
    published = erased = None
    with txlog.open(place.url, storage_options=place.storage_options) as store:
        if erases:
            erased = erasures.judge(place, store)
        if is_polled:
            published = judge(place, events, final, store.runtime.store, erased)
    lost, doubled, details = _check_versions(final, versions)
    made_lost, made_doubled = _check_made(final)
    columns = {
        column: sum(count for name, count in report.names.items() if name in names) for column, names in COLUMNS.items()
    }
    columns["lost"] += lost + made_lost
    columns["doubled"] += doubled + made_doubled
    columns["other"] = len(report.anomalies) - sum(
        count for name, count in report.names.items() if any(name in names for names in COLUMNS.values())
    )
    maintained, failed_steps = _maintained(place)
    if maintained:
        with txlog.open(place.url, storage_options=place.storage_options) as store:
            found = check_store(store.runtime.store).findings
        violations += [
            f"fsck: {each.path}: expected {each.expected}, found {each.found}" for each in found if each.kind != "note"
        ]
    failures = [*failures, *failed_steps]
    columns["broken invariants"] = len(violations)
    columns["failed processes"] = len(failures)
    if erased is not None:
        columns["wrong erasures"] = len(erased.details)
        details += erased.details
    if published is not None:
        columns["wrong reads of engines"] = published.wrong
        details += published.details
    said = json.loads((Path(place.histories) / "witness.json").read_text())
    shared = [event.what for event in events if isinstance(event.what, Poll) and event.what.group]
    return Proof(
        columns=columns,
        details=[*(str(each) for each in report.anomalies), *details, *violations, *failures],
        report=report,
        census=census,
        transactions=_outcomes(events),
        stall_ms=said["stall_ms"],
        stall_where=said["where"],
        witness_pause_ms=said["pause_ms"],
        made=sum(len(rows) for tp, rows in final.items() if tp.topic == MADE),
        generations=len({each.generation for each in shared}),
        readers=len({each.member for each in shared}),
        versions=versions,
        maintained=maintained,
        erased=erased,
        published=published,
    )


def _maintained(place: Place) -> tuple[Counter[str], list[str]]:
    """Return (what rounds of maintenance did, a sentence for each failure that is not retried)."""
    done: Counter[str] = Counter()
    failed = []
    for path in sorted(Path(place.histories).glob(f"*{plan.MAINTAINED_SUFFIX}")):
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # it was killed during the write
            said = json.loads(line)
            done["rounds"] += 1
            for step in said["steps"]:
                done.update({name: count for name, count in step["counts"].items() if name not in ("done", "left")})
                texts = [each["text"] for each in step["failed"]]
                failed += [
                    f"{path.name}: {step['step']}: {each}" for each in texts if not each.endswith("tries again)")
                ]
    return done, failed


def _last_looks(worker: Worker) -> None:
    recorder, store, process = worker.recorder, worker.store, worker.process
    ends = store.admin().list_offsets(list(PARTITIONS))
    levels: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
    for isolation in levels:
        for tp, info in ends.items():
            asked = Poll(topic=tp.topic, partition=tp.partition, isolation=isolation, start=0, final=True)

            def attempt(tp: TopicPartition = tp, asked: Poll = asked, info: OffsetInfo = info) -> Poll:
                rows: list[Row] = []
                with store.consumer(isolation_level=asked.isolation, auto_offset_reset="earliest") as consumer:
                    consumer.assign([tp])
                    for batch in consumer.iterate():
                        rows.extend(rows_of(batch))
                    end = consumer.position(tp)
                return Poll(
                    topic=tp.topic,
                    partition=tp.partition,
                    isolation=asked.isolation,
                    start=0,
                    end=end,
                    rows=tuple(rows),
                    log_start=info.log_start_offset,
                    last_stable=info.last_stable_offset,
                    log_end=info.log_end_offset,
                    final=True,
                )

            # Each audit is a separate process: it begins at 0, independent of the others.
            recorder.call(f"{process}-{isolation}-{tp}", asked, attempt)
    for group, topics in plan.INPUTS.items():
        tps = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS[topic])]

        def fetched(group: str = group, tps: list[TopicPartition] = tps) -> FetchOffsets:
            with store.consumer(group_id=group, enable_auto_commit=False) as consumer:
                found = consumer.committed(*tps)
            ranges = tuple(
                OffsetRange(
                    topic=tp.topic, partition=tp.partition, start=-1, end=value.offset if value is not None else -1
                )
                for tp, value in found.items()
            )
            return FetchOffsets(group=group, ranges=ranges, final=True)

        recorder.call(process, FetchOffsets(group=group, ranges=(), final=True), fetched)
    runtime = store.runtime
    context = Context(constants=runtime.constants)
    for tp in ends:
        recorder.single(process, runtime.run(inspect_partition(context, tp, final=True)))
    recorder.single(process, runtime.run(inspect_transactions(context)))


def _final_rows(events: list[Event]) -> dict[TopicPartition, tuple[Row, ...]]:
    """Return what read_committed shows at the end."""
    return {
        TopicPartition(event.what.topic, event.what.partition): event.what.rows
        for event in events
        if isinstance(event.what, Poll)
        and event.type == "ok"
        and event.what.final
        and event.what.isolation == "read_committed"
    }


def _check_versions(
    final: dict[TopicPartition, tuple[Row, ...]], versions: dict[str, int]
) -> tuple[int, int, list[str]]:
    """Return (lost, doubled, sentences): each committed version of a job exists once, and no other version exists."""
    seen = Counter(row.content for tp, rows in final.items() if tp.topic == JOBS for row in rows)
    lost = doubled = 0
    details = []
    expected = {
        plan.job_content(name, version): plan.JOB_ROWS for name, last in versions.items() for version in range(last + 1)
    }
    for content in sorted({*seen, *expected}):
        difference = seen[content] - expected.get(content, 0)
        if difference:
            details.append(f"{content}: {seen[content]} rows, expected {expected.get(content, 0)}")
        lost += max(-difference, 0)
        doubled += max(difference, 0)
    return lost, doubled, details


def _check_made(final: dict[TopicPartition, tuple[Row, ...]]) -> tuple[int, int]:
    """Return (lost, doubled) rows of the groups: each has read everything, so every input row must have one output
    row."""
    made = Counter(row.content for tp, rows in final.items() if tp.topic == MADE for row in rows)
    wanted = {
        made_from(group, tp, row.offset)
        for group, topics in plan.INPUTS.items()
        for tp, rows in final.items()
        if tp.topic in topics
        for row in rows
    }
    return sum(1 for each in wanted if not made[each]), sum(made.values()) - sum(1 for each in made if each in wanted)


def _outcomes(events: list[Event]) -> Counter[str]:
    """Return the transactions whose end was requested, by the best answer that their client got."""
    told: dict[str, str] = {}
    rank = ("unknown", "fenced", "timed out", "aborted", "skipped", "committed")
    for event in events:
        if not isinstance(event.what, End):
            continue
        outcome = "unknown"
        if event.type == "ok":
            outcome = event.what.outcome
        elif event.type == "info" and not event.error:
            outcome = "committed"  # a Spark write that returned: this attempt or an older one has committed its version
        elif event.type == "fail":
            outcome = "timed out" if "InvalidProducerEpoch" in event.error else "fenced"
        told[event.what.txn] = max(told.get(event.what.txn, "unknown"), outcome, key=rank.index)
    return Counter(told.values())


def _version_of(store: Store, name: str) -> int:
    try:
        return store.admin().describe_transaction(name).txn_version
    except TransactionalIdNotFoundError:
        return -1
