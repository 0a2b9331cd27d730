"""Each rule of a table in a catalog, broken once: a test notices (W60, C17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.client.world import World
from tests.publication import test_catalog as tests
from tests.publication.memory_catalog import MemoryCatalog
from txlog.core.effects import Program
from txlog.maintenance import vacuum
from txlog.publication import catalog as following, catalog_table, expired
from txlog.publication.expired import CatalogView

world, catalog = tests.world, tests.catalog


def _nothing(*args: Any) -> Program[list[Any]]:
    yield from ()
    return []


def _current_alone(found: catalog_table.InCatalog, horizon_ms: int) -> dict[int, str]:
    return {found.number: found.lists[found.number]}


def _without_an_answer(*args: Any) -> CatalogView:
    return CatalogView(folder="another/")


def _keeps_versions(table: Any) -> dict[str, str]:
    # The setting is not noted, so versions that name files of the log stay.
    made = _PROPERTIES(table)
    return made | {"txlog.files": "copy"}


_PROPERTIES = catalog_table.properties
Test = Callable[[World, MemoryCatalog], None]
MUTANTS: dict[str, tuple[object, str, object, Test]] = {
    "a publisher that slept for the grace commits": (
        following._Follower,
        "_is_young",
        lambda *_: True,
        tests.test_a_publisher_that_slept_for_the_grace_commits_nothing,
    ),
    "vacuum keeps only the newest version of the catalog": (
        catalog_table.InCatalog,
        "lists_since",
        _current_alone,
        tests.test_a_version_that_was_the_newest_until_now_keeps_its_files,
    ),
    "vacuum takes no answer for a dropped table": (
        vacuum,
        "view_of_catalog",
        _without_an_answer,
        tests.test_vacuum_without_an_answer_deletes_nothing_of_the_table,
    ),
    "versions that name files of the log stay": (
        catalog_table,
        "properties",
        _keeps_versions,
        tests.test_no_version_is_left_that_names_files_of_the_log,
    ),
    "files are named without a copy": (
        following,
        "_write_copies",
        _nothing,
        tests.test_the_table_follows_each_publication,
    ),
    "vacuum leaves what nobody needs": (
        expired,
        "_unused",
        _nothing,
        tests.test_vacuum_keeps_what_the_catalog_shows_and_nothing_else,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(
    name: str, world: World, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, what, broken, test = MUTANTS[name]
    monkeypatch.setattr(where, what, broken)
    with pytest.raises((AssertionError, pytest.fail.Exception, FileNotFoundError)):
        test(world, catalog)
    monkeypatch.undo()


def test_the_tests_pass_without_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    for *_, test in MUTANTS.values():
        own = World()
        own.clock.advance_ms(20 * 365 * tests.DAY_MS)
        made = MemoryCatalog(own.memory)
        monkeypatch.setattr(catalog_table, "open_catalog", lambda name, made=made: made)
        test(own, made)
        own.close()
