"""How does matplotlib draw a figure that belongs to an HTML page?

The result is an `<svg>` element. Its colours are CSS variables, so the page chooses light or dark. matplotlib never
sees a text of the store: it draws numbered placeholders, and they are replaced afterwards. So no text is read as
mathematics, no font must have its characters, and the XML library escapes it.
"""

from __future__ import annotations

import io
import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from txlog.drawing.values import KINDS, Box, Columns, Lanes, Panel, visible
from txlog.errors import InvalidRequestError
from txlog.text import install_text, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROLES = (*KINDS, "text", "grid", "ground")
_COLOURS = {role: f"#fade{number:02x}" for number, role in enumerate(_ROLES)}
"""Role -> the colour that stands for it while matplotlib draws."""
_VARIABLES = {colour: f"var(--tx-{role})" for role, colour in _COLOURS.items()}

_WIDTH = 11.0
"""Inches of 72 units. A page may scale the drawing."""
_LANE = 0.34
_FRAME = {"time": 0.62, "offset": 0.42, "rows": 0.42}
_CHARACTER = 0.09
"""Inches: the height of a lane, the height of the axis with its labels, and the width of a character of a label."""
_MARGIN = 0.45
"""Inches at the right: half of a label of the axis."""
_LONGEST_LABEL = 28
_LONGEST_TITLE = 400
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_DAY_MS = 86_400_000
_LAST_MS = 250_000_000_000_000
"""In the year 9892. matplotlib knows no time after 9999, and a drawing needs room beside its last time."""
_TIMES = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S.%f"]
_ROUND_TIMES = ["", "%Y", "%b", "%b %d", "%H:%M", "%H:%M:%S"]
_DATES = ["", "%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"]
"""For ticks of years, months, days, hours, minutes and seconds: the label, the label of the first one, and the date
beside the axis."""
_THINNEST = 1 / 500
"""The least width of a box, as a part of the axis."""
_LOCK = threading.Lock()
"""matplotlib's settings belong to the whole process."""
_SVG = "{http://www.w3.org/2000/svg}"


def check_installed() -> None:
    """Raise InvalidRequestError with the name of the extra if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InvalidRequestError(
            f"drawings need matplotlib, which cannot be loaded ({error!s:.80}). hint: {install_text('page')}"
        ) from None


def is_installed() -> bool:
    """Return whether drawings can be made."""
    try:
        check_installed()
    except InvalidRequestError:
        return False
    return True


def draw(drawing: Lanes | Columns) -> str:
    """Return the drawing as an `<svg>` element. Raises InvalidRequestError without matplotlib."""
    check_installed()
    texts = _Texts()
    with _styled():
        figure, titles = _lanes(drawing, texts) if isinstance(drawing, Lanes) else _columns(drawing, texts)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
    return _element(target.getvalue(), drawing.alt, titles, texts)


class _Texts:
    """Placeholders of texts."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, text: str, most: int = _LONGEST_LABEL) -> str:
        """Return a placeholder for `text`, which is shortened to `most` characters."""
        self._texts.append(shorten(visible(text), most))
        return f"@{len(self._texts) - 1}@"

    def replaced(self, text: str) -> str:
        """Return what a drawn text stands for."""
        found = re.fullmatch(r"@(\d+)@", text)
        return self._texts[int(found[1])] if found else text


@contextmanager
def _styled() -> Iterator[None]:
    from matplotlib import style

    ours: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "txlog",
        "text.parse_math": False,
        "text.usetex": False,
        "font.family": "DejaVu Sans",  # matplotlib brings it
        "font.size": 10,
        **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), _COLOURS["text"]),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), _COLOURS["grid"]),
    }
    with _LOCK, style.context(["default", ours]):
        yield


# -- lanes ------------------------------------------------------------------------------------------------------------


