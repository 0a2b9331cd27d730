"""A reader that somebody wrote from PROTOCOL.md alone sees in each store what the client sees."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.fuzz.hostile import closed, opened
from tests.second_reader import reader
from tests.second_reader.compare import differences
from tests.second_reader.worlds import make_store
from txlog.core.names import SegmentObject, parse_partition_object
from txlog.errors import CorruptRecordError

ROOT = Path(__file__).parents[2]
GOLDEN = sorted(path.name for path in (ROOT / "tests" / "golden").glob("v*") if path.is_dir())
READER = Path(__file__).parent / "reader.py"


def test_it_is_short_and_knows_nothing_of_txlog() -> None:
    source = READER.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 600
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "txlog" not in imported
    assert "tests" not in imported


@pytest.mark.parametrize("version", GOLDEN)
def test_every_golden_store(version: str, tmp_path: Path) -> None:
    # A copy, because opening a store must not be able to change the golden one.
    shutil.copytree(ROOT / "tests" / "golden" / version, tmp_path / version)
    assert differences(tmp_path / version) == []


@pytest.mark.parametrize("seed", range(4))
def test_stores_of_random_worlds(seed: int, tmp_path: Path) -> None:
    """`python -m tests.second_reader --worlds 300` reads more of them."""
    make_store(seed, tmp_path)
    assert differences(tmp_path, seed) == []


def test_the_random_worlds_have_what_a_reader_may_misread(tmp_path: Path) -> None:
    """A world goes on after an error, so only its store shows whether it did anything."""
    found: set[str] = set()
    for seed in range(4):
        make_store(seed, tmp_path / str(seed))
        with txlog.open(str(tmp_path / str(seed))) as store:
            ends = [each for topic in store.topics() for each in store.admin().list_offsets(topic.name).values()]
            found |= {"open" for each in ends if each.last_stable_offset < each.log_end_offset}
            found |= {"log start" for each in ends if each.log_start_offset}
            found |= {each.state for each in store.admin().list_transactions()}
            found |= {"offsets" for each in store.admin().list_groups() if each.offsets}
            found |= {"changed columns" for _ in store.schema_history("orders")[1:]}
    found |= {path.suffix for path in tmp_path.rglob("*")}
    for path in tmp_path.rglob("*.parquet"):
        parsed = parse_partition_object(path.name)
        found.add(f"generation {parsed.segment.generation}" if isinstance(parsed, SegmentObject) else path.parent.name)
    assert found >= {"open", "log start", "offsets", "changed columns", "ONGOING", "COMPLETE_COMMIT", "COMPLETE_ABORT"}
    assert found >= {".clean", ".txnindex", ".boundary", "rows", "generation 0", "generation 1", "generation 2"}


def test_both_readers_refuse_sorted_rows_outside_of_a_run(tmp_path: Path) -> None:
    """`sorted_by` in generation 0 would change the order in which rows are read (R21, Index)."""
    with txlog.open(str(tmp_path), config={"linger.ms": 0, "segment.batches": 1}) as store:
        store.create_topic("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
        with store.producer(inline_max_bytes=0) as producer:
            for number in range(3):
                producer.send("t", pa.table({"id": [number]}, store.topic("t").schema), partition=0).result()
    assert differences(tmp_path) == []
    index = sorted((tmp_path / "t" / "0").glob("*-0.index"))[0]
    fields, _ = opened(index.read_bytes())
    fields["files"][0]["sorted_by"] = [1]
    index.write_bytes(closed(fields))
    with pytest.raises(reader.Damaged, match="offset_column"):
        reader.Store(str(tmp_path)).read("t", 0)
    with txlog.open(str(tmp_path)) as store, pytest.raises(CorruptRecordError, match="`sorted_by`"):
        store.table("t").to_arrow()
