"""Does a page show what is in a store, at a bounded cost, and without a write?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli
from tests.client.world import World
from tests.page.reading import Parsed
from tests.page.stores import many_segments, random_topic
from txlog.client import Store
from txlog.client.reading import read_session
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.drawing.html import document
from txlog.drawing.spans import Spans
from txlog.drawing.svg import draw
from txlog.drawing.values import Page
from txlog.errors import CorruptLogError, UnknownTopicOrPartitionError
from txlog.inspection import overview, partition_look as module
from txlog.inspection.chain import PartitionChain, dump_partition
from txlog.inspection.overview import MAX_DRAWN_TOPICS, topic_sections
from txlog.inspection.partition_look import PartitionLook, look_at_partitions, ribbon_of
from txlog.inspection.sections import Ribbon
from txlog.maintenance.merge import merge_partitions
from txlog.maintenance.partition_loop import gather
from txlog.testing.failing_store import Fault

WRITES = "^(put_if_absent|write_file|delete) "


def look_at(store: Store, tp: TopicPartition, *, spans: int = 10_000, indexes: int = 10_000) -> PartitionLook:
    damaged: list[CorruptLogError] = []
    session = read_session(store.runtime)
    looks = look_at_partitions(
        session,
        session.fresh_views([tp], "looking"),
        max_indexes=indexes,
        max_spans=spans,
        max_pieces=10_000,
        damaged=damaged,
    )
    assert not damaged
    return looks[tp]


def fates(chain: PartitionChain) -> dict[int, str]:
    """Return what the log dump says of each offset; a marker has the fate of its transaction."""
    found: dict[int, str] = {}
    for batch in chain.batches:
        fate = {
            "plain": "committed",
            "control": {"abort": "aborted", "commit": "committed"}.get(batch.kind, "control"),
        }.get(batch.fate, batch.fate)
        assert isinstance(fate, str)
        found |= dict.fromkeys(range(max(batch.base_offset, chain.log_start_offset), batch.last_offset + 1), fate)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_ribbon_says_the_same_of_each_offset_as_the_log_dump(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 2)
    store = random_topic(world, seed)
    if seed % 2:
        store.admin().delete_records("orders", 0, before=7)
    for partition in range(2):
        tp = TopicPartition("orders", partition)
        chain, look = dump_partition(store.runtime, tp), look_at(store, tp)
        shown = {offset: span.kind for span in look.ribbon.fates for offset in range(span.start, span.end)}
        assert shown == fates(chain)
        assert look.ribbon.places[-1].end == look.ribbon.log_end_offset == chain.log_end_offset
        places = [place for span in look.ribbon.places for place in [span.kind] * span.counts.total()]
        assert (places.count("sealed"), places.count("tail")) == (len(chain.segments), chain.tail_batches)
        assert look.ribbon.rows == sum(batch.records for batch in chain.batches)
        assert look.ribbon.aborted_transactions == len(chain.aborted)
        assert look.ribbon.bytes == sum(each.bytes for each in chain.segments) + sum(
            stored.record.payload_bytes + sum(file.bytes for file in stored.record.files)
            for stored in store.runtime.run(module_view(store, tp)).tail
        )
        # A description has no batches, so it cannot be more exact than this.
        assert ribbon_of(chain).open_transactions == look.ribbon.open_transactions
        check_pieces(chain, look)


def module_view(store: Store, tp: TopicPartition) -> Any:
    from txlog.protocol.load import load

    return load(store.runtime.context(), tp)


def check_pieces(chain: PartitionChain, look: PartitionLook) -> None:
    """Check that the transactions are those that the markers of the log end, and the open ones."""
    markers = [batch for batch in chain.batches if batch.kind in ("commit", "abort")]
    ended = [piece for piece in look.pieces if piece.kind != "open"]
    assert sorted((piece.producer_id, piece.last_offset) for piece in ended) == sorted(
        (batch.producer_id, batch.last_offset) for batch in markers
    )
    by_end = {(batch.producer_id, batch.last_offset): batch.kind for batch in markers}
    for piece in ended:
        kind = by_end[piece.producer_id, piece.last_offset]
        assert piece.kind == {"commit": "committed", "abort": "aborted"}[kind]
    opened = {piece.producer_id: piece for piece in look.pieces if piece.kind == "open"}
    assert {each.producer_id: each.txn_first_offset for each in chain.open_transactions} == {
        pid: piece.first_offset for pid, piece in opened.items()
    }
    data = [batch for batch in chain.batches if batch.kind == "data" and batch.fate != "plain"]
    assert sum(piece.rows for piece in look.pieces) == sum(batch.records for batch in data)


def test_a_merge_hides_nothing_and_its_rows_belong_to_no_transaction(world: World) -> None:
    store = random_topic(world, 3)
    tp = TopicPartition("orders", 0)
    before = look_at(store, tp)
    gather(merge_partitions(read_session(store.runtime), [tp], MergePolicy()))
    after = look_at(store, tp)
    assert "merged" in {span.kind for span in after.ribbon.places}
    merged_end = max(span.end for span in after.ribbon.places if span.kind == "merged")
    assert all(span.kind == "committed" for span in after.ribbon.fates if span.end <= merged_end)
    known = {(piece.producer_id, piece.producer_epoch): piece for piece in before.pieces}
    for piece in after.pieces:
        was = known[piece.producer_id, piece.producer_epoch]
        assert (piece.kind, piece.last_offset) == (was.kind, was.last_offset)


def test_old_segments_beyond_the_limit_are_not_read(world: World) -> None:
    store = random_topic(world, 1)
    tp = TopicPartition("orders", 0)
    everything = look_at(store, tp)
    with world.counting.counting() as cost:
        look = look_at(store, tp, indexes=2)
    indexes = [path for verb, path in cost.calls() if path.endswith(".index")]
    assert len(indexes) == look.indexes == 2
    assert look.unread == everything.indexes - 2
    assert look.ribbon.fates[0].kind == "unread"
    assert look.ribbon.rows is None
    assert look.ribbon.fates[-1].kind == everything.ribbon.fates[-1].kind


def test_the_page_of_a_large_store_is_small_and_cheap(world: World) -> None:
    store = many_segments(world, 1000)
    writes = world.counting.requests()
    with world.counting.counting() as cost:
        page = overview.look(store.runtime)
    html = document(page, draw)
    Parsed(html).check_harmless()
    assert len(html.encode()) < 2_000_000
    segments = sum(name.endswith(".index") for number in range(4) for name in world.memory.list(f"many/{number}/"))
    assert segments >= 1000
    opened = sum(verb == "get" and path.endswith(".index") for verb, path in cost.calls())
    assert opened == segments
    # Four partitions, the two internal topics, the topics, the history, and one GET for each object of a tail.
    assert cost.list <= 4 + 4 + 100 + 3
    tails = sum(path.endswith(".batch") for _, path in cost.calls())
    indexes = sum(path.endswith(".txnindex") for _, path in cost.calls())
    assert cost.get <= segments + tails + indexes + 120
    assert tails < 100
    assert (cost.put_if_absent, cost.write_file, cost.delete) == (0, 0, 0)
    assert writes.put_if_absent > 0
    assert len(re.findall("<title>", html)) < 8_000


def test_the_page_of_many_partitions_and_topics_is_small() -> None:
    """As many spans as the limits allow, and more topics than are drawn."""
    topics, partitions = 50, 10
    limit = overview.spans_of_each(topics * partitions)
    looks = []
    for number in range(topics * partitions):
        fates, places = (Spans(10**9, 2 * 10**9, limit, joined=False) for _ in range(2))
        for start in reversed(range(10**9, 2 * 10**9, 10**7)):
            fates.add(start, start + 10**7, ("committed", "aborted")[start // 10**7 % 2])
            places.add(start, start + 10**7, "sealed")
        ribbon = Ribbon(
            topic=f"a-topic-with-a-longer-name-{number // partitions}",
            partition=number % partitions,
            log_start_offset=10**9,
            last_stable_offset=2 * 10**9,
            log_end_offset=2 * 10**9,
            fates=fates.result(),
            places=places.result(),
            open_transactions=number == topics * partitions - 1,
        )
        looks.append(PartitionLook(ribbon=ribbon, pieces=[], files=[], totals={}, indexes=0, unread=0))
    page = Page(title="t", subtitle="", figures=(), warnings=(), sections=topic_sections(looks))
    html = document(page, draw)
    assert html.count("<svg") == MAX_DRAWN_TOPICS
    assert html.count("<table") == topics
    assert len(html.encode()) < 2_000_000
    # The last one has an open transaction.
    assert page.sections[-1].drawing is not None
    assert page.sections[-2].drawing is None


def test_a_damaged_partition_is_a_warning_and_the_others_are_drawn(world: World) -> None:
    random_topic(world, 2)
    damaged = next(name for name in world.memory.list("orders/0/") if name.endswith(".index"))
    path = f"orders/0/{damaged}"
    data = world.memory.get(path)
    assert data is not None
    world.memory.delete(path)
    world.memory.put_if_absent(path, data[:-1] + bytes([data[-1] ^ 1]))
    page = overview.look(world.open().runtime)
    assert any(path in warning for warning in page.warnings)
    parsed = Parsed(document(page, draw))
    assert any(path in text for text in parsed.texts)
    assert "Partitions of orders over offsets" in [
        value for _, name, value in parsed.attributes if name == "aria-label"
    ]


def test_only_the_named_topics(world: World) -> None:
    store = random_topic(world, 4)
    store.create_topic("other")
    producer = store.producer("elsewhere")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("other", [{"key": b"k", "value": b"v"}])
    producer.flush()
    shown = document(overview.look(store.runtime, ["orders"]), draw)
    assert re.search(r"Table: orders, \d+ partitions?<", shown)
    assert "Table: other" not in shown
    assert "other-0" not in shown
    with pytest.raises(UnknownTopicOrPartitionError, match="ordres"):
        overview.look(store.runtime, ["ordres"])


def test_open_and_overdue_transactions(world: World) -> None:
    store = world.open()
    store.create_topic("orders", partitions=1)
    for name, timeout_ms in [("late", 1000), ("busy", 600_000)]:
        producer = store.producer(name, transaction_timeout_ms=timeout_ms)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", [{"value": b"v"}])
        producer.flush()
    world.clock.advance_ms(5000)
    page = overview.look(store.runtime)
    (section,) = [each for each in page.sections if each.title == "Transactions"]
    assert section.table is not None
    assert {(row[0], row[1]) for row in section.table.rows} == {("late", "past its time-out"), ("busy", "ONGOING")}
    assert dict(page.figures)["open transactions"].startswith("2, oldest 5")
    assert dict(page.figures)["offsets above the LSO"] == "2"


def test_the_page_of_the_docs_shows_everything(shop_folder: Path) -> None:
    html = (shop_folder / "my-shop.html").read_text(encoding="utf-8")
    parsed = Parsed(html)
    parsed.check_harmless()
    kinds = "committed aborted open deleted sealed merged compacted tail lso end ongoing lag published"
    for kind in kinds.split():
        assert f"var(--tx-{kind})" in html, kind
    for text in (
        "customers",
        "orders",
        "payments",
        "Transactions",
        "Consumer groups",
        "Files and sizes",
        "Maintenance",
    ):
        assert text in parsed.texts, text
    labels = [value for _, name, value in parsed.attributes if name == "aria-label"]
    assert len(labels) == parsed.tags["svg"] == 7
    assert {"billing", "fraud", "nightly", "merge", "compact"} <= set(parsed.texts)
    # Each drawing has a table with the same content.
    assert html.count("<details") == 7


def test_no_request_writes(shop: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import txlog
    from txlog.storage.open import open_object_store
    from txlog.testing.failing_store import FailingStore

    failing = FailingStore(open_object_store(str(shop.root)), Fault(action="403", match=WRITES, times=10**9))
    with txlog.open(str(shop.root), object_store=failing) as store:
        document(overview.look(store.runtime), draw)
        store._repr_html_()
        store.table("orders")._repr_html_()
        admin: Any = store.admin()
        admin.list_groups()._repr_html_()
        admin.list_transactions()._repr_html_()
        store.admin().describe_partition("orders", 0)._repr_html_()
    assert not failing.struck
    assert {operation.split()[0] for operation in failing.operations} <= {
        "get",
        "get_range",
        "list",
        "size",
        "modified_ms",
    }
