"""A copy of an older store in memory, and today's programs that work with it."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import typer

import txlog
from lab.older_writers import next_control_of_v1
from lab.testing.damage import overwrite
from tests.cli.support import Done
from tests.golden.answers import HERE
from tests.maintenance.damage import objects_of
from tests.older.state import State, look
from tests.second_reader.compare import differences
from txlog.cli.program import app
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.core.features import STAGED_COMMIT, TXN_V2
from txlog.core.names import TopicPartition
from txlog.errors import CorruptRecordError
from txlog.maintenance.fsck import check_store
from txlog.protocol.stores import create_store
from txlog.storage.memory import shared_memory_store
from txlog.testing.clock import ManualClock

HOUR_MS = 3_600_000
NOW_MS = 1_764_000_000_000 + 30 * HOUR_MS
"""After the end of each golden store's story."""
PROGRAM: Any = typer.main.get_command(app)
NUMBERS = itertools.count()


class Clock(ManualClock):
    """A clock on which a program that waits for a signal gets it."""

    def __init__(self) -> None:
        super().__init__(NOW_MS, oversleeps_ms=3)
        self.before_signal: Any = None

    def sleep_ms(self, ms: int) -> None:
        if self.before_signal is not None and ms >= 24 * HOUR_MS:
            self.before_signal()
            self.before_signal = None
            signal.raise_signal(signal.SIGTERM)
        super().sleep_ms(ms)


class Life:
    """One store. Its clock moves only when a program sleeps or in a case that asks for it."""

    def __init__(self, clock: Clock, scratch: Path, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.clock = clock
        self.scratch = scratch
        self.url = f"memory://older-{next(NUMBERS)}"
        self.memory = shared_memory_store(self.url.removeprefix("memory://"))
        self.opened: list[Store] = []
        self.left: list[Producer] = []
        """Producers that died."""
        self.made = 0
        self.deleted: list[str] = []
        """Topics that cases have deleted."""
        self.erased: set[tuple[TopicPartition, int]] = set()
        """Rows that erasures of cases remove, or will remove."""

    @classmethod
    @contextlib.contextmanager
    def of(cls, name: str, scratch: Path, seed: int = 0) -> Iterator[Life]:
        """Yield a life of one of STORES."""
        fill = STORES[name]
        clock = Clock()
        with contextlib.ExitStack() as stack:
            for where in (
                "client.session.runtime",
                "storage.memory",
                "exporter.exporter",
                "maintenance.fsck.store_check",
            ):
                stack.enter_context(mock.patch(f"txlog.{where}.SystemClock", return_value=clock))
            life = cls(clock, scratch, seed)
            try:
                fill(life)
                yield life
            finally:
                life.close()

    def close(self) -> None:
        """End the programs, as a crash does."""
        for store in self.opened:
            store.runtime.close()
        self.opened.clear()
        for path in objects_of(self.memory):
            self.memory.delete(path)

    # -- programs -------------------------------------------------------------------------------------------------

    def cli(self, *args: str | int | Path, stdin: str = "", status: int | None = 0) -> Done:
        """Run `txlog ARGS`, and check its exit status, unless `status` is None."""
        streams = [io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8") for text in (stdin, "", "")]
        # Not tests.cli.support.run, which builds the command line of the whole program each time.
        with (
            contextlib.redirect_stdout(streams[1]),
            contextlib.redirect_stderr(streams[2]),
            mock.patch("sys.stdin", streams[0]),
            pytest.raises(SystemExit) as ended,
        ):
            PROGRAM.main([*map(str, args), "--store", self.url], prog_name="txlog")
        for each in streams[1:]:
            each.flush()
        out, err = (each.buffer.getvalue().decode() for each in streams[1:])
        done = Done(status=int(ended.value.code or 0), out=out, err=err)
        assert status is None or done.status == status, (args, done)
        return done

    def open(self, **config: object) -> Store:
        """Open the store as another program."""
        settings = {"linger.ms": 0, **{name.replace("_", "."): value for name, value in config.items()}}
        store = txlog.open(self.url, config=settings)
        self.opened.append(store)
        return store

    # -- what there is --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return what a new reader sees."""
        with txlog.open(self.url) as store:
            return look(store)

    def objects(self) -> dict[str, bytes]:
        """Return the store's objects, without the probe's."""
        return {path: data for path, data in objects_of(self.memory).items() if not path.startswith("__probe/")}

    def damages(self) -> list[str]:
        """Return what a check of the whole store finds."""
        report = check_store(self.memory, clock=self.clock)
        return [] if report.is_clean else [str(each) for each in report.findings]

    def second_reader(self) -> list[str]:
        """Return what the second reader sees differently."""
        self.made += 1
        folder = self.scratch / str(self.made)
        for path, data in self.objects().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        return differences(folder)

    def features(self) -> tuple[str, ...]:
        """Return the features of the store."""
        with txlog.open(self.url) as store:
            return store.runtime.require_store().features

    def pick(self, found: Any) -> Any:
        """Return one of some names, or None if there is none."""
        names = sorted(found)
        return self.dice.choice(names) if names else None

    def name(self, prefix: str) -> str:
        """Return a name that the store does not have."""
        self.made += 1
        return f"{prefix}{self.made}"


def copy(folder: Path, life: Life) -> None:
    """Copy a golden store."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            overwrite(life.memory, path.relative_to(folder).as_posix(), path.read_bytes())


def write(life: Life) -> None:
    """Write what only older programs left: no features, a deletion inside a segment, a setting that has no effect."""
    columns = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
    first = life.open()
    first.runtime.run(create_store(first.runtime.constants, features=(STAGED_COMMIT, TXN_V2)))
    store = life.open()
    config = {"segment.batches": 4, "key.columns": "id"}

    def send(topic: str, rows: int, **kind: Any) -> None:
        for number in range(rows):
            with life.open().producer(**kind) as producer:
                producer.send(topic, [{"id": number % 5, "name": f"n{number}"}]).result()

    store.create_topic("again", pa.schema((("other", pa.binary()), ("id", pa.string()))), config=config)
    for number in range(3):
        with life.open().producer() as producer:
            producer.send("again", [{"other": b"x", "id": str(number)}]).result()
    with mock.patch("txlog.protocol.append.next_control", next_control_of_v1):
        store.delete_topic("again")
    store.create_topic("again", columns, config=config)
    with mock.patch("txlog.protocol.seal._seal_one", side_effect=CorruptRecordError("an older program stops here")):
        send("again", 6)
    store.create_topic("latest", columns, 1, {**config, "cleanup.policy": "compact"})
    send("latest", 9)
    store.create_topic("asked", columns, 2, {"segment.batches": 2})
    with mock.patch("txlog.protocol.topic_changes.PUBLICATION", TXN_V2):
        store.alter_topic("asked", config={"publish.formats": "delta"})
    send("asked", 5)
    with life.open().producer("nightly", staged=True) as producer:
        producer.begin_transaction(version=1)
        producer.send("asked", [{"id": 1, "name": "a"}])
        producer.send_offsets_to_transaction({TopicPartition("again", 0): 5}, "etl")
        producer.commit_transaction()
    open_one = life.open().producer("open", staged=False)
    life.left.append(open_one)
    open_one.init_transactions()
    open_one.begin_transaction()
    open_one.send("asked", [{"id": 2, "name": "b"}], partition=0)
    open_one.flush()


STORES: dict[str, Callable[[Life], None]] = {
    **{path.name: partial(copy, path) for path in sorted(HERE.glob("v*")) if path.is_dir()},
    "of older writers": write,
}
