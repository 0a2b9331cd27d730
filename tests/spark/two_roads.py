"""Two stores that live the same life: in one `format("txlog")` is native, in the other it is the Python data source.

After each step both must give the same rows, in the same order in each partition, at the same offsets, the same counts,
versions and errors. What may differ is one table, in docs/spark.md. A difference whose row is not there fails the test.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyspark.sql import Observation, SparkSession

from pyspark_txlog import install, uninstall
from tests.spark.conftest import Log
from tests.spark.road_frames import Counts, Frame, build
from txlog.errors import GroupIdNotFoundError, TransactionalIdNotFoundError, TxlogError
from txlog.maintenance.fsck import check_store
from txlog.storage.open import open_object_store

Road: TypeAlias = Literal["native", "python"]
SPARK_PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TABLE_HEAD = "| what may differ | with `install()` | without |"
KEYLESS = "partitions of a stream's rows without a key"
STATE = "state of a query's `transactional.id` after a micro-batch that failed"
ROW_NUMBER = "number of bad values and of the first bad row in an error"
SKIPPED = "accumulators of a `save` that repeats a version"


def differences(page: Path = SPARK_PAGE) -> frozenset[str]:
    """Return what the table of docs/spark.md lets differ: the first column of each row."""
    lines = page.read_text().splitlines()
    rows = lines[lines.index(TABLE_HEAD) + 2 :]
    end = next((number for number, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return frozenset(row.split("|")[1].strip() for row in rows[:end])


@contextmanager
def on(road: Road) -> Iterator[None]:
    """Let `format("txlog")` use this road."""
    switch(road)
    try:
        yield
    finally:
        uninstall()


def switch(road: Road) -> None:
    (install if road == "native" else uninstall)()


# -- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """An error as the user sees it."""

    kind: str
    text: str


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CONDITION = re.compile(r"\[([A-Z_0-9.]+)\]")


def fault(error: BaseException, folder: str) -> Fault:
    """Return the error without what differs between any two stores: `folder`, ids, Spark's stack trace.

    Of an error that is not txlog's, only Spark's condition or the last line of Python's trace is kept.
    """
    text = str(error)
    if isinstance(error, TxlogError):
        kind, said = type(error).__name__, text
    elif found := re.findall(r"txlog\.errors\.(\w+): (.*)", text):
        kind, said = found[-1]
    elif raised := re.findall(r"^(\w*(?:Error|Exception)): (.*)", text, re.MULTILINE):
        kind, said = raised[-1]
    elif condition := _CONDITION.search(text):
        kind, said = condition[1], ""
    else:
        kind, said = type(error).__name__, text
    said = said.splitlines()[0] if said else ""
    return Fault(kind, _ID.sub("<id>", said.replace(folder, "<folder>")).rstrip())


class Twin:
    """One of the two stores."""

    def __init__(self, name: str, spark: SparkSession, folder: Path) -> None:
        self.name = name
        self.spark = spark
        self.folder = folder / name
        self.folder.mkdir()
        self.log = Log(str(self.folder / "log"), spark)

    def try_to(self, act: Callable[[], Any]) -> Any:
        """Return what `act` returns, or its error as a Fault."""
        try:
            return act()
        except Exception as error:
            return fault(error, str(self.folder))

    def save(self, frame: Frame, inputs: Path, topic: str | None, options: Mapping[str, Any], *, observed: bool) -> Any:
        """Write the frame; return Spark's counts, or a Fault."""
        passed = self.spark.sparkContext.accumulator(0) if frame.shape == "counted" else None
        counts = Counts(seen=Observation() if observed else None, passed=passed)

        def act() -> Mapping[str, Any]:
            rows = build(frame, self.spark, inputs, counts)
            try:
                self.log.write(rows, topic, **options)
            finally:
                rows.unpersist()
            observation: Any = counts.seen
            assert observation is None or observation._jo.future().isCompleted(), "the Observation waits for ever"
            return counts.found()

        with settings(self.spark, frame.settings):
            return self.try_to(act)

    def read(self, topic: str | None, options: Mapping[str, Any]) -> Any:
        """Return (schema, rows in any order, count) of a read, or a Fault."""

        def act() -> Any:
            found = self.log.read(topic, **options)
            return str(found.schema), Counter(map(str, found.collect())), found.count()

        return self.try_to(act)

    def rows(self, topic: str) -> dict[int, list[tuple[int, str]]]:
        """Return (offset, row) of each partition, as the client reads them."""
        found: dict[int, list[tuple[int, str]]] = {}
        consumer = self.log.store.consumer(topic, auto_offset_reset="earliest")
        for batch in consumer.iterate():
            for row in batch.to_pylist():
                place, offset, _ = row.pop("_partition"), row.pop("_offset"), row.pop("_timestamp")
                row.pop("_topic")
                found.setdefault(place, []).append((offset, str(row)))
        consumer.close()
        return found

    def ids(self) -> dict[str, tuple[Any, ...]]:
        """Return state, version and topics of each transactional.id, and the committed offsets of its group."""
        made = {}
        for txn in self.log.store.admin().list_transactions():
            offsets: list[Any] = []
            try:
                described = self.log.store.admin().describe_group(txn.transactional_id).offsets
                offsets = sorted((each.topic, each.partition, each.committed) for each in described)
            except (GroupIdNotFoundError, TransactionalIdNotFoundError):
                pass
            name = txn.transactional_id.replace(str(self.folder), "<folder>")
            made[name] = (txn.state, txn.txn_version, bool(txn.txn_scope), offsets)
        return made

    def close(self) -> None:
        report = check_store(open_object_store(self.log.url))
        assert report.is_clean, report.findings
        self.log.store.close()


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set values of the session during the block."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


