"""Does the judge of other engines' reads find each kind of error?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.chaos import __main__ as command, plan, poller
from lab.chaos.plan import MADE, ORDERS, PUBLISHED, Place
from lab.chaos.published import READS, Published, judge, polling
from lab.histories.events import Event, Row, Send
from txlog.core.names import TopicPartition
from txlog.storage.memory import MemoryObjectStore

FINAL = {
    TopicPartition(ORDERS, 0): [Row(offset=0, value=1), Row(offset=1, value=2), Row(offset=3, value=3)],
    TopicPartition(ORDERS, 1): [Row(offset=0, value=4)],
    TopicPartition(MADE, 0): [Row(offset=0, value=9)],
}
HIDDEN = [{"end_offset": 4, "hidden": [[0, 2]]}, {"end_offset": 0, "hidden": []}]
ALL = [{"end_offset": 4, "hidden": []}, {"end_offset": 1, "hidden": []}]


def sent(number: int, values: tuple[int, ...], txn: str) -> Event:
    what = Send(topic=ORDERS, partition=0, values=values, txn=txn)
    return Event(
        source="s", number=number, process="p", operation=number, type="ok", wall_ms=0, monotonic_ms=0, what=what
    )


EVENTS = [sent(1, (1, 2), "first"), sent(2, (5,), "aborted"), sent(3, (3, 4), "second")]


def judged(folder: Path, *reads: dict[str, Any], last: Sequence[int] = (1, 2, 3, 4)) -> Published:
    """Judge these reads of the topic orders, and last reads of all topics."""
    store = MemoryObjectStore()
    for version, cut in enumerate((HIDDEN, ALL)):
        info = {"commitInfo": {"operationParameters": {"txlog.cut": json.dumps(cut)}}}
        add = {"add": {"path": f"0/rows/{version}.parquet"}}
        for topic in PUBLISHED:
            lines = f"{json.dumps(info)}\n{json.dumps(add)}\n"
            store.put_if_absent(f"{topic}/_delta_log/{version:020d}.json", lines.encode())
            if version:
                store.put_if_absent(f"{topic}/0/rows/{version}.parquet", b"rows")
    common = {"engine": "one", "took_ms": 10, "age_ms": 0, "version": None}
    said = [read if "cut" in read else {**common, "topic": ORDERS, "last": False, **read} for read in reads]
    said += [{**common, "topic": ORDERS, "last": True, "rows": "last", "ids": list(last)}]
    said += [{**common, "topic": MADE, "last": True, "rows": "made", "ids": [9]}]
    (folder / READS).write_text("".join(json.dumps(each) + "\n" for each in said))
    return judge(Place(url="memory:", histories=str(folder)), EVENTS, FINAL, store)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([1, 2, 3, 4], {}),
        ([3], {"torn": 1}),
        ([1, 2, 3, 4, 5], {"aborted": 1, "lost": 1}),
        ([1, 2, 3, 4, 4], {"doubled": 1}),
        ([1, 3, 4], {"torn": 1, "lost": 1}),
        ([1, 2], {"lost": 2}),
    ],
)
def test_a_wrong_read_is_found(tmp_path: Path, ids: list[int], found: dict[str, int]) -> None:
    result = judged(tmp_path, {"rows": "these", "ids": ids}, {"rows": "these"})
    assert {name: count for name, count in result.found["one"].items() if count} == {
        name: 2 * count for name, count in found.items()
    }
    assert (result.reads["one"], result.wrong, result.deleted) == (4, 2 * sum(found.values()), 2)
    assert bool(result.details) == bool(found)


def test_a_version_that_delta_has_forgotten_is_judged_by_its_cut(tmp_path: Path) -> None:
    """From Delta's hundredth version on, vacuum deletes the first entries of its log."""
    assert judged(tmp_path, {"rows": "these", "ids": [1, 2]}).found["one"]["lost"] == 2
    cut = [{"end_offset": 2, "hidden": []}, {"end_offset": 0, "hidden": []}]
    assert judged(tmp_path, {"topic": ORDERS, "cut": cut}, {"rows": "these", "ids": [1, 2]}).wrong == 0


def test_the_poller_notes_each_cut_once(tmp_path: Path) -> None:
    log = tmp_path / ORDERS / "_delta_log"
    log.mkdir(parents=True)
    known: set[str] = set()
    assert list(poller._new_cuts(tmp_path / ORDERS, known)) == []
    for version in (99, 100):
        info = {"commitInfo": {"operationParameters": {"txlog.cut": json.dumps(ALL)}}}
        (log / f"{version:020d}.json").write_text(json.dumps(info) + "\n{}\n")
    (log / "_last_checkpoint").write_text("{}")
    assert poller._exists("delta-rs", tmp_path / ORDERS)
    assert list(poller._new_cuts(tmp_path / ORDERS, known)) == 2 * [{"topic": ORDERS, "cut": ALL}]
    assert list(poller._new_cuts(tmp_path / ORDERS, known)) == []
    assert poller._newest(tmp_path / ORDERS) == 0
    metadata = tmp_path / ORDERS / "metadata"
    metadata.mkdir()
    (metadata / "v101.metadata.json").write_text("{}")
    assert poller._newest(tmp_path / ORDERS) == 100


def test_a_missing_file_is_found_unless_the_read_was_too_slow(tmp_path: Path) -> None:
    missing = {"error": "OSError: no such file", "version": 1}
    slow = {**missing, "age_ms": plan.OLD_READ_MS, "took_ms": plan.PUBLISH_RETENTION_MS - plan.OLD_READ_MS + 1}
    result = judged(tmp_path, missing, slow)
    assert (result.found["one"]["unreadable"], result.slow, result.wrong) == (1, 1, 1)
    assert "one could not read orders, version 1: OSError" in result.details[0]


def test_rows_that_never_come_are_found(tmp_path: Path) -> None:
    """The last reads are after the recovery, and must have all rows."""
    assert judged(tmp_path, last=[1, 2, 3, 4]).wrong == 0
    assert judged(tmp_path, last=[3]).found["one"]["lost"] == 3


def test_an_engine_that_did_not_come_to_its_end_is_found(tmp_path: Path) -> None:
    with_two = judged(tmp_path, {"engine": "two", "rows": "all", "ids": [1, 2, 3, 4]})
    assert with_two.found["two"]["unreadable"] == len(PUBLISHED)


def test_a_poller_that_fails_is_a_failed_process(tmp_path: Path) -> None:
    with polling(Place(url=str(tmp_path), histories=str(tmp_path)), "/bin/false") as failures:
        pass
    # SIGTERM may reach it before it fails by itself.
    assert [each.rpartition(" ")[0] for each in failures] == ["the poller of the published tables ended with status"]
    with polling(Place(url=str(tmp_path), histories=str(tmp_path)), None) as failures:
        pass
    assert failures == []


def test_engines_need_maintenance_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--engines", "python"], ["--engines", "python", "--maintain", "--store", "s3://b/log"]):
        with pytest.raises(SystemExit):
            command.main(options)
        assert "--engines needs --maintain" in capsys.readouterr().err
