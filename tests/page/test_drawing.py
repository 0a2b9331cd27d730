"""Does a drawing show its values, in any text, with nothing that a browser would run?"""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise

import pytest

from tests.page.reading import Parsed
from txlog.client.admin.descriptions import GroupInfo, GroupOffset
from txlog.core.records import CleanupStep
from txlog.drawing.html import _COLOURS, document, fragment
from txlog.drawing.spans import _FIRST, Span, Spans
from txlog.drawing.svg import draw
from txlog.drawing.values import KINDS, Lanes, Page, Section, visible
from txlog.errors import InvalidRequestError
from txlog.inspection.sections import (
    MAX_LANES,
    OVERDUE,
    FilePoint,
    Piece,
    Ribbon,
    Transaction,
    files_section,
    groups_section,
    journal_section,
    topic_section,
    transactions_section,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "]]><svg onload=alert(1)>",
    "$x^2$ \\frac{1}{2} $",
    "\u202egnp.exe\u2066",
    "\x00\x1b[31m\r\n\ud800",
    '" onmouseover="alert(1)" style="fill:#fade00',
    "&lt;b&gt; --> <!-- @0@",
    "日本語のトピック" * 20,
    "x" * 30_000,
)


def ribbon(topic: str = "orders", partition: int = 0) -> Ribbon:
    fates = [Span(10, 40, "committed", Counter(committed=3)), Span(40, 60, "aborted", Counter(aborted=1))]
    return Ribbon(
        topic=topic,
        partition=partition,
        log_start_offset=10,
        last_stable_offset=60,
        log_end_offset=70,
        fates=[*fates, Span(60, 70, "open", Counter(open=1))],
        places=[Span(10, 50, "merged", Counter(merged=1), "title of a run"), Span(50, 70, "tail", Counter(tail=2))],
    )


def hostile_page(text: str) -> Page:
    piece = Piece(text, 7, 1, 1000, 2000, "committed", 0, 9, 10)
    done = Transaction(name=text, state="COMPLETE_COMMIT", start_ms=1000, end_ms=2000, pieces=[piece])
    position = GroupOffset(
        topic=text,
        partition=1,
        committed=2,
        pending=None,
        metadata="",
        committed_at=0,
        log_start_offset=0,
        last_stable_offset=9,
        log_end_offset=9,
        lag=7,
    )
    group = GroupInfo(
        group=text, state=text, generation=1, member_id=text, client_id="", topics=(), updated_at=0, offsets=(position,)
    )
    step = CleanupStep(job=text, topic=text, partition=1, started_at=5, ended_at=9, outcome=text, message=text)
    span = Span(0, 70, "committed", Counter(), text)
    part = Ribbon(
        topic=text,
        partition=0,
        log_start_offset=0,
        last_stable_offset=70,
        log_end_offset=70,
        fates=[span],
        places=[Span(0, 70, "sealed", Counter(sealed=1), text)],
    )
    return Page(
        title=text,
        subtitle=text,
        figures=[(text, text)],
        warnings=[text],
        sections=[
            topic_section(text, [part], text),
            transactions_section([done], text),
            groups_section([group]),
            files_section([FilePoint(1000, "sealed", 5_000)], text),
            journal_section([(text, step)], text),
        ],
    )


def test_every_kind_has_a_word_and_a_colour_in_both_modes() -> None:
    assert set(KINDS) <= set(_COLOURS)
    assert set(_FIRST) <= set(KINDS)
    assert all(light != dark for role, (light, dark) in _COLOURS.items() if role != "end")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_shown_and_do_nothing(text: str) -> None:
    page = document(hostile_page(text), draw)
    parsed = Parsed(page)
    parsed.check_harmless()
    assert parsed.tags["svg"] == 5
    assert parsed.tags["h1"] == parsed.tags["body"] == 1
    start = visible(text)[:20]
    assert sum(start in each for each in parsed.texts) >= 10
    assert sum(start in each for each in parsed.titles) >= 3
    # A text of any length is cut.
    assert len(page) < 60_000
    page.encode()


def test_texts_are_not_read_as_mathematics_or_as_colours() -> None:
    shown = draw(Lanes(alt="", axis="offset", labels=["$x_1$", "fill:#fade00", "@0@"], boxes=()))
    assert ">$x_1$<" in shown
    assert ">fill:#fade00<" in shown
    assert ">@0@<" in shown


def test_invisible_characters_are_escapes() -> None:
    assert visible("a\u202eb\x00\x9f\ud800\u2028") == "a\\u202eb\\x00\\x9f\\ud800\\u2028"
    assert visible("Ünïcode 日本 -") == "Ünïcode 日本 -"


def test_a_ribbon_shows_its_spans_and_ends() -> None:
    section = topic_section("orders", [ribbon(), ribbon(partition=1)])
    assert section.drawing is not None
    titles = Parsed(fragment([section], draw)).titles
    assert Counter(titles) == Counter(
        2
        * [
            "Offsets 0 to 9: deleted",
            "Offsets 10 to 39: 3 committed",
            "Offsets 40 to 59: 1 aborted",
            "Offsets 60 to 69: 1 open",
            "Offsets 10 to 49: title of a run",
            "Offsets 50 to 69: 2 tail",
            "LSO: 60",
            "Log end: 70",
        ]
    )
    assert set(section.legend) == {"committed", "aborted", "open", "deleted", "merged", "tail", "lso", "end"}
    assert section.table is not None
    assert list(section.table.rows[0][:4]) == [0, 10, 60, 70]


