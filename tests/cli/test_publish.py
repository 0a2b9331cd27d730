"""`txlog publish`, and what `topics describe` and `maintain` tell of it. tests/publication has the tables
themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import order_rows
from tests.cli.support import FAST, Cli
from txlog.cli.documents import PublishDocument, PublishedDocument, PublishedFileDocument
from txlog.client import Store


@pytest.fixture
def published(cli: Cli, store: Store) -> Cli:
    """Two rows in commit records of orders-0, which may be published at once."""
    store.alter_topic("orders", config={"publish.formats": "delta", "publish.max.lag.ms": 0})
    with store.producer(linger_ms=0) as producer:
        producer.send("orders", order_rows(0, 2), partition=0).result()
    time.sleep(0.002)  # the lag is counted in whole milliseconds
    return cli


def test_nothing_to_publish_names_the_command_that_changes_that(cli: Cli, store: Store) -> None:
    done = cli("publish", "--once")
    assert "`txlog topics alter TOPIC --set publish.formats=delta,iceberg` sets it." in done.out


def test_it_tells_what_it_published(published: Cli) -> None:
    done = published("publish", "--once")
    assert done.lines[1].split() == ["orders", "delta", "1", "2", "0", "1", "0"]
    assert published("publish", "--once").lines[1].split() == ["orders", "delta", "1", "0", "0", "0", "0"]
    described = published("topics", "describe", "orders").out
    assert "tables            delta version 1" in described
    assert "shows rows below  0: 3, 1: 0" in described
    assert "behind            no committed row" in described


def test_json(published: Cli, store: Store) -> None:
    (done,) = published("publish", "orders", "--once", "-o", "json").json
    assert set(done) == set(PublishDocument.__struct_fields__)
    assert (done["publication"], done["rows_added"], done["rows_copied"]) == (1, 2, 0)
    (file,) = published("publish", "--files", "-o", "json").json
    assert set(file) == set(PublishedFileDocument.__struct_fields__)
    assert (file["rows"], file["removed"]) == (2, [])
    assert file["url"].startswith(f"file://{published.root}/orders/0/")
    with store.producer(linger_ms=0) as producer:
        producer.send("orders", order_rows(5, 1), partition=1).result()
    (topic,) = published("topics", "describe", "orders", "-o", "json").json
    assert set(topic["published"]) == set(PublishedDocument.__struct_fields__)
    assert (topic["published"]["formats"], topic["published"]["ends"]) == ({"delta": 1}, [3, 0])
    assert topic["published"]["behind_ms"] > 0


def test_maintain_publishes_before_it_merges(published: Cli) -> None:
    assert "published 2 new rows; 1 file added, 0 removed" in published("maintain", "--once").out
    assert "new row" not in published("maintain", "--once").out


def test_what_is_refused(published: Cli, store: Store) -> None:
    assert "give one of --once" in published("publish", status=2).err
    assert "give one of --once" in published("publish", "--once", "--daemon", status=2).err
    store.create_topic("plain")
    refused = published("publish", "plain", "--once", status=2)
    assert "topic 'plain' is not published" in refused.err
    assert refused.out == ""
    assert published("publish", "--once", "-o", "json").json[0]["topic"] == "orders"


def test_a_table_that_another_program_wrote_to_is_an_error(published: Cli) -> None:
    log = published.root / "orders" / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text('{"commitInfo":{}}\n')
    done = published("publish", "--once", status=None)
    assert done.status != 0
    assert "_delta_log/00000000000000000000.json" in done.err


def test_a_topic_that_fails_stops_no_other(published: Cli, store: Store) -> None:
    store.create_topic("alien", config={"publish.formats": "delta"})
    log = published.root / "alien" / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text('{"commitInfo":{}}\n')
    done = published("publish", "--once", status=4)
    assert done.lines[0].split()[-1] == "FAILED"
    assert done.lines[1].split()[0] == "alien"
    assert "alien/_delta_log/00000000000000000000.json" in done.lines[1]
    assert done.lines[2].split() == ["orders", "delta", "1", "2", "0", "1", "0", "-"]
    assert "alien/_delta_log/00000000000000000000.json" in done.err
    done = published("publish", "--once", "-o", "json", status=4)
    alien, orders = done.json
    assert (alien["topic"], alien["publication"], orders["error"]) == ("alien", -1, None)
    assert "alien/_delta_log" in alien["error"]


def test_a_name_that_is_no_topic_and_a_damaged_topic_stop_no_other(published: Cli, store: Store) -> None:
    done = published("publish", "nothing", "orders", "--once", status=2)
    assert [line.split()[0] for line in done.lines[1:]] == ["nothing", "orders"]
    assert "'nothing'" in done.err
    store.create_topic("damaged")
    (published.root / "damaged" / f"topic.{0:020d}.json").write_bytes(b"?")
    done = published("publish", "--once", status=4)
    assert done.lines[-1].split()[:3] == ["orders", "delta", "1"]
    assert f"damaged/topic.{0:020d}.json" in done.err


def test_the_daemon_publishes_until_a_signal(published: Cli, store: Store) -> None:
    command = [sys.executable, "-m", "txlog.cli.main", "--store", str(published.root), "publish", "--daemon"]
    options = [part for name, value in FAST.items() for part in ("--storage-option", f"{name}={value}")]
    with subprocess.Popen([*command, "--interval-ms", "20", *options], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert "orders: publication 1, 2 new rows in 1 file" in daemon.stdout.readline()
        with store.producer(linger_ms=0) as producer:
            producer.send("orders", order_rows(5, 1), partition=1).result()
        assert "orders: publication 2, 1 new row in 1 file" in daemon.stdout.readline()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(20) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
