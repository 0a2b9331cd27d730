"""Does every link of the built site lead somewhere, and does no page ask another host for anything?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {
    ("img", "src"),
    ("script", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("object", "data"),
    ("use", "href"),
    ("image", "href"),
}
"""Tags whose attribute makes a browser load something."""
_URL = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.repeated: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.repeated += [value] if value in self.anchors else []
                self.anchors.add(value)
            elif (tag, name) in _LOADED or (tag == "a" and name == "href"):
                (self.links if tag == "a" else self.loaded).append(value)
            elif name == "srcset":
                self.loaded += [part.split()[0] for part in value.split(",")]
            elif name == "style":
                self.loaded += _URL.findall(value)


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for each dead link, dead anchor, repeated anchor and request to another host."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        here = path.relative_to(site).as_posix()
        yield from (f"{here}: the anchor #{anchor} stands for two places" for anchor in page.repeated)
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    yield f"{here}: the page loads {link} from another host"
                continue
            # The page for what is not found has absolute links: no folder of the file system is its root.
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if not target.is_file():
                yield f"{here}: the link {link} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{here}: the link {link} names an anchor that does not exist"
    for path in sorted(site.rglob("*.css")):
        for url in _URL.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site).as_posix()}: the style loads {url} from another host"
