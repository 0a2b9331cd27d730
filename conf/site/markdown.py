"""The pages are written for readers of the repository. What differs on the site?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

ROOT_PAGES = {"README.md": "index.md", "PROTOCOL.md": "PROTOCOL.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Files of the repository's root that are pages of the site -> their place there."""
INSTEAD = {
    "conf/alerts.yml": "files/alerts.yml",
    "conf/grafana.json": "files/grafana.json",
    "conf/txlog.toml": "reference/settings.md",
    "spark_ext/pyspark_txlog/metadata_schemas.py": "reference/metadata-tables.md",
    "spark_ext/pyspark_txlog/option_table.py": "reference/options.md",
    "txlog/cli/program.py": "reference/commands.md",
    "txlog/client/admin/admin.py": "reference/api/admin.md",
    "txlog/config/kafka_settings.toml": "reference/settings.md",
    "txlog/errors.py": "reference/errors.md",
    "txlog/metrics/table.py": "reference/metrics.md",
}
"""Files of the repository -> the pages that are made from them, or their copy for a download."""

_CODE = re.compile(r"^( *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(?:[*+-]|\d+\.) +")
_LINK = re.compile(r"`[^`\n]+`|(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()#:\s]+)(#[^()\s]*)?\)")
_QUOTES = re.compile(r"^(>.*\n)\n(?=>)", re.MULTILINE)
_SPECIAL = re.compile(r"([\\*_\[\]|])")


def for_site(text: str, uri: str, source_url: str) -> str:
    """Return the Markdown of the page at `uri` as the site needs it."""
    here = next((path for path, place in ROOT_PAGES.items() if place == uri), f"docs/{uri}")

    def link(found: re.Match[str]) -> str:
        image, shown, target, anchor = found.groups(default="")
        if not target:  # inline code
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        page = place_of(path)
        if page is not None:
            return f"{image}[{shown}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return found[0]  # mkdocs warns
        if source_url:
            return f"{image}[{shown}]({source_url}{path}{anchor})"
        return shown if path in shown else f"{shown} (`{path}`)"

    # Python's Markdown joins quotes that only an empty line separates.
    return outside_code(_indented(text), lambda part: _LINK.sub(link, _QUOTES.sub(r"\1\n<!-- -->\n\n", part)))


def place_of(path: str) -> str | None:
    """Return the page of the site for a file of the repository; None if it is not on the site."""
    if path in ROOT_PAGES or path in INSTEAD:
        return ROOT_PAGES.get(path) or INSTEAD[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the page with the parts between its blocks of code changed."""
    return "".join(part if _CODE.match(part) else change(part) for part in _CODE.split(text))


def _indented(text: str) -> str:
    """Return the page with lists as Python's Markdown reads them.

    Each level is indented by four spaces, while the repository's pages align with the text above. An empty line comes
    before the first item below a paragraph.
    """
    lines, levels, in_code, after_blank, in_paragraph = [], [0], False, True, False
    for line in text.split("\n"):
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        item = None if in_code else _ITEM.match(body)
        if body and not in_code and (item or after_blank):
            while indent < levels[-1]:
                levels.pop()
        if after_blank:
            in_paragraph = not item
        elif item and in_paragraph:
            lines.append("")
            in_paragraph = False
        lines.append(" " * (4 * (len(levels) - 1) + max(indent - levels[-1], 0)) + body if body else "")
        if item:
            levels.append(indent + len(item[0]))
        in_code ^= body.startswith("```")
        after_blank = not body
    return "\n".join(lines)


def escape(text: str) -> str:
    """Return plain text, with code in backticks, as Markdown that shows it so, also in a table's cell."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part.replace("|", "\\|") if number % 2 else _SPECIAL.sub(r"\\\1", part).replace("<", "&lt;")
        for number, part in enumerate(parts)
    )


def code(text: str) -> str:
    """Return text as code, also in a table's cell."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty line after it. The cells are Markdown."""
    return [*(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)), ""]
