"""`import txlog` is light and complete, and names what a missing extra needs. Modules are small."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_txlog
import txlog
from txlog import errors

HEAVY = ("pyarrow", "numpy", "pandas", "pyspark", "fsspec", "msgspec", "typer", "rich")


def test_importing_txlog_loads_nothing_heavy() -> None:
    program = (
        f"import sys, txlog; print(*[name for name in {HEAVY!r} if name in sys.modules], txlog.TxlogError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["TxlogError"]


def test_a_store_loads_no_drawing_until_it_is_shown() -> None:
    program = """
import sys, txlog
def drawing(): return any(name.startswith(("txlog.drawing", "txlog.inspection")) for name in sys.modules)
with txlog.open("memory://drawing") as store:
    store.create_topic("orders", partitions=1)
    shown = [store, store.topic("orders"), store.table("orders"), store.snapshot("orders"), store.admin().list_groups()]
    print(drawing(), store._repr_html_().startswith("<pre>"), drawing())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


def test_every_error_is_exported() -> None:
    defined = {
        name for name, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == "txlog.errors"
    }
    assert defined <= set(txlog.__all__)
    assert all(getattr(txlog, name) is getattr(errors, name) for name in defined)


def test_dir_lists_what_is_public() -> None:
    assert {"open", "Producer", "Consumer", "Admin", "Store", "__version__", "TxlogError"} <= set(dir(txlog))


def test_what_calls_take_and_give_is_there() -> None:
    assert txlog.TopicPartition("orders", 1) == ("orders", 1)
    assert txlog.OffsetAndMetadata(offset=7, metadata="by hand").offset == 7
    assert txlog.ConsumerGroupMetadata(group_id="g").group_id == "g"
    assert all(getattr(txlog, name) is not None for name in txlog.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'txlog' has no attribute 'opne'"):
        _ = txlog.opne


def test_no_module_is_large() -> None:
    modules = [module for package in (txlog, pyspark_txlog) for module in Path(package.__path__[0]).rglob("*.py")]
    assert len(modules) > 200
    lines = {str(module): len(module.read_text().splitlines()) for module in modules}
    assert {module: number for module, number in lines.items() if number > 500} == {}
