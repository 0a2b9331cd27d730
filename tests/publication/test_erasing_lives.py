"""Random lives with erasures: no later version shows an erased row, and at the end the bytes of the store have none.

Rules are broken, one at a time: some life notices each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.publication import erasing_lives
from tests.publication.erasing_lives import DAYS, ERASE_EVENTS, ErasingLife
from tests.publication.table_readers import ElsewhereError
from tests.publication.test_wild_lives import SCHEMES
from txlog.client.tables.where import bind
from txlog.core import publication as deciding
from txlog.maintenance import erase, vacuum
from txlog.protocol import erase as erasures, publications, vacuum as protocol, vacuum_published
from txlog.protocol.context import Context, Views
from txlog.publication import iceberg_files, newest, publish

LIVES = 60
STEPS = 50
SAMPLE = (3, 11, 18)


def live(seed: int, *, latest: bool = False) -> ErasingLife:
    life = ErasingLife(seed, f"{SCHEMES[seed % 4]}:///lives", latest=latest)
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"life {seed}, {latest=}, {life.keyed=}, {life.formats=}: {life.told}")
        raise
    return life


@pytest.fixture
def _whole_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make publications whole more often. Otherwise the last values of erased rows stay for up to 50 publications."""
    monkeypatch.setattr(publications, "WHOLE_EVERY", 10)


@pytest.mark.usefixtures("_whole_publications")
@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("seed", SAMPLE)
def test_erased_rows_are_gone_from_versions_and_bytes(seed: int, latest: bool) -> None:
    life = live(seed, latest=latest)
    assert life.checked
    assert life.erased
    assert life.days < DAYS


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """Return the events of all lives of this module. One process runs all tests of a module."""
    return Counter()


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_erased_rows_of_all_lives_are_gone(first: int, happened: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 10):
        if seed % 5:
            monkeypatch.setattr(publications, "WHOLE_EVERY", 10)
        for latest in (False, True):
            happened.update(live(seed, latest=latest).events)
        monkeypatch.undo()
        happened["lives"] += 1


@pytest.mark.exhaustive
def test_all_lives_have_had_each_erasure(
    happened: Counter[str], record_property: Callable[[str, object], None]
) -> None:
    record_property("events", {name: happened[name] for name in ("lives", *ERASE_EVENTS)})
    assert happened["lives"] == LIVES, "the tests above must run first"
    assert [name for name in ERASE_EVENTS if not happened[name]] == []


# -- broken rules -----------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def _take_columns_by_name(patch: Patch) -> None:
    patch.setattr(erase, "_condition_of", lambda _, found, topic: bind(found.where, topic.schema, found.topic))


def _erase_later_rows(patch: Patch) -> None:
    real: Any = erase._Rows.__init__

    def init(self: Any, *given: Any) -> None:
        real(self, *given[:-1], 2**62)

    patch.setattr(erase._Rows, "__init__", init)


def _wait_for_no_transaction(patch: Patch) -> None:
    patch.setattr(erasures, "reach_of", lambda *_: 0)


def _leave_tails(patch: Patch) -> None:
    def seal_up_to(_: Context, views: Views, __: Any) -> Any:
        yield from ()
        return views, None

    patch.setattr(erasures, "seal_up_to", seal_up_to)


def _publish_new_rows_alone(patch: Patch) -> None:
    changes = newest.newest_changes

    def compared(*given: Any) -> Any:
        return replace(deciding.compare(*given), removed=(), replaced=(), moved=())

    def changed(*given: Any) -> Any:
        return replace(changes(*given), removed=[])

    patch.setattr(publish, "compare", compared)
    patch.setattr(newest, "newest_changes", changed)


def _keep_indexes(patch: Patch) -> None:
    real = protocol.sweep

    def sweep(ctx: Context, plan: Any, **more: Any) -> Any:
        return real(ctx, replace(plan, dead=tuple(each for each in plan.dead if "index" not in each.path)), **more)

    patch.setattr(vacuum, "sweep", sweep)


def _keep_bounds_of_removed_files(patch: Patch) -> None:
    real = iceberg_files.data_entry

    def data_entry(table: Any, number: int, status: Any, *given: Any) -> Any:
        data = real(table, number, iceberg_files.ADDED, *given).data_file
        return iceberg_files._entry(table, number, status, given[0], data)

    patch.setattr(iceberg_files, "data_entry", data_entry)


def _keep_the_chain_of_ended_tables(patch: Patch) -> None:
    def nothing(*_: Any, **__: Any) -> Any:
        yield from ()

    patch.setattr(vacuum_published, "_forget_files", nothing)


BROKEN: dict[str, tuple[Callable[[Patch], None], int, bool]] = {
    "columns are found by their names": (_take_columns_by_name, 0, False),
    "later rows are erased": (_erase_later_rows, 1, True),
    "rows behind an open transaction are not waited for": (_wait_for_no_transaction, 6, False),
    "tails are not sealed": (_leave_tails, 7, False),
    "publications only add": (_publish_new_rows_alone, 0, False),
    "vacuum keeps indexes": (_keep_indexes, 0, False),
    "Iceberg's removed files keep their bounds": (_keep_bounds_of_removed_files, 11, False),
    "publications of ended tables stay": (_keep_the_chain_of_ended_tables, 7, True),
}
"""A broken rule, the first life that notices it, and whether it has the newest rows."""


LONG = {
    "vacuum keeps indexes", "Iceberg's removed files keep their bounds", "publications of ended tables stay",
}  # fmt: skip
"""Those that take more than ten seconds."""


@pytest.mark.usefixtures("_whole_publications")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in LONG else ()) for name in BROKEN]
)
def test_a_life_notices_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seed, latest = BROKEN[name]
    # With publications that are whole so often a life needs 16 days at most.
    monkeypatch.setattr(erasing_lives, "DAYS", 25)
    plant(monkeypatch)
    with pytest.raises((AssertionError, ElsewhereError)):
        live(seed, latest=latest)