def test_a_topic_of_many_partitions_is_drawn_in_part_and_listed_in_full() -> None:
    section = topic_section("orders", [ribbon(partition=number) for number in range(MAX_LANES + 5)])
    assert isinstance(section.drawing, Lanes)
    assert len(section.drawing.labels) == MAX_LANES
    assert section.table is not None
    assert len(section.table.rows) == MAX_LANES + 5
    assert f"the first {MAX_LANES} partitions" in section.note


def test_a_long_open_transaction_does_not_hide_the_others() -> None:
    def txn(name: str, state: str, start: int, end: int) -> Transaction:
        piece = Piece("orders-0", 1, 1, start, end, "open" if state == OVERDUE else "committed", 0, 0, 1)
        return Transaction(name=name, state=state, start_ms=start, end_ms=end, pieces=[piece])

    week_ms = 7 * 86_400_000
    section = transactions_section([txn("old", OVERDUE, 0, week_ms), txn("new", "COMPLETE_COMMIT", 50_000, 58_000)])
    assert isinstance(section.drawing, Lanes)
    assert {(box.kind, box.start, box.end) for box in section.drawing.boxes} == {
        ("timeout", 48_000, 60_000),
        ("committed", 50_000, 58_000),
    }
    assert "cut at the edges" in section.note
    assert any("began 1970-01-01T00:00:00.000Z, 7 d" in box.title for box in section.drawing.boxes)


def test_bars_of_one_time_do_not_cover_each_other() -> None:
    pieces = [Piece("orders-0", pid, 1, 0, 100, "committed", pid, pid, 1) for pid in range(3)]
    made = [Transaction(name="t", state="COMPLETE_COMMIT", start_ms=0, end_ms=100, pieces=[each]) for each in pieces]
    drawing = transactions_section(made).drawing
    assert isinstance(drawing, Lanes)
    bands = sorted((box.low, box.high) for box in drawing.boxes)
    assert all(before[1] <= after[0] for before, after in pairwise(bands))


@pytest.mark.parametrize("last_ms", [-1, 0, 1, 999, 86_400_000, 253_402_300_799_999])
def test_times_of_any_length_are_drawn(last_ms: int) -> None:
    """A record of the format may have any time up to the end of the year 9999."""
    piece = Piece("orders-0", 1, 1, 0, last_ms, "committed", 0, 0, 1)
    txn = Transaction(name="t", state="COMPLETE_COMMIT", start_ms=0, end_ms=last_ms, pieces=[piece])
    step = CleanupStep(job="merge", topic="", partition=0, started_at=-1, ended_at=last_ms, outcome="published")
    points = [FilePoint(-1, "tail", 1), FilePoint(last_ms, "sealed", 2**47)]
    sections = [transactions_section([txn]), files_section(points), journal_section([("", step)])]
    parsed = Parsed(fragment(sections, draw))
    assert parsed.tags["svg"] == 3
    assert not any("nan" in value.lower() for tag, name, value in parsed.attributes if name in ("d", "x", "y"))


def test_an_empty_page_is_a_page() -> None:
    empty = Ribbon(
        topic="empty", partition=0, log_start_offset=0, last_stable_offset=0, log_end_offset=0, fates=[], places=[]
    )
    sections = [
        topic_section("empty", [empty]),
        transactions_section([]),
        groups_section([]),
        files_section([]),
        journal_section([]),
    ]  # fmt: skip
    parsed = Parsed(document(Page(title="t", subtitle="", figures=(), warnings=(), sections=sections), draw))
    assert parsed.tags["svg"] == 0
    assert parsed.texts.count("None.") == 4


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidRequestError, match=r"hint: pip install 'pyspark-txlog\[page\]'") as caught:
        draw(Lanes(alt="", axis="offset", labels=(), boxes=()))
    assert len(str(caught.value)) <= 300


def test_the_drawing_leaves_the_settings_of_matplotlib_as_they_are() -> None:
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "path", "font.size": 17, "text.usetex": True, "axes.facecolor": "red"}):
        shown = draw(Lanes(alt="", axis="offset", labels=["text"], boxes=()))
        assert ">text<" in shown
        assert (mpl.rcParams["font.size"], mpl.rcParams["text.usetex"]) == (17, True)
    assert draw(Lanes(alt="", axis="offset", labels=["text"], boxes=())) == shown


@pytest.mark.parametrize("seed", range(30))
def test_spans_keep_what_was_added(seed: int) -> None:
    """While there are few, offsets keep their kind. Later each part has the kind that matters most in it."""
    draw_ = random.Random(seed)
    start, limit = draw_.randrange(50), draw_.randrange(1, 40)
    ends, at = [], draw_.randrange(40)
    for _ in range(draw_.randrange(1, 80)):
        length = draw_.randrange(1, 9)
        ends.append((at, at + length, draw_.choice(["committed", "aborted", "open"])))
        at += length
    spans = Spans(start, max(at, start + 1), limit, joined=bool(seed % 2))
    kinds: dict[int, str] = {}
    for low, high, kind in reversed(ends):
        spans.add(low, high, kind)
        kinds |= dict.fromkeys(range(max(low, start), high), kind)
    found = spans.result()
    assert len(found) <= limit
    assert all(start <= span.start < span.end <= max(at, start + 1) for span in found)
    assert all(before.end <= after.start for before, after in pairwise(found))
    exact = sum(high > start for _, high, _ in ends) <= limit
    for offset, kind in kinds.items():
        (span,) = [each for each in found if each.start <= offset < each.end]
        if exact:
            assert span.kind == kind
        else:
            assert _FIRST.index(span.kind) <= _FIRST.index(kind)
    added = Counter(kind for _, high, kind in ends if high > start)
    assert sum((span.counts for span in found), Counter()) == +added


def test_a_section_without_a_drawing_is_a_table() -> None:
    assert "<svg" not in fragment([Section(title="t")], draw)
