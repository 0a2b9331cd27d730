"""What does a page contain? Its elements and texts, as a parser of HTML finds them."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.titles: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "title" and "svg" in self._open:
            self.titles.append(data)
        elif "style" not in self._open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def check_harmless(self) -> None:
        """Check that the page runs nothing, loads nothing, and hides no character."""
        assert not {"script", "iframe", "img", "link", "object", "embed", "form", "base"} & set(self.tags), self.tags
        for tag, name, value in self.attributes:
            assert not name.startswith("on"), (tag, name)
            assert name != "src", (tag, value)
            assert name != "href" or re.fullmatch(r"#\w+", value), (tag, value)
            assert "url(" not in value or re.fullmatch(r"url\(#\w+\)", value), (tag, name, value)
        for text in [*self.texts, *self.titles, *(value for _, _, value in self.attributes)]:
            assert all(each.isprintable() or each == "\n" for each in text), text
