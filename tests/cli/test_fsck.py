"""`txlog fsck`: output and status. tests/maintenance tests its findings."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.support import Cli
from txlog.cli.program import app
from txlog.maintenance.fsck import FsckReport


@pytest.fixture
def hurt(seen: Cli, tmp_path: Path) -> Cli:
    """Return a copy of the store that a test may damage."""
    shutil.copytree(seen.root, tmp_path / "copy")
    return Cli(tmp_path / "copy")


def test_a_store_that_is_whole(seen: Cli) -> None:
    done = seen("fsck")
    assert "damaged     0" in done.lines
    assert "missing     0" in done.lines
    assert any("hanging" in line for line in done.lines)  # a note, because its timeout is over


def test_json(seen: Cli) -> None:
    found = seen("fsck", "--output", "json").json
    assert set(found) == set(FsckReport.__struct_fields__)
    assert (found["damaged"], found["missing"]) == (0, 0)
    assert found["topics"] == ["__consumer_offsets", "events", "orders"]
    assert {each["kind"] for each in found["findings"]} == {"note"}


def test_damage_has_its_own_status_and_is_explained(hurt: Cli) -> None:
    path = hurt.root / "orders/0/00000000000000000000.batch"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    done = hurt("fsck", status=4)
    assert "orders/0/00000000000000000000.batch is damaged" in done.lines
    assert any(line.startswith("found     checksum ") for line in done.lines)
    assert any(line.startswith("to do     restore it") for line in done.lines)
    assert done.err == ""
    found = hurt("fsck", "--output", "json", status=4).json
    assert next(each["path"] for each in found["findings"] if each["kind"] == "damaged").startswith("orders/0/")


def test_one_topic(hurt: Cli) -> None:
    (hurt.root / "orders/0/00000000000000000000.batch").write_bytes(b"")
    assert hurt("fsck", "events").status == 0
    assert hurt("fsck", "--topic", "orders", status=4).status == 4
    assert "there is no topic 'order'" in hurt.fails("fsck", "order")


def test_only_metadata(hurt: Cli) -> None:
    victim = next((hurt.root / "orders/0").glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert hurt("fsck", "--metadata-only").status == 0
    assert f"{victim.relative_to(hurt.root)} is damaged" in hurt("fsck", status=4).lines
    victim.write_bytes(data[:-1])
    assert f"{victim.relative_to(hurt.root)} is damaged" in hurt("fsck", "--metadata-only", status=4).lines


def test_a_store_that_cannot_be_opened_any_more(hurt: Cli) -> None:
    (hurt.root / "txlog.json").write_bytes(b"{")
    assert "txlog.json is damaged" in hurt("fsck", status=4).lines
    (hurt.root / "txlog.json").unlink()
    assert "txlog.json is missing" in hurt("fsck", status=4).lines


def test_an_empty_location(cli: Cli) -> None:
    assert "holds no txlog store" in cli.fails("fsck")
    assert "holds no txlog store" in cli.fails("fsck", store="/nowhere/at/all")


@pytest.mark.parametrize(
    "entry", ["notes.txt", "pictures/cat.png", "0/topic.json", "photos/0/00000000000000000000.batch"]
)
def test_a_folder_that_is_no_store(cli: Cli, tmp_path: Path, entry: str) -> None:
    """All other commands end with the same status."""
    path = tmp_path / "other" / entry
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    said = cli.fails("fsck", store=str(tmp_path / "other"))
    assert entry.partition("/")[0] in said
    assert "it is not a txlog store" in said
    assert "it is not a txlog store" in cli.fails("topics", "list", store=str(tmp_path / "other"))
    assert "is a file" in cli.fails("fsck", store=str(path))


def test_what_is_missed_many_times_is_named_once(hurt: Cli) -> None:
    """A partition's folder is missing. A number shows how many of its markers are missing."""
    shutil.rmtree(hurt.root / "orders/0")
    done = hurt("fsck", status=4)
    assert any(line.startswith("Stop every writer") for line in done.lines)
    headings = [line for line in done.lines if line.endswith(" is missing")]
    assert len(headings) == len(set(headings))
    found = hurt("fsck", "--output", "json", status=4).json["findings"]
    missing = [each["path"] for each in found if each["kind"] == "missing"]
    assert len(missing) == len(set(missing))


def test_progress_on_a_terminal(seen: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(SystemExit) as ended:
        app(["fsck", "--store", str(seen.root)])
    assert ended.value.code == 0
    assert "orders-1, " in terminal.getvalue()
    assert " objects" in terminal.getvalue()


def test_what_can_be_made_again_is_said_and_made_only_when_asked(hurt: Cli) -> None:
    path = next(hurt.root.glob("orders/0/*.snapshot"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    name = f"orders/0/{path.name}"
    said = hurt("fsck", status=4)
    assert "`txlog fsck --repair` can recreate these, without any loss" in said.lines
    assert path.read_bytes() == whole[:-9]
    done = hurt("fsck", "--repair", "--output", "json").json
    assert [(each["path"], each["is_made"]) for each in done["repaired"]] == [(name, True)]
    assert done["damaged"] == 0
    assert path.read_bytes() == whole
    assert "repair" in hurt("history").out
    assert "damaged     0" in hurt("fsck", "--repair").lines


def test_what_cannot_be_made_again_is_said(hurt: Cli) -> None:
    (hurt.root / "orders/0/00000000000000000000.batch").write_bytes(b"")
    lines = hurt("fsck", "--repair", status=4).lines
    assert "Cannot be recreated" in lines
    assert any("what lies behind offset 0 cannot be made again" in line for line in lines)
    assert any(line.startswith("--repair changed nothing") for line in lines)