# -- the comparison ---------------------------------------------------------------------------------------------------


@dataclass
class Judge:
    """Compares the twins. `used` counts the rows of the table that a comparison needed."""

    allowed: frozenset[str] = field(default_factory=differences)
    used: Counter[str] = field(default_factory=Counter)

    def may(self, difference: str) -> bool:
        """Note that the roads differ so; return whether the table lets them."""
        self.used[difference] += 1
        return difference in self.allowed

    def outcomes(self, native: Any, python: Any, what: object, *, skipped: bool = False) -> None:
        """Compare results or errors of one call. `skipped` says that it repeats a version, and nothing observes it."""
        if native == python:
            return
        if skipped and not isinstance(native, Fault) and not isinstance(python, Fault) and self.may(SKIPPED):
            return
        if isinstance(native, Fault) and isinstance(python, Fault) and "" not in (native.kind, python.kind):
            for row, is_so in ERRORS.items():
                if is_so(native, python) and self.may(row):
                    return
        assert native == python, (native, python, what)

    def rows(self, native: Twin, python: Twin, topic: str, what: object, *, keyless: Callable[[str], bool]) -> None:
        """Compare the rows of a topic. `keyless` tells rows, printed, that a stream may put into any partition."""
        ours, theirs = native.rows(topic), python.rows(topic)
        if ours == theirs:
            return
        if self._placed(ours, keyless) == self._placed(theirs, keyless) and self.may(KEYLESS):
            return
        for place in sorted({*ours, *theirs}):
            assert ours.get(place) == theirs.get(place), (topic, place, what)

    def ids(self, native: Twin, python: Twin, what: object) -> None:
        """Compare transactional.ids, with their groups' offsets."""
        ours, theirs = native.ids(), python.ids()
        if ours == theirs:
            return
        ended = {"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"}
        other = {name for name in ours if ours[name] != theirs.get(name)}
        streams = all(ours[name][2] for name in other) and ours.keys() == theirs.keys()
        if streams and all({ours[name][0], theirs[name][0]} <= ended for name in other) and self.may(STATE):
            ours, theirs = ({name: found[name][1:] for name in found} for found in (ours, theirs))
        assert ours == theirs, (ours, theirs, what)

    @staticmethod
    def _placed(rows: dict[int, list[tuple[int, str]]], keyless: Callable[[str], bool]) -> Any:
        """Return the rows with a key by partition, in their order, and all others."""
        kept = {place: [row for _, row in found if not keyless(row)] for place, found in rows.items()}
        rest = Counter(row for found in rows.values() for _, row in found if keyless(row))
        return {place: found for place, found in kept.items() if found}, rest


_NUMBERS = re.compile(r"(a value is|\d+ values are) null(, the first in row \d+)?")


def _same_but_numbers(native: Fault, python: Fault) -> bool:
    ours, theirs = (_NUMBERS.sub("", each.text) for each in (native, python))
    return native.kind == python.kind and ours == theirs


ERRORS: dict[str, Callable[[Fault, Fault], bool]] = {ROW_NUMBER: _same_but_numbers}
"""Rows of the table about errors: whether two errors differ as the row says."""
DIFFERENCES = frozenset({KEYLESS, STATE, SKIPPED, *ERRORS})
"""The rows of the table that this harness can judge."""
