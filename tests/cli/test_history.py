"""`txlog history`: output and status. tests/maintenance tests the contents of the history."""

from __future__ import annotations

from tests.cli.support import Cli
from txlog.client import Store, TopicPartition
from txlog.maintenance.history import recorded


def test_nothing_was_done(cli: Cli, store: Store) -> None:
    assert cli("history").lines == ["No maintenance job has done anything yet."]
    assert cli("history", "--output", "json").json == []
    assert "--limit 0: expected at least 1" in cli.fails("history", "--limit", 0)


def test_what_was_done(cli: Cli, store: Store) -> None:
    with recorded(store.runtime, "maintain") as recorder, recorder.over(TopicPartition("orders", 1), "merge"):
        recorder.add(
            TopicPartition("orders", 1),
            "published",
            base_offset=0,
            end_offset=8,
            generation=1,
            input_files=3,
            output_files=1,
            bytes_read=2048,
            bytes_written=1024,
        )
    with recorded(store.runtime, "vacuum") as recorder:
        recorder.add(TopicPartition("orders", 0), "deleted", deleted_objects=12, deleted_bytes=4096)
    heading, *lines = cli("history").lines
    merge, vacuum = sorted(lines)  # both may have begun in the same millisecond
    assert heading.split()[:4] == ["STARTED", "JOB", "TOPIC", "PARTITION"]
    assert "12, 4 KiB" in vacuum
    assert "0 to 7" in merge
    assert "3 → 1" in merge
    assert "2 KiB → 1 KiB" in merge
    (row,) = cli("history", "orders", "--job", "vacuum", "--output", "json").json
    assert (row["step"]["outcome"], row["step"]["deleted_objects"]) == ("deleted", 12)
    assert cli("history", "events").lines == ["No maintenance job has done anything there."]
    assert len(cli("history", "--limit", 1).lines) == 2
