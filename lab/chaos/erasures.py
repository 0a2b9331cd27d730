"""Do erased rows leave during a storm, whichever process is killed, and does every other row stay?

One role writes transactions to a topic with keys, whose newest rows are published. Another one erases rows there. Each
of them notes what it does in a separate file, because the checker of histories would take an erased row for a lost one.
Each row has its id as text. So an erasure names exactly its rows, and they were all in the log before it began.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from lab.chaos.plan import Place
from lab.chaos.workers import Worker
from txlog.client import reading
from txlog.client.store import Store
from txlog.errors import AbortableError, OutcomeUnknownError, TxlogError, TxlogTimeoutError
from txlog.maintenance.erase import finish_erasure
from txlog.maintenance.erase_check import find_remains
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum

PEOPLE = "people"
PARTITIONS = 2
KEYS = 60
SCHEMA = pa.schema(
    (pa.field("id", pa.int64(), nullable=False), pa.field("key", pa.int64()), pa.field("name", pa.string()))
)
CONFIG: Mapping[str, object] = {"key.columns": "key"}
LATEST: Mapping[str, object] = {"publish.rows": "latest"}
WAIT_MS = 3000
"""How long an erasure of a storm waits for open transactions. Then maintenance goes on with it."""
END_WAIT_MS = 60_000
_WRITTEN, _ERASED = ".written", ".erased"


@dataclass(slots=True, kw_only=True)
class Erasures:
    """What was erased, and what is wrong."""

    begun: int = 0
    finished_by_others: int = 0
    """Of those: the process died, or did not wait, and the rows are gone."""
    never_begun: int = 0
    """The process died before the erasure was recorded, and all rows are there."""
    rows: int = 0
    """Rows that are gone."""
    newest: frozenset[int] = frozenset()
    """The newest row of each key at the end."""
    possible: frozenset[int] = frozenset()
    """Rows that a published table may have shown."""
    details: list[str] = field(default_factory=list)

    def judge(self, ids: Sequence[int], *, is_last: bool) -> Counter[str]:
        """Return what is wrong with a read of the published table."""
        found = set(ids)
        counts = Counter(
            aborted=len(found - self.possible), doubled=len(ids) - len({key_of(number) for number in found})
        )
        if is_last:
            counts["lost"] = len(self.newest ^ found)
        return +counts


def key_of(number: int) -> int:
    """Return the key of a row."""
    return number % KEYS


def create(store: Store, config: Mapping[str, object], *, is_published: bool) -> None:
    """Create the topic."""
    store.create_topic(
        PEOPLE, SCHEMA, partitions=PARTITIONS, config={**config, **CONFIG, **(LATEST if is_published else {})}
    )


def write(worker: Worker) -> None:
    """Write transactions; some are aborted, and some stay open for a while."""
    noted = _Notes(worker.histories / f"{worker.process}{_WRITTEN}")
    count = 0
    with closing(worker.store.producer(worker.name, staged=worker.random.choice([None, False]))) as producer:
        producer.init_transactions()
        while not worker.stopping:
            numbers = [worker.first_id + count + at for at in range(worker.random.randrange(1, 20))]
            count += len(numbers)
            producer.begin_transaction()
            try:
                for at in range(0, len(numbers), 7):
                    part = numbers[at : at + 7]
                    producer.send(PEOPLE, [{"id": each, "key": key_of(each), "name": str(each)} for each in part])
                    producer.flush()
                    worker.pause(60)
                if worker.random.random() < 0.15:
                    producer.abort_transaction()
                    continue
                noted.add({"sent": numbers})
                producer.commit_transaction()
                noted.add({"committed": numbers})
            except (OutcomeUnknownError, TxlogTimeoutError):
                return
            except AbortableError:
                producer.abort_transaction()
            worker.pause(100)


def erase(worker: Worker) -> None:
    """Erase some committed rows again and again. A row is named once in a storm."""
    noted = _Notes(worker.histories / f"{worker.process}{_ERASED}")
    named = {number for each in _lines(worker.histories, _ERASED) for number in each.get("begun", ())}
    while not worker.stopping:
        there = worker.store.table(PEOPLE).scan(["id"]).read_all().to_pylist()
        choice: list[int] = sorted({row["id"] for row in there} - named)
        if not choice:
            worker.pause(500)
            continue
        numbers = worker.random.sample(choice, min(len(choice), worker.random.randrange(1, 9)))
        named.update(numbers)
        noted.add({"begun": numbers})
        try:
            worker.store.admin().erase(PEOPLE, where=_where(numbers), wait_ms=WAIT_MS)
        except TxlogTimeoutError:
            continue  # maintenance goes on with it
        noted.add({"done": numbers})
        worker.pause(700)


def finish(place: Place) -> None:
    """Go on with the erasures that are left after a storm. Raises TxlogError."""
    with txlog.open(place.url, storage_options=place.storage_options) as store:
        session = reading.read_session(store.runtime)
        for erasure in store.admin().list_erasures():
            for _, outcome in finish_erasure(session, erasure, wait_ms=END_WAIT_MS):
                if isinstance(outcome, TxlogError):
                    raise outcome


def judge(place: Place, store: Store) -> Erasures:
    """Compare the rows of the topic with the notes of all processes."""
    folder, made = Path(place.histories), Erasures()
    written, erased = _lines(folder, _WRITTEN), _lines(folder, _ERASED)
    committed = {number for each in written for number in each.get("committed", ())}
    sent = [each["sent"] for each in written if "sent" in each]
    done = [each["done"] for each in erased if "done" in each]
    begun = [each["begun"] for each in erased if "begun" in each]
    rows = store.table(PEOPLE).to_arrow().select(["id", "_partition", "_offset"]).to_pylist()
    counts = Counter(row["id"] for row in rows)
    made.details += [f"{PEOPLE}: row {number} is there {count} times" for number, count in counts.items() if count > 1]
    there, named = set(counts), {number for each in begun for number in each}
    for number in sorted(committed - named - there):
        made.details.append(f"{PEOPLE}: row {number} was committed and is lost")
    for number in sorted(there - {number for each in sent for number in each}):
        made.details.append(f"{PEOPLE}: row {number} was never committed")
    for transaction in sent:
        whole = set(transaction) - named
        if 0 < len(whole & there) < len(whole):
            made.details.append(f"{PEOPLE}: a part of the transaction with row {transaction[0]} is there")
    for numbers in begun:
        left = there & set(numbers)
        is_gone = not left
        made.begun += 1
        made.rows += len(numbers) if is_gone else 0
        if numbers in done and left:
            made.details.append(f"{PEOPLE}: rows {sorted(left)} were erased and are there")
        elif 0 < len(left) < len(numbers):
            made.details.append(f"{PEOPLE}: an erasure of rows {sorted(numbers)} has left {sorted(left)}")
        made.finished_by_others += is_gone and numbers not in done
        made.never_begun += len(left) == len(numbers)
    if store.admin().list_erasures():
        made.details.append(f"{PEOPLE}: an erasure has not ended")
    newest = {key_of(row["id"]): row["id"] for row in sorted(rows, key=lambda row: int(row["_offset"]))}
    made.newest = frozenset(newest.values())
    made.possible = frozenset(there | named)
    made.details += _remains(store, [numbers for numbers in begun if not there & set(numbers)])
    return made


def _remains(store: Store, gone: Sequence[Sequence[int]]) -> list[str]:
    """Delete all that nothing needs any more, as docs/delete-rows.md says, and search the objects for erased rows."""
    session, quiet = reading.read_session(store.runtime), 0
    while quiet < 2:
        topic = store.runtime.topic(PEOPLE, 0)
        for name, made in publish_topics(session, [topic]):
            if isinstance(made, Exception):
                return [f"{name}: it cannot be published: {made}"]
        quiet = 0 if vacuum(store.runtime, session, [PEOPLE], dry_run=False, now=True).deleted else quiet + 1
    numbers = [number for each in gone for number in each][:500]
    found = find_remains(session, PEOPLE, _where(numbers)) if numbers else ()
    return [f"{each.path} has {each.rows} erased rows" for each in found if each.path.startswith(f"{PEOPLE}/")]


def _where(numbers: Sequence[int]) -> str:
    return f"name IN ({', '.join(repr(str(number)) for number in numbers)})"


class _Notes:
    """A file with a line of JSON for each fact. It is complete up to a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, fact: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(fact).encode() + b"\n")


def _lines(folder: Path, suffix: str) -> list[dict[str, Any]]:
    def found() -> Iterator[dict[str, Any]]:
        for path in sorted(folder.glob(f"*{suffix}")):
            yield from (json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n")

    return list(found())
