"""Do the names for engines suffice, are they documented, and do they load little?"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog

PAGE = (Path(__file__).parent.parent / "docs" / "engine.md").read_text(encoding="utf-8")
MODULES = (
    "txlog.engine",
    *(f"txlog.engine.{name}" for name in ("arrow", "conditions", "offsets", "schemas", "tables")),
)


def test_the_page_lists_the_modules() -> None:
    assert sorted(re.findall(r"^\| `(txlog\.engine[\w.]*)`", PAGE, re.MULTILINE)) == sorted(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_documented(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__doc__
    for name, value in vars(found).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            # A dataclass without a docstring gets its signature as one.
            assert value.__doc__, name
            assert not value.__doc__.startswith(f"{name}("), name


def test_planning_loads_neither_pyarrow_nor_a_driver() -> None:
    program = (
        "import sys, txlog.engine, txlog.engine.conditions, txlog.engine.offsets, txlog.engine.schemas; "
        "print([name for name in ('pyarrow', 'fsspec', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_an_engine_copies_a_topic_and_may_be_run_again(tmp_path: Path) -> None:
    orders = {"order_id": pa.array(range(10_000), pa.int64()), "item": [f"item {number}" for number in range(10_000)]}
    rows = pa.table(orders)
    with txlog.open(tmp_path / "my-log") as store:
        store.create_topic("orders", rows.schema, partitions=2)
        with store.producer(transactional_id="loader") as producer:
            for partition in (0, 1):
                with producer.transaction():
                    producer.send("orders", rows, partition=partition)
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    with (
        txlog.open(tmp_path / "my-log") as store,
        store.consumer("copies", auto_offset_reset="earliest") as consumer,
    ):
        copied = pa.concat_tables(pa.Table.from_batches([batch]) for batch in consumer.iterate())
    found: list[Any] = copied["order_id"].to_pylist()
    assert sorted(found) == sorted([*range(10_000), *range(10_000)])
