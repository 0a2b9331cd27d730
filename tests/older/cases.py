"""What can be done with a store? One case at least for each command of `txlog`, and for what only Python has."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from typing import Any, TypeAlias

import typer

from tests.older.life import HOUR_MS, Life
from tests.older.state import Change, Row, State
from txlog.cli.program import app
from txlog.client.reading import read_session
from txlog.core.features import GROUP_MEMBERS, PUBLICATION, SCHEMA_EVOLUTION
from txlog.core.names import TopicPartition
from txlog.maintenance.erase import begin_erasure

Case: TypeAlias = Callable[[Life, State], Change | None]
"""Do something, and return what may have changed. None: it only reads."""

CASES: dict[str, list[Case]] = {}
"""The cases of each command, and of calls that only Python has."""
OTHERS = {"demo": "it only names `make demo`"}
"""Commands without a case."""


class NotHereError(Exception):
    """The store has nothing for this case."""


def commands() -> set[str]:
    """Return the names of all commands, as the program knows them."""
    found: set[str] = set()

    def walk(command: Any, path: tuple[str, ...]) -> None:
        if not hasattr(command, "list_commands"):
            found.add(" ".join(path))
            return
        for name in command.list_commands(None):
            walk(command.get_command(None, name), (*path, name))

    walk(typer.main.get_command(app), ())
    return found


def case(name: str) -> Callable[[Case], Case]:
    """Register a case of a command."""

    def register(made: Case) -> Case:
        CASES.setdefault(name, []).append(made)
        return made

    return register


def reads(name: str, *lines: tuple[str, ...]) -> None:
    """Register a case of a command that only reads."""

    def read(life: Life, before: State) -> None:
        for line in lines:
            life.cli(*name.split(), *line)

    read.__name__ = name
    CASES.setdefault(name, []).append(read)


def one(life: Life, found: Any) -> Any:
    """Return one of these. Raises NotHereError if there is none."""
    picked = life.pick(found)
    if picked is None:
        raise NotHereError
    return picked


def with_rows(life: Life, before: State) -> str:
    """Return a topic with committed rows."""
    return str(one(life, {tp.topic for tp, rows in before.committed.items() if rows}))


def needs(life: Life, feature: str) -> None:
    if feature not in life.features():
        raise NotHereError


# -- commands that only read ------------------------------------------------------------------------------------------

reads("topics list", (), ("-o", "json"))
reads("topics describe", (), ("--size", "--schema-history"), ("-o", "json"))
reads("get-offsets", (), ("--time", "earliest"), ("-o", "json"))
reads("consumer-groups list", ())
reads("transactions list", (), ("-o", "json"))
reads("transactions find-hanging", ())
reads("erasures list", (), ("-o", "json"))
reads("fsck", (), ("--metadata-only",))
reads("history", (), ("-o", "json"))
reads("top", ("--once",))
reads("completion", ("bash",))


@case("consumer-groups describe")
def describe_groups(life: Life, before: State) -> None:
    for group in before.groups:
        life.cli("consumer-groups", "describe", group)


@case("transactions describe")
def describe_transactions(life: Life, before: State) -> None:
    for name in before.transactions:
        life.cli("transactions", "describe", name)


@case("doctor")
def doctor(life: Life, before: State) -> Change:
    life.cli("doctor", status=None)
    return Change()


@case("sql")
def sql(life: Life, before: State) -> None:
    for name in before.topics:
        count = sum(len(rows) for tp, rows in before.committed.items() if tp.topic == name)
        assert life.cli("sql", f'SELECT count(*) AS n FROM "{name}"', "-o", "json").rows == [{"n": count}]


@case("dump-log")
def dump_log(life: Life, before: State) -> None:
    seen: set[str] = set()
    for path in life.objects():
        kind = path.rpartition(".")[2]
        if kind not in seen and "/metadata/" not in path and "/_delta_log/" not in path:
            seen.add(kind)
            life.cli("dump-log", path)
    for tp in before.ends:
        life.cli("dump-log", f"{tp.topic}/{tp.partition}", "--rows")


@case("inspect")
def inspect(life: Life, before: State) -> None:
    page = life.scratch / "page.html"
    life.cli("inspect", "--html", page)
    assert all(name in page.read_text() for name in before.topics)


@case("exporter")
def exporter(life: Life, before: State) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scraped: list[str] = []

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as answer:
            scraped.append(answer.read().decode())

    life.clock.before_signal = scrape
    life.cli("exporter", "--port", port)
    (text,) = scraped
    for tp, (_, _, end) in before.ends.items():
        assert f'txlog_log_end_offset{{partition="{tp.partition}",topic="{tp.topic}"}} {end}' in text


@case("consume")
def consume(life: Life, before: State) -> None:
    for name in before.topics:
        count = sum(len(rows) for tp, rows in before.committed.items() if tp.topic == name)
        assert len(life.cli("consume", name, "--from-beginning", "--timeout-ms", 0).rows) == count


# -- rows, groups, transactions ---------------------------------------------------------------------------------------


@case("produce")
def produce(life: Life, before: State) -> Change:
    name = with_rows(life, before)
    rows = life.cli("consume", name, "--from-beginning", "--timeout-ms", 0, "--max-messages", 3).out
    life.cli("produce", name, stdin=rows)
    return Change(added={name: len(rows.splitlines())})


@case("produce")
def produce_in_a_transaction(life: Life, before: State) -> Change:
    name, transactional_id = with_rows(life, before), life.name("loader")
    rows = life.cli("consume", name, "--from-beginning", "--timeout-ms", 0, "--max-messages", 2).out
    for _ in range(2):
        life.cli("produce", name, "--transactional-id", transactional_id, "--version", 1, stdin=rows)
    return Change(added={name: len(rows.splitlines())}, ends=frozenset({transactional_id}))


@case("consume")
def consume_as_a_group(life: Life, before: State) -> Change:
    name, group = with_rows(life, before), life.name("readers")
    first = life.cli("consume", name, "--from-beginning", "--timeout-ms", 0, "--group", group).rows
    assert len(first) == sum(len(rows) for tp, rows in before.committed.items() if tp.topic == name)
    assert life.cli("consume", name, "--from-beginning", "--timeout-ms", 0, "--group", group).rows == []
    return Change(groups=frozenset({group}))


@case("consumer-groups reset-offsets")
def reset_offsets(life: Life, before: State) -> Change:
    group = one(life, before.groups)
    line = ("consumer-groups", "reset-offsets", group, "--to-earliest", "--force")
    life.cli(*line, status=None)
    life.cli(*line, "--execute", status=None)
    return Change(groups=frozenset({group}))


@case("consumer-groups delete")
def delete_group(life: Life, before: State) -> Change:
    group = one(life, {name for name, each in before.groups.items() if not each["pending"]})
    life.cli("consumer-groups", "delete", group, "--force", "--execute")
    return Change(groups=frozenset({group}))


@case("transactions abort")
def abort(life: Life, before: State) -> Change:
    name = one(life, {name for name, state in before.transactions.items() if state == "ONGOING"})
    life.cli("transactions", "abort", name)
    return Change(ends=frozenset({name}), groups=None)


@case("transactions expire")
def expire(life: Life, before: State) -> Change:
    life.cli("transactions", "expire")
    life.cli("transactions", "expire", "--execute")
    return Change(ends=None, groups=None)


@case("transactions expire")
def expire_one(life: Life, before: State) -> Change:
    name = one(life, {name for name, state in before.transactions.items() if state.startswith(("EMPTY", "COMPLETE"))})
    life.cli("transactions", "expire", "--transactional-id", name, "--force", "--execute")
    return Change(ends=frozenset({name}))


# -- topics -----------------------------------------------------------------------------------------------------------


@case("topics create")
def create(life: Life, before: State) -> Change:
    name = life.name("made")
    life.cli("topics", "create", name, "--column", "id:int64", "--column", "name:string", "--partitions", 2)
    life.cli("produce", name, stdin='{"id": 1, "name": "a"}\n{"id": 2, "name": null}\n')
    return Change(topics=frozenset({name}), added={name: 2})


@case("topics delete")
def delete(life: Life, before: State) -> Change:
    name = one(life, before.topics)
    life.cli("topics", "delete", name)
    life.cli("topics", "delete", name, "--execute")
    life.deleted.append(name)
    # Offsets of a deleted topic may stay in its groups.
    return Change(topics=frozenset({name}), groups=None)


@case("topics create")
def create_again(life: Life, before: State) -> Change:
    name = one(life, [each for each in life.deleted if each not in before.topics])
    life.cli("topics", "create", name, "--column", "id:string", "--partitions", 3)
    life.cli("produce", name, stdin='{"id": "again"}\n')
    return Change(topics=frozenset({name}))


@case("topics alter")
def alter_settings(life: Life, before: State) -> Change:
    name = one(life, before.topics)
    life.cli("topics", "alter", name, "--set", "segment.batches=2", "--set", "inline.max.bytes=0")
    return Change(topics=frozenset({name}))


@case("topics alter")
def alter_partitions(life: Life, before: State) -> Change:
    name = one(
        life, {name for name, each in before.topics.items() if "compact" not in each[2].get("cleanup.policy", "")}
    )
    life.cli("topics", "alter", name, "--partitions", before.topics[name][1] + 1, "--allow-key-movement")
    return Change(topics=frozenset({name}))


@case("topics alter")
def add_column(life: Life, before: State) -> Change:
    name, column = one(life, before.topics), life.name("added")
    life.cli("topics", "alter", name, "--add-column", f"{column}:string")
    return Change(topics=frozenset({name}), columns={name: lambda row: {**row, column: None}})


@case("topics alter")
def rename_column(life: Life, before: State) -> Change:
    needs(life, SCHEMA_EVOLUTION)
    name = one(life, before.topics)
    keys = before.topics[name][2].get("key.columns", "").split(",")
    old, new = one(life, set(before.topics[name][3]) - {*keys}), life.name("renamed")

    def as_now(row: Row) -> Row:
        return {new if each == old else each: value for each, value in row.items()}

    life.cli("topics", "alter", name, "--rename-column", f"{old}={new}")
    return Change(topics=frozenset({name}), columns={name: as_now})


@case("topics alter")
def drop_column(life: Life, before: State) -> Change:
    needs(life, SCHEMA_EVOLUTION)
    wide = {name: each[2] for name, each in before.topics.items() if len(each[3]) > 2}
    name = one(life, {name for name, config in wide.items() if "compact" not in config.get("cleanup.policy", "")})
    keys = before.topics[name][2].get("key.columns", "").split(",")
    column = one(life, set(before.topics[name][3]) - {*keys})
    life.cli("topics", "alter", name, "--drop-column", column)
    as_now = {name: lambda row: {each: value for each, value in row.items() if each != column}}
    return Change(topics=frozenset({name}), columns=as_now)


@case("publish")
def publish(life: Life, before: State) -> Change | None:
    # A publication that has ended begins again only after its table is deleted: docs/publish.md.
    once = {path.partition("/")[0] for path in life.objects() if "/publication/" in path}
    name = one(life, {name for name, each in before.topics.items() if "publish.formats" in each[2] or name not in once})
    line = ("topics", "alter", name, "--set", "publish.formats=delta,iceberg", "--set", "publish.max.lag.ms=0")
    if PUBLICATION not in life.features():
        assert "needs the feature 'publication'" in life.cli(*line, status=2).err
        return None
    life.cli(*line)
    life.cli("publish", "--once")
    life.cli("publish", name, "--files")
    return Change(topics=frozenset({name}))


# -- maintenance ------------------------------------------------------------------------------------------------------


@case("merge")
def merge(life: Life, before: State) -> Change:
    life.cli("merge")
    life.cli("merge", "--execute")
    return Change()


@case("compact")
def compact(life: Life, before: State) -> Change:
    life.cli("compact", "--min-cleanable-dirty-ratio", 0)
    life.cli("compact", "--min-cleanable-dirty-ratio", 0, "--execute")
    return Change(retires=True)


@case("seal")
def seal(life: Life, before: State) -> Change:
    life.cli("seal")
    return Change()


def may_erase(life: Life) -> Callable[[TopicPartition, int, Row], bool]:
    """Return which rows an erasure of a case may remove, or the one that a process began in the store of version 5."""
    ends = {TopicPartition("people", 0): 11, TopicPartition("people", 1): 9}
    return lambda tp, number, row: (tp, number) in life.erased or (number < ends.get(tp, 0) and "bob" in row.values())


@case("erase")
def erase(life: Life, before: State) -> Change:
    tp = one(life, {tp for tp, rows in before.committed.items() if rows})
    number = one(life, before.committed[tp])
    line = ("erase", tp.topic, "--where", f"_partition = {tp.partition} and _offset = {number}")
    life.cli(*line)
    life.erased.add((tp, number))
    life.cli(*line, "--execute", "--wait-ms", 0, status=None)
    life.cli("erase", tp.topic, "--where", f"{before.topics[tp.topic][3][0]} is not null", "--verify")
    return Change(erases=may_erase(life), ends=None, groups=None)


@case("erasures cancel")
def cancel_erasure(life: Life, before: State) -> Change:
    begun = begin_erasure(read_session(life.open().runtime), with_rows(life, before), "_offset = 0")
    life.cli("erasures", "cancel", begun.erasure_id)
    return Change(ends=None, groups=None)


@case("retention")
def retention(life: Life, before: State) -> Change:
    life.cli("retention")
    life.cli("retention", "--execute")
    return Change(retires=True)


@case("vacuum")
def vacuum(life: Life, before: State) -> Change:
    life.cli("vacuum")
    life.clock.advance_ms(26 * HOUR_MS)
    life.cli("vacuum", "--execute")
    return Change()


@case("maintain")
def maintain(life: Life, before: State) -> Change:
    life.cli("maintain", "--once", "--merge-min-segments", 1)
    life.clock.advance_ms(26 * HOUR_MS)
    life.cli("maintain", "--once", "--merge-min-segments", 1)
    return Change(retires=True, erases=may_erase(life), ends=None, groups=None)


@case("fsck")
def repair(life: Life, before: State) -> Change:
    life.cli("fsck", "--repair")
    return Change()


# -- what only Python has ---------------------------------------------------------------------------------------------


@case("Admin.delete_records")
def delete_records(life: Life, before: State) -> Change:
    tp = one(life, {tp for tp, rows in before.committed.items() if len(rows) > 1})
    middle = sorted(before.committed[tp])[len(before.committed[tp]) // 2]
    life.open().admin().delete_records(tp.topic, tp.partition, before=middle)
    return Change(starts={tp: middle})


@case("Consumer.subscribe")
def members(life: Life, before: State) -> Change:
    """Let two members share a topic, and let one of them leave without a word."""
    topic, group = with_rows(life, before), life.name("team")
    settings: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    needs(life, GROUP_MEMBERS)
    joined = [life.open().consumer(client_id=name, **settings) for name in ("a", "b")]
    seen: set[tuple[int, int]] = set()
    for consumer in joined:
        consumer.subscribe(topic)
    # The second member says nothing for longer than its session.
    for number in range(30):
        life.clock.advance_ms(3000)
        for consumer in joined if number < 6 else joined[:1]:
            while (batch := consumer.poll(0)) is not None:
                seen |= {(row["_partition"], row["_offset"]) for row in batch.to_pylist()}
            consumer.commit()
    joined[0].close()
    assert seen == {(tp.partition, n) for tp, rows in before.committed.items() if tp.topic == topic for n in rows}
    return Change(groups=frozenset({group}), ends=None)


@case("Producer, left open")
def left_open(life: Life, before: State) -> Change:
    """Leave an eager transaction open, as a crash does."""
    topic, name = with_rows(life, before), life.name("hung")
    rows = life.open().consumer(topic, auto_offset_reset="earliest").poll(0)
    if rows is None:
        raise NotHereError
    producer = life.open().producer(name, staged=False)
    producer.init_transactions()
    producer.begin_transaction()
    sent = rows.slice(0, 1).select(list(before.topics[topic][3]))
    producer.send(topic, sent, partition=0)
    producer.flush()
    life.left.append(producer)
    return Change(added={topic: 1}, ends=frozenset({name}))


@case("Producer, staged")
def staged(life: Life, before: State) -> Change:
    topic, name, group = with_rows(life, before), life.name("staged"), life.name("moved")
    rows = life.open().consumer(topic, auto_offset_reset="earliest").poll(0)
    if rows is None:
        raise NotHereError
    sent = rows.slice(0, 2).select(list(before.topics[topic][3]))
    with life.open().producer(name, staged=True) as producer:
        producer.begin_transaction(version=7)
        producer.send(topic, sent, partition=0)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, group)
        producer.commit_transaction()
    return Change(added={topic: sent.num_rows}, ends=frozenset({name}), groups=frozenset({group}))


@case("Store.snapshot")
def snapshot(life: Life, before: State) -> None:
    """Read all topics at one cut. It also has what was committed above the first row of an open transaction."""
    if not before.topics:
        raise NotHereError
    cut = life.open().snapshot(*before.topics)
    for name in before.topics:
        seen = {(row["_partition"], row["_offset"]) for row in cut.table(name).to_arrow().to_pylist()}
        known = [
            {(tp.partition, number) for tp, rows in each.items() if tp.topic == name for number in rows}
            for each in (before.committed, before.all)
        ]
        assert known[0] <= seen <= known[1]
