"""Random lives of a published topic: each version of its tables shows the rows of its cut, with any reader.

Old defects are planted, one at a time: a life notices each. All lives together have had each event.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.publication.table_readers import ElsewhereError
from tests.publication.wild_lives import EVENTS, WildLife
from txlog.core import publication as deciding
from txlog.core.effects import Program
from txlog.core.row_runs import removed_from
from txlog.publication import delta, iceberg, publish as publishing
from txlog.publication.iceberg_names import DIGEST, IcebergTable

LIVES = 200
STEPS = 50
SAMPLE = (18, 67, 119, 132)
"""Lives that noticed defects in their first runs."""
SCHEMES = ("file", "gs", "s3", "abfss")


def live(seed: int, *, latest: bool = False) -> WildLife:
    life = WildLife(seed, f"{SCHEMES[seed % 4]}:///lives", latest=latest)
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"life {seed}, {life.keyed=}, {life.formats=}: {life.told}")
        raise
    return life


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("seed", SAMPLE)
def test_each_version_shows_its_cut(seed: int, latest: bool) -> None:
    assert live(seed, latest=latest).checked


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """Return the events of all lives of this module. One process runs all tests of a module."""
    return Counter()


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_each_version_of_all_lives_shows_its_cut(first: int, happened: Counter[str]) -> None:
    for seed in range(first, first + 10):
        happened.update(live(seed).events)
        happened["lives"] += 1
        live(seed, latest=True)


@pytest.mark.exhaustive
def test_all_lives_have_had_each_event(happened: Counter[str], record_property: Callable[[str, object], None]) -> None:
    record_property("events", {name: happened[name] for name in ("lives", *EVENTS)})
    assert happened["lives"] == LIVES, "the tests above must run first"
    assert [name for name in EVENTS if not happened[name]] == []


# -- planted defects --------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def _keep_what_was_removed(patch: Patch) -> None:
    """Compare a publication that begins again with the files of the ended one, but without its copies."""
    real = deciding.compare

    def compare(before: Any, *given: Any) -> Any:
        if before is None or before.newest.formats:
            return real(before, *given)
        newest = msgspec.structs.replace(before.newest, formats={"delta": 0})
        copies = {path for path, file in before.files.items() if file.source}
        files = {path: file for path, file in before.files.items() if path not in copies}
        changes = real(replace(before, newest=newest, files=files), *given)
        return replace(changes, removed=tuple(sorted({*changes.removed, *copies})))

    patch.setattr(publishing, "compare", compare)


class _Anywhere(str):
    """The place of a table, which is taken for every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def _keep_lists_of_another_url(patch: Patch) -> None:
    real = iceberg._version_of

    def version_of(*given: Any) -> Any:
        found = real(*given)
        return found and replace(found, location=_Anywhere(found.location))

    patch.setattr(iceberg, "_version_of", version_of)


def _name_deletes_by_the_file(patch: Patch) -> None:
    """Name the rows that are left out of a file by its path.

    A publisher with another URL then takes those of the first.
    """

    def write_deletes(writer: Any, file: Any) -> Program[Any]:
        from txlog.storage.parquet_deletes import position_deletes

        data = position_deletes(writer._table.uri(file.path), removed_from(file))
        path = f"metadata/d{file.since}-{hashlib.sha256(file.path.encode()).hexdigest()[:32]}.parquet"
        yield from writer.put(path, data)
        return path, len(data)

    patch.setattr(iceberg._Writer, "_write_deletes", write_deletes)


def _take_each_scheme_for_another_place(patch: Patch) -> None:
    patch.setattr(publishing, "canonical_url", lambda url: url)


def _look_behind_no_end(_: Any) -> Iterator[Any]:
    yield from ()


def _take_the_version_of_a_lost_publication(patch: Patch) -> None:
    """Compare no digest. Nothing looks behind the end either: that refuses such a version before."""
    real = iceberg._version_of
    patch.setattr(iceberg, "_check_end", _look_behind_no_end)

    def version_of(tables: Any, data: bytes) -> Any:
        with suppress(Exception):
            value = json.loads(data)
            for each in value["snapshots"]:
                each["summary"][DIGEST] = tables.digest
            data = json.dumps(value).encode()
        return real(tables, data)

    patch.setattr(iceberg, "_version_of", version_of)


def _take_lists_of_a_lost_publication(patch: Patch) -> None:
    patch.setattr(
        IcebergTable, "manifest_list", lambda table, number, _: f"metadata/snap-{table.snapshot_id(number)}.avro"
    )


def _give_a_new_table_the_old_id(patch: Patch) -> None:
    patch.setattr(delta, "new_table_id", lambda first: "")


PLANTED: dict[str, tuple[Callable[[Patch], None], int]] = {
    "ended and begun again: removed rows stay removed": (_keep_what_was_removed, 21),
    "lists of another URL are kept": (_keep_lists_of_another_url, 8),
    "rows left out are named by the file alone": (_name_deletes_by_the_file, 16),
    "gs and gcs are two places": (_take_each_scheme_for_another_place, 2),
    "the version of a lost publication is taken": (_take_the_version_of_a_lost_publication, 18),
    "lists of a lost publication are taken": (_take_lists_of_a_lost_publication, 32),
    "a Delta table that begins again has the old id": (_give_a_new_table_the_old_id, 21),
}
"""An old defect, and the first life that notices it."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_life_notices_an_old_defect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seed = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, ElsewhereError)):
        live(seed)
