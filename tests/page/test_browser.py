"""How does a page look in a browser, on wide and narrow, light and dark screens? `make test-page` runs this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.browser import Browser, browser
from tests.page.pictures import MAX_BYTES, PICTURES
from tests.page.shop import PAGE, ROOT
from tests.page.test_drawing import HOSTILE, hostile_page
from txlog.drawing.html import document
from txlog.drawing.svg import draw

pytestmark = pytest.mark.page

WINDOWS = [(width, dark) for width in (1280, 400) for dark in (False, True)]

OVERFLOWS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
OUTSIDE = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(each => !each.closest('.scroll') && each.tagName != 'STYLE')
  .filter(each => each.getBoundingClientRect().right > wide + 0.5).map(each => each.outerHTML.slice(0, 200));
"""
TEXTS = """
return [...document.querySelectorAll('svg text, h1, h2, h3, p, dt, dd, td, th, li, summary')]
  .filter(each => each.textContent.trim() && each.checkVisibility())
  .map(each => [each.textContent, getComputedStyle(each)[each.closest('svg') ? 'fill' : 'color'],
                each.getBoundingClientRect().width, each.getBoundingClientRect().height,
                parseFloat(getComputedStyle(each).fontSize)]);
"""
GROUND = "return getComputedStyle(document.body).backgroundColor"
COVERED = """
// Labels of a drawing that lie on each other.
return [...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], at) => boxes.slice(at + 1)
    .filter(([_, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
    .map(([other]) => `${text} / ${other}`));
});
"""
CUT = """
// Labels that reach out of their drawing.
return [...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(each => {
    const box = each.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  }).map(each => each.textContent);
});
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(...)`, as WCAG defines it."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def check(shown: Browser, page: Path, width: int, dark: bool) -> None:
    """Check that a page fits, can be read, asks for nothing and complains about nothing."""
    shown.open(page.as_uri(), width=width, dark=dark)
    scrolled, client = shown.run(OVERFLOWS)
    assert client == width
    assert scrolled <= client
    assert shown.run(OUTSIDE) == []
    ground = luminance(shown.run(GROUND))
    assert (ground < 0.1) == dark
    texts = shown.run(TEXTS)
    assert len(texts) > 60
    for text, colour, wide, high, size in texts:
        lighter, darker = sorted((luminance(colour), ground), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, colour)
        assert wide > 0, text
        assert high > 6, text
        assert size >= 10, text
    assert shown.run(CUT) == []
    assert shown.requests() == [page.as_uri()]
    assert shown.logs("browser") == []


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_the_page_of_the_docs(shown: Browser, shop_folder: Path, width: int, dark: bool) -> None:
    check(shown, shop_folder / "my-shop.html", width, dark)
    assert shown.run(COVERED) == []
    shapes = "return document.querySelectorAll('svg path title').length"
    assert shown.run(shapes) > 100


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_texts(shown: Browser, tmp_path: Path, number: int, width: int, dark: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text(document(hostile_page(HOSTILE[number]), draw), encoding="utf-8")
    check(shown, page, width, dark)


def test_the_pictures_are_of_this_page() -> None:
    for name in PICTURES:
        assert f"]({name})" in PAGE
        assert (ROOT / "docs" / name).stat().st_size < MAX_BYTES