def _lanes(drawing: Lanes, texts: _Texts) -> tuple[Figure, dict[str, Sequence[str]]]:
    from matplotlib.collections import LineCollection, PolyCollection

    if drawing.axis == "time":
        boxes = [replace(box, start=_in_time(box.start), end=_in_time(box.end)) for box in drawing.boxes]
        drawing = replace(drawing, boxes=boxes)
    labels = [shorten(visible(label), _LONGEST_LABEL) for label in drawing.labels]
    written = [(box, box.text) for box in drawing.boxes if box.text]
    left = _CHARACTER * max((_cells(label) for label in labels), default=0) + 0.15
    right = max(_CHARACTER * max((len(text) for _, text in written), default=0) + 0.15, _MARGIN)
    figure, (axes,) = _figure(_LANE * len(labels), drawing.axis, left, right, 1)
    scale = 1 / _DAY_MS if drawing.axis == "time" else 1.0
    low, high = _limits(drawing)
    thin = (high - low) * _THINNEST
    # Thin ones are in front, because each of them shows something rare.
    boxes = sorted(drawing.boxes, key=lambda box: box.end - box.start <= thin)
    axes.set_xlim(low * scale, high * scale)
    axes.set_ylim(len(labels), 0)
    axes.set_yticks([number + 0.5 for number in range(len(labels))], [texts.add(label) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.add_collection(
        PolyCollection(
            [_corners(box, thin, high, scale) for box in boxes],
            facecolors=[_COLOURS[box.kind] for box in boxes],
            edgecolors=_COLOURS["ground"],
            linewidths=[0.6 if box.end - box.start > 2 * thin else 0 for box in boxes],
            gid="boxes",
            clip_on=False,
        ),
        autolim=False,
    )
    axes.add_collection(
        LineCollection(
            [[(mark.at * scale, mark.lane + 0.06), (mark.at * scale, mark.lane + 0.94)] for mark in drawing.marks],
            colors=[_COLOURS[mark.kind] for mark in drawing.marks],
            linewidths=2.2,
            gid="marks",
            clip_on=False,
        ),
        autolim=False,
    )
    for box, text in written:
        middle = box.lane + 1 - (box.low + box.high) / 2
        axes.annotate(
            texts.add(text),
            (max(box.end, box.start + thin) * scale, middle),
            (4, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )
    _ticks(axes, drawing.axis)
    return figure, {"boxes": [box.title for box in boxes], "marks": [mark.title for mark in drawing.marks]}


def _in_time(at_ms: float) -> float:
    return min(max(at_ms, 0), _LAST_MS)


def _limits(drawing: Lanes) -> tuple[float, float]:
    ends = [each for box in drawing.boxes for each in (box.start, box.end)] + [mark.at for mark in drawing.marks]
    low, high = min(ends, default=0), max(ends, default=0)
    if drawing.axis != "time":
        return low, max(high, low + 1)
    # A moment alone needs a time around it.
    room = max((high - low) * 0.01, 500)
    return low - room, high + room


def _corners(box: Box, thin: float, high: float, scale: float) -> list[tuple[float, float]]:
    end = max(box.end, box.start + thin)
    start = min(box.start, high - thin) if end > high else box.start
    left, right = start * scale, min(end, high) * scale
    top, bottom = box.lane + 1 - box.high, box.lane + 1 - box.low
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


# -- columns ----------------------------------------------------------------------------------------------------------


def _columns(drawing: Columns, texts: _Texts) -> tuple[Figure, dict[str, Sequence[str]]]:
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    figure, every = _figure(1.35 * len(drawing.panels), "time", 0.85, _MARGIN, len(drawing.panels))
    scale = 1 / _DAY_MS
    titles: dict[str, Sequence[str]] = {}
    count = len(drawing.titles)
    for number, (axes, panel) in enumerate(zip(every, drawing.panels, strict=True)):
        corners, colours, shown = [], [], []
        highest = 0.0
        unit, name = _unit(panel)
        for column in range(count):
            left, right = (_in_time(drawing.start + (column + at) * drawing.width) * scale for at in (0.08, 0.92))
            heights = list(accumulate((values[column] / unit for values in panel.series.values()), initial=0.0))
            highest = max(highest, heights[-1])
            for kind, low, high in zip(panel.series, heights, heights[1:], strict=False):
                if high > low:
                    corners.append([(left, low), (right, low), (right, high), (left, high)])
                    colours.append(_COLOURS[kind])
                    shown.append(drawing.titles[column])
        gid = f"boxes{number}"
        titles[gid] = shown
        axes.add_collection(
            PolyCollection(corners, facecolors=colours, edgecolors=colours, linewidths=0.3, gid=gid, clip_on=False),
            autolim=False,
        )
        start = _in_time(drawing.start)
        axes.set_xlim(start * scale, max(_in_time(drawing.start + count * drawing.width), start + 1000) * scale)
        axes.set_ylim(0, highest * 1.05 or 1)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=panel.unit == "files", steps=[1, 2, 5, 10]))
        axes.grid(axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(texts.add(f"{panel.label}{name}", 60), loc="left", fontsize=10)
        _ticks(axes, "time")
        if axes is not every[-1]:
            axes.tick_params(axis="x", labelbottom=False)
            axes.xaxis.offsetText.set_visible(False)
    return figure, titles


def _unit(panel: Panel) -> tuple[int, str]:
    """Return the unit of a panel's axis, and its name after the label."""
    if panel.unit == "files":
        return 1, ""
    highest = max(map(sum, zip(*panel.series.values(), strict=True)), default=0)
    power = 0
    while highest >= 1024 and power < len(_UNITS) - 1:
        highest, power = highest // 1024, power + 1
    return 1024**power, f" in {_UNITS[power]}"


# -- both -------------------------------------------------------------------------------------------------------------


def _figure(height: float, axis: str, left: float, right: float, panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure whose panels have together this height, with room for their labels."""
    from matplotlib.figure import Figure

    frame = _FRAME[axis]
    height += frame
    figure = Figure(figsize=(_WIDTH, height))
    figure.patch.set_visible(False)
    found = figure.subplots(panels, 1, squeeze=False)[:, 0]
    top = 0.1 if panels == 1 else 0.3
    figure.subplots_adjust(
        left=left / _WIDTH,
        right=1 - right / _WIDTH,
        top=1 - top / height,
        bottom=(frame - 0.1) / height,
        hspace=0.35,
    )
    for axes in found:
        axes.patch.set_visible(False)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    return figure, list(found)


def _ticks(axes: Axes, axis: str) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if axis == "time":
        untyped: Any = (AutoDateLocator, ConciseDateFormatter)
        locator_of, formatter_of = untyped
        locator = locator_of(tz=UTC, minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            formatter_of(locator, tz=UTC, formats=_TIMES, zero_formats=_ROUND_TIMES, offset_formats=_DATES)
        )
        return
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _cells(text: str) -> int:
    """Return the width of a text in characters; those of East Asia are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def _element(drawn: str, alt: str, titles: dict[str, Sequence[str]], texts: _Texts) -> str:
    """Return the `<svg>` element of a document of matplotlib, with its texts, titles and variables."""
    root = ElementTree.fromstring(drawn)
    for above in list(root.iter()):
        for each in list(above):
            if each.tag.rpartition("}")[2] in ("metadata", "style"):
                above.remove(each)
    for group in root.iter(f"{_SVG}g"):
        shown = titles.get(group.attrib.pop("id", ""))
        if shown:
            paths = list(group.iter(f"{_SVG}path"))
            for path, title in zip(paths, shown, strict=True):
                ElementTree.SubElement(path, f"{_SVG}title").text = shorten(visible(title), _LONGEST_TITLE)
    for each in root.iter():
        each.tag = each.tag.removeprefix(_SVG)
        for name in list(each.attrib):
            value = each.attrib.pop(name)
            if name == "style":
                value = _style(value)
            elif name == "d":
                value = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", value).replace(" \n", "")
            if value and not value.startswith("rotate(-0 "):
                each.set("href" if name.endswith("}href") else name, value)
        if each.tag == "text":
            each.text = texts.replaced(each.text or "")
        each.tail = None
        if each.tag != "text" and each.tag != "title":
            each.text = None
    view = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": view, "role": "img", "aria-label": shorten(visible(alt), _LONGEST_TITLE)})
    return ElementTree.tostring(root, encoding="unicode")


def _style(text: str) -> str:
    """Return a style with variables for colours, without the font, which the page chooses."""
    kept = []
    for part in text.split(";"):
        name, _, value = (each.strip() for each in part.partition(":"))
        if not name or name.startswith("font") or name in ("stroke-miterlimit", "stroke-linejoin"):
            continue
        kept.append(f"{name}:{_VARIABLES.get(value, value)}")
    return ";".join(kept)
