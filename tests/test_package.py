"""`import txlog` is light and complete, and names what a missing extra needs. The wheel and its modules are small."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import lab
import pyspark_txlog
import txlog
from scripts.code_lines import PACKAGES, code_lines, room, rooms, shipped
from txlog import errors

HEAVY = ("pyarrow", "numpy", "pandas", "pyspark", "fsspec", "msgspec", "typer", "rich")
# Lines of code in the wheel, and in one module: `python scripts/code_lines.py`. A feature says in its commit how many
# lines it adds. 42,000 was the limit before the calls, groups and messages for programs of Kafka took 400, and 42,450
# before less CPU time for commits, reads and starts took 27, records of deletions 120, looks between two commits and a
# LIST of what others wrote 130, consumers that wait for events of a folder 90, a start that imports one command 13, and
# Spark's writes of rows that the driver has and its Unix sockets 75. Erasures, their proof, sealing, tables of newest
# rows and the end of tables of deleted topics take 2,030. Streams of Spark 4.0 and 4.1 take 105, and views that see the
# newest rows 85. Tables in a catalog take 735.
SHIPPED_LINES = 47_085
MODULE_LINES = 400


def test_importing_txlog_loads_nothing_heavy() -> None:
    program = (
        f"import sys, txlog; print(*[name for name in {HEAVY!r} if name in sys.modules], txlog.TxlogError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["TxlogError"]


def test_a_store_loads_no_client_until_it_is_made_and_no_drawing_until_it_is_shown() -> None:
    program = """
import sys, txlog
def loaded(*names): return any(name.startswith(names) for name in sys.modules)
def drawing(): return loaded("txlog.drawing", "txlog.inspection")
with txlog.open("memory://drawing") as store:
    store.create_topic("orders", partitions=1)
    print(loaded("txlog.client.producer", "txlog.client.consumer", "txlog.client.admin"))
    shown = [store, store.topic("orders"), store.table("orders"), store.snapshot("orders"), store.admin().list_groups()]
    print(drawing(), store._repr_html_().startswith("<pre>"), drawing())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False", "True"]


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


def test_the_wheel_is_small() -> None:
    modules = shipped()
    assert {Path(txlog.__file__).parent, Path(pyspark_txlog.__file__).parent} == set(PACKAGES)
    assert len(modules) > 200
    assert sum(modules.values()) <= SHIPPED_LINES, rooms(modules)
    assert {module: lines for module, lines in modules.items() if lines > MODULE_LINES} == {}


def test_no_module_of_the_laboratory_is_large() -> None:
    modules = list(Path(lab.__path__[0]).rglob("*.py"))
    assert len(modules) > 50
    lines = {str(module): len(module.read_text().splitlines()) for module in modules}
    assert {module: number for module, number in lines.items() if number > 500} == {}


def test_lines_of_code_are_counted_without_blank_lines_comments_and_docstrings() -> None:
    source = """\
'''Of the module,

in three lines.'''

# a comment
NAMES = (  # 1
    "a",  # 2
)  # 3
'''Of an attribute.'''


class Limits:
    '''Of the class.'''

    def show(self):
        '''Of the function.'''
        # a comment
        return f'''6 {NAMES}

        # 7: a line of a text, as the next one'''
"""
    assert code_lines(source) == 7
    assert room("txlog/core/cuts/rows.py") == "txlog/core"
    assert room("spark_ext/pyspark_txlog/patch.py") == "pyspark_txlog"
