"""Does each role need only the permissions that docs/object-stores.md lists?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.world import World, orders
from tests.metrics.world import exporter_of, filled
from txlog.client.store import Store
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer
from txlog.metrics import Registry
from txlog.storage import open as opening

PAGE = (Path(__file__).parents[2] / "docs" / "object-stores.md").read_text()
DAYS_MS = 3 * 86_400_000
CREATE = ("put_if_absent", "write_file")


def read(world: World, store: Store) -> None:
    with store.consumer("t0", auto_offset_reset="earliest") as consumer:
        assert list(consumer.iterate())
    assert store.table("t0").count()


def look(world: World, store: Store) -> None:
    exporter_of(world, Registry()).refresh()
    assert check_store(store.runtime.store).is_clean


def commit_offsets(world: World, store: Store) -> None:
    with store.consumer("t0", group_id="report", auto_offset_reset="earliest") as consumer:
        assert list(consumer.iterate())


def write(world: World, store: Store) -> None:
    with store.producer("loader") as producer:
        for rows in (1, 20_000):
            with producer.transaction():
                producer.send("t0", orders(*range(rows)), partition=0)
        producer.begin_transaction()
        producer.send("t0", orders(1), partition=0)
        producer.abort_transaction()


def abort(world: World, store: Store) -> None:
    store.admin().fence("loader")
    store.admin().expire()


def maintain(world: World, store: Store) -> None:
    for _ in range(4):
        world.clock.advance_ms(DAYS_MS)
        Maintainer(store.runtime).run()


ROLES: list[tuple[str, Callable[[World, Store], None]]] = [
    ("reader:", read),
    ("`txlog exporter`", look),
    ("consumer that commits", commit_offsets),
    ("writer:", write),
    ("`txlog fsck --repair`", abort),
    ("`txlog maintain`", maintain),
]


def listed(role: str) -> Iterator[set[str] | None]:
    """Yield the folders in which the role creates, and those in which it deletes. None: everywhere."""
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {role}"))
    for cell in row.strip("|").split(" | ")[2:]:
        yield None if "everywhere" in cell else set(re.findall(r"`(__\w+)/`", cell))


@pytest.mark.parametrize(("role", "work"), ROLES)
def test_a_role_creates_and_deletes_only_where_the_page_says(
    world: World, role: str, work: Callable[[World, Store], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(world, 1, 2, segment_batches=2)
    write(world, store)
    monkeypatch.setattr(opening, "_PROBED", {})  # a new process
    with world.counting.counting() as cost:
        work(world, world.open())
    found = [
        {path.partition("/")[0] for verb, path in cost.calls() if verb in verbs} for verbs in (CREATE, ("delete",))
    ]
    for folders, allowed in zip(found, listed(role), strict=True):
        assert folders == allowed if allowed is not None else folders - {"__probe"}
