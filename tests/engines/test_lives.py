"""Other programs read the tables of random lives of a topic: row by row what read_committed shows at the published
cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.operations import objects_of
from tests.publication.lives import TOPIC, Life
from txlog.publication import formats, publish

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_delta_rs_and_polars_read_what_the_cut_shows(seed: int, keyed: bool, tmp_path: Path) -> None:
    import polars
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    life = Life(seed, keyed=keyed)
    for _ in range(60):
        life.step()
    expected = life.follower.rows(life.check())
    for path, data in objects_of(life.world.memory):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    life.close()
    table = str(tmp_path / TOPIC)
    found = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT id FROM t")
    assert Counter(pa.table(found).column("id").to_pylist()) == expected
    assert Counter(polars.scan_delta(table).select("id").collect()["id"].to_list()) == expected


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pyiceberg_and_polars_read_what_the_cut_shows(
    seed: int, keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars
    from pyiceberg.table import StaticTable

    url = f"file://{tmp_path}"
    write = formats.write_version

    # Names in Iceberg's metadata are absolute, so the store in memory writes those of the folder.
    def written(*args: Any, **more: Any) -> Any:
        return write(*args, **{**more, "url": url})

    monkeypatch.setattr(publish, "write_version", written)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    life = Life(seed, keyed=keyed)
    life.store.alter_topic(TOPIC, config={"publish.formats": "delta,iceberg"})
    for _ in range(60):
        life.step()
    expected = life.follower.rows(life.check())
    for path, data in objects_of(life.world.memory):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    life.close()
    found = StaticTable.from_metadata(f"{url}/{TOPIC}").scan(selected_fields=("id",)).to_arrow()
    assert Counter(found.column("id").to_pylist()) == expected
    assert Counter(polars.scan_iceberg(f"{url}/{TOPIC}").select("id").collect()["id"].to_list()) == expected
