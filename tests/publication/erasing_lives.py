"""Random lives of a published topic in which rows are erased, and the bytes of the store when all delays have passed.

Each row has its number in each of its texts. So the bytes of a store show which rows it still holds.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.publication.table_readers import read_avro
from tests.publication.wild_lives import BETWEEN, NAMES, TOPIC, WildLife
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TRANSACTION_STATE_TOPIC
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError, TxlogError, TxlogTimeoutError
from txlog.maintenance.erase import begin_erasure, finish_erasure
from txlog.maintenance.erase_check import find_remains
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.vacuum import vacuum
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

DAY_MS = 86_400_000
DAYS = 80
"""After so many days with maintenance nothing of an erased row is left."""
ERASE_EVENTS = (
    *(f"erased by {what}" for what in ("one text", "several texts", "a range", "numbers", "a key", "no text")),
    "erased a committed row",
    "erased an aborted row",
    "erased a row of an open transaction",
    "erasure died",
    "erasure went on after columns had changed",
    "erasure waited for an open transaction",
    "erasure cancelled: its column was dropped",
    "erasure ended by maintain",
    "erasure ended by another process",
    "rows that were staged meanwhile stay",
    "between two requests: erase",
)
"""What all of these lives together must have had, beside the events of each wild life."""
_MARKER = re.compile(rb"~(\d{5})~")
_TEXT = re.compile(rb"~\d{5}~c\d+")
_PAYLOAD = re.compile(rb'"payload":"([A-Za-z0-9+/=]+)"')
_FRAMES: dict[bytes, Literal["zstd", "gzip"]] = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b\x08": "gzip"}
_Matches: TypeAlias = Callable[[Any], bool]


class ErasingLife(WildLife):
    """One life with erasures."""

    between = (*BETWEEN, "erase")

    def __init__(self, *given: Any, **more: Any) -> None:
        self._erasing: dict[str, tuple[set[int], int | None]] = {}
        """By the id of an erasure that has not ended: its rows, and the column of its condition."""
        self._born = 0
        """The first row of the topic; earlier ones are of deleted topics of the same name."""
        self._never: set[int] = set()
        """Rows that no erasure can take: they were lost with a store, or are not in the log yet."""
        self._unsure: set[int] = set()
        """Rows of erasures that were cancelled half way."""
        self._lost: set[str] = set()
        """Lists of Iceberg that may be of lost publications. Nothing knows them."""
        self._of_copy: Any = None
        super().__init__(*given, **more)
        # A merge takes aborted rows out, too. Without merges only erasures do.
        skip = frozenset(("merge", "compact") if given[0] % 3 == 0 else ())
        self._policy = MaintainPolicy(skip=skip)

    def _more_actions(self) -> list[Callable[[], None]]:
        erase = [self._erase] * 3 + [self._erase_and_die] * 2 + [self._begin_erasure] * 2
        return [*erase, self._erase_beside_staged, self._go_on, self._maintain]

    def step(self) -> None:
        super().step()
        self.committed -= self.erased

    # -- erasures -----------------------------------------------------------------------------------------------------

    def _erase(self) -> None:
        self._erase_with(self.world.open())

    def _erase_and_die(self) -> None:
        """An erasure dies before or after a request."""
        moment = self.random.choice(["before", "after"])
        fault = Fault(action="crash", moment=moment, number=self.random.randrange(1, 90))  # type: ignore[arg-type]
        failing = FailingStore(self.world.memory, fault)
        try:
            self._erase_with(self.world.open(failing), failing)
        except SimulatedCrash:
            self.events["erasure died"] += 1

    def _erase_with(self, store: Store, failing: FailingStore | None = None) -> None:
        where, matches, column = self._condition()
        before = self._listed()
        try:
            store.admin().erase(TOPIC, where=where, wait_ms=0)
        except TxlogError as error:
            # Also if an earlier erasure cannot end.
            self._may_fail(error)
        finally:
            ended = failing is None or any(each.startswith("delete '__erasures/") for each in failing.operations)
            if ended or self._listed() - before:
                self._note(before, matches, column)

    def _begin_erasure(self) -> None:
        """Let an erasure begin that later steps go on with, often after the columns have changed."""
        where, matches, column = self._condition()
        before = self._listed()
        begin_erasure(reading.read_session(self.world.open().runtime), TOPIC, where)
        self._note(before, matches, column)
        if self.random.random() < 0.6:
            before_change = self.world.open().runtime.topic(TOPIC, 0).schema_id
            self._columns()
            if self.world.open().runtime.topic(TOPIC, 0).schema_id != before_change:
                self.events["erasure went on after columns had changed"] += 1

    def _erase_beside_staged(self) -> None:
        """Rows that are staged when an erasure begins are later ones."""
        store = self._opened()
        producer = store.producer("staged", staged=True)
        producer.init_transactions()
        producer.begin_transaction()
        rows = self._send(store, producer, 4)
        producer.flush()
        self._never |= rows
        self._erase()
        producer.commit_transaction()
        producer.close()
        self._never -= rows
        self.committed |= rows
        self._whole.append(rows)
        self.events["rows that were staged meanwhile stay"] += 1

    def _go_on(self) -> None:
        """Another process goes on with the erasures."""
        store = self.world.open()
        session = reading.read_session(store.runtime)
        listed = store.admin().list_erasures()
        for erasure in listed:
            for _, outcome in finish_erasure(session, erasure, wait_ms=0):
                if isinstance(outcome, TxlogError):
                    self._may_fail(outcome)
        self._settle("another process", {each.erasure_id for each in listed})

    def _maintain(self) -> None:
        self.check(is_settled=False)
        self.look()
        listed = self._listed()
        report = Maintainer(self._opened_by_place().runtime, self._policy).run()
        failed = [each.text for step in report.steps for each in step.failed if "hint: report this" in each.text]
        assert not failed, failed
        self._settle("maintain", listed)
        self._copy = {}
        self._publish()
        self._judge_again()

    def _may_fail(self, error: TxlogError) -> None:
        self.told.append(f"  {error}"[:100])
        assert isinstance(error, TxlogTimeoutError | SchemaMismatchError), error
        self.events["erasure waited for an open transaction"] += isinstance(error, TxlogTimeoutError)

    def _note(self, before: set[str], matches: _Matches, column: int | None) -> None:
        """Take the rows of an erasure out of the model if it has begun. It takes those that were in the log then."""
        rows = {
            number
            for number in range(self._born, self.next_id)
            if number not in self._never and number not in self.erased and matches(self.rows[number])
        }
        opened = {number for _, some, _ in self._open.values() for number in some}
        self.events["erased a committed row"] += bool(rows & self.committed)
        self.events["erased a row of an open transaction"] += bool(rows & opened)
        self.events["erased an aborted row"] += bool(rows - opened - self.committed)
        self.erased |= rows
        self.committed -= rows
        for each in self._listed() - before:
            self._erasing[each] = rows, column
        self._settle("another process", before)

    def _settle(self, who: str, before: set[str]) -> None:
        """Forget erasures that have ended. Cancel some whose column was dropped."""
        listed = self._listed()
        self.events[f"erasure ended by {who}"] += bool(before - listed)
        self._erasing = {each: found for each, found in self._erasing.items() if each in listed}
        columns = {column.id for column in self.world.open().runtime.topic(TOPIC, 0).schema}
        for each, (rows, column) in list(self._erasing.items()):
            if column in columns or self._open or self.random.random() < 0.3:
                continue
            self.world.open().admin().cancel_erasure(each)
            del self._erasing[each]
            there = set(self.world.open().snapshot(TOPIC).table(TOPIC).to_arrow().column("id").to_pylist())
            back = (rows & there).difference(*(more for more, _ in self._erasing.values()))
            self.erased -= back
            self.committed |= back
            # The rows of aborted transactions are not in a snapshot. Some of them may have been erased.
            self._unsure |= rows - there
            self.events["erasure cancelled: its column was dropped"] += 1

    def _listed(self) -> set[str]:
        return {each.erasure_id for each in self.world.open().admin().list_erasures()}

    def _being_erased(self) -> set[int]:
        return set().union(*(rows for rows, _ in self._erasing.values()))

    def _condition(self) -> tuple[str, _Matches, int | None]:
        """Return a condition, whether the values of a row match it, and a column that it needs."""
        schema: Sequence[SchemaField] = self.world.open().runtime.topic(TOPIC, 0).schema
        known = {column.name: column for column in schema}
        texts = [column for column in schema if column.name in NAMES]
        kinds = ["numbers", "a key", *(["one text", "several texts", "a range", "no text"] if texts else [])]
        kind = self.random.choice(kinds)
        self.events[f"erased by {kind}"] += 1
        first = self.random.randrange(max(self.next_id, 1))
        last = first + self.random.randrange(1, 12)
        if kind == "numbers":
            n = known["n"].id
            return f"n >= {first * 3} AND n < {last * 3}", lambda values: first * 3 <= values[n] < last * 3, None
        if kind == "a key":
            key, wanted = known["key"].id, self.random.randrange(12)
            limit = self._born + 2 * (self.next_id - self._born) // 3
            where = f"key = {wanted} AND id < {limit}"
            return where, lambda values: values[key] == wanted and values[known["id"].id] < limit, None
        column = self.random.choice(texts)

        def of(values: dict[int, Any]) -> Any:
            return values.get(column.id, None if column.default is msgspec.UNSET else column.default)

        if kind == "no text":
            n = known["n"].id
            where = f"{column.name} IS NULL AND n BETWEEN {first * 3} AND {last * 3}"
            return where, lambda values: of(values) is None and first * 3 <= values[n] <= last * 3, column.id
        if kind == "a range":
            low, high = f"~{first:05d}", f"~{last:05d}"
            where = f"{column.name} >= '{low}' AND {column.name} < '{high}'"
            return where, lambda values: of(values) is not None and low <= of(values) < high, column.id
        numbers = [first] if kind == "one text" else list(range(first, last, 2))
        wanted_texts = [self._text(column.id, number) for number in numbers]
        where = f"{column.name} IN ({', '.join(map(repr, wanted_texts))})"
        return where, lambda values: of(values) in wanted_texts, column.id

    # -- the rest of the life -----------------------------------------------------------------------------------------

    def _text(self, column_id: int, number: int) -> str:
        return f"~{number:05d}~c{column_id}"

    def _in_between(self, what: str) -> None:
        if what == "erase":
            self._erase()
        else:
            super()._in_between(what)

    def _create(self) -> None:
        super()._create()
        self._born = self.next_id

    def _again(self) -> None:
        super()._again()
        # Erasures of a deleted topic end with it.
        self._go_on()

    def _end(self) -> None:
        super()._end()
        self.committed -= self.erased

    def _keep_copy(self) -> None:
        super()._keep_copy()
        self._of_copy = set(self.erased), dict(self._erasing), self.next_id, self._born

    def _go_on_with_copy(self) -> None:
        self._lost |= {path for path in self.objects() if path.startswith(f"{TOPIC}/metadata/")}
        super()._go_on_with_copy()

    def _take_back(self) -> None:
        super()._take_back()
        self.erased, self._erasing, first, self._born = self._of_copy
        self._never |= set(range(first, self.next_id))

    def _end_of_life(self) -> None:
        """Let all delays pass, and search the bytes of the store."""
        while self._open:
            self._end()
        for _ in range(20):
            self._go_on()
        assert not self._erasing, "erasures do not end"
        erased, found, left = self.erased - self._never - self._unsure, Markers(), {"": [0]}
        self.days = 0
        while left and self.days < DAYS:
            self.world.clock.advance_ms(DAY_MS)
            self.days += 1
            self._maintain()
            there = {path: data for path, data in self.objects().items() if path not in self._lost}
            left = found.remaining(there, erased)
            if self.days in (1, 5):
                known, texts = self._remains(erased)
                missed = [path for path in left if path not in known and texts & texts_in(path, there[path])]
                assert not missed, f"--verify does not name {missed}"
        assert not left, f"after {self.days} days: {left}"
        self._vacuum_now()
        # Statistics of a deleted file that may have had such rows are gone, too. Decisions of deleted topics stay.
        named = self._remains(erased)[0].keys() - self._lost
        assert not {path for path in named if not path.startswith(f"{TRANSACTION_STATE_TOPIC}/")}, "without delays"

    def _vacuum_now(self) -> None:
        """Do what the page says to a store that no other process uses: publish and vacuum in turn."""
        quiet = 0
        while quiet < 2:
            self.world.clock.advance_ms(1000)
            self._publish()
            store = self.world.open()
            report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False, now=True)
            assert not report.failed, report.failed
            quiet = 0 if report.deleted else quiet + 1
            # Older versions may be deleted.
            self._checks = []

    def _remains(self, erased: set[int]) -> tuple[dict[str, int], set[bytes]]:
        """Return the objects that `--verify` names, with the number of rows, and the values that it looked for."""
        store = self.world.open()
        session, remains, values = reading.read_session(store.runtime), dict[str, int](), set[bytes]()
        for column in store.runtime.topic(TOPIC, 0).schema:
            texts = [self._text(column.id, number) for number in sorted(erased)]
            if column.name in NAMES and texts:
                values.update(text.encode() for text in texts)
                where = f"{column.name} IN ({', '.join(map(repr, texts))})"
                for each in find_remains(session, TOPIC, where):
                    remains[each.path] = max(each.rows, remains.get(each.path, 0))
        return remains, values


class Markers:
    """Which rows are in an object, whatever form its bytes have?"""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], set[int]] = {}

    def remaining(self, objects: dict[str, bytes], erased: set[int]) -> dict[str, list[int]]:
        """Return the objects in which erased rows are found, with their numbers."""
        found = {path: sorted(self._of(path, data) & erased) for path, data in objects.items()}
        return {path: numbers for path, numbers in found.items() if numbers}

    def _of(self, path: str, data: bytes) -> set[int]:
        key = path, data
        if key not in self._known:
            self._known[key] = {int(number) for number in _MARKER.findall(decoded(path, data))}
        return self._known[key]


def texts_in(path: str, data: bytes) -> set[bytes]:
    return set(_TEXT.findall(decoded(path, data)))


def decoded(path: str, data: bytes) -> bytes:
    """Return the bytes of an object, and what they say when they are decompressed and decoded."""
    parts = [data]
    if path.endswith(".parquet"):
        file = pq.ParquetFile(BytesIO(data))
        # Also values of a dictionary that no row has.
        parts += [repr(file.read().to_pydict()).encode()]
    elif path.endswith(".avro"):
        parts.append(repr(read_avro(data)).encode())
    else:
        # A decision carries rows as text.
        for each in (data, *map(base64.b64decode, _PAYLOAD.findall(data))):
            parts += _decompressed(each)
    return b"".join(parts)


def _decompressed(data: bytes) -> Iterator[bytes]:
    for magic, codec in _FRAMES.items():
        at = data.find(magic)
        while at >= 0:
            try:
                with pa.CompressedInputStream(pa.BufferReader(data[at:]), codec) as stream:
                    yield stream.read()
            except OSError:
                pass  # these bytes begin no frame
            at = data.find(magic, at + 1)
