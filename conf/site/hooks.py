"""What mkdocs does besides rendering docs/: pages from elsewhere, generated pages, links, and the check of the
result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File

from conf.site import api, check, commands, errors, markdown, metrics, options, settings, tables

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent

GENERATED = {
    "reference/commands.md": commands.page,
    "reference/errors.md": errors.page,
    "reference/metadata-tables.md": tables.page,
    "reference/metrics.md": metrics.page,
    "reference/options.md": options.page,
    "reference/settings.md": settings.page,
    **api.PAGES,
}
"""Page -> the function that returns its Markdown."""
ASSETS = {
    f"assets/{name}": HERE / name
    for name in ("errors.js", "find-message.js", "iframe-worker.js", "search-query.js", "site.css")
}
DOWNLOADS = {place: ROOT / path for path, place in markdown.INSTEAD.items() if place.startswith("files/")}
WEIGHTS = {
    **dict.fromkeys(GENERATED, 0.5),
    **dict.fromkeys(api.PAGES, 0.1),
    **dict.fromkeys(("PROTOCOL.md", "CHANGELOG.md", "benchmarks.md"), 0.2),
    "reference/errors.md": 0.1,
    "words.md": 4.0,
}
"""How much a word counts on a page, if it is not 1. So a search first finds the pages that explain a word."""
TAGS = {"reference/errors.md": ["TxlogError"]}
"""The page that search-query.js looks for a message in."""

log = get_plugin_logger("site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: those of the root, and those that are made from the code."""
    for path, uri in markdown.ROOT_PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    for uri, page in GENERATED.items():
        files.append(File.generated(config, uri, content=page()))
    for uri, source in {**ASSETS, **DOWNLOADS}.items():
        files.append(File.generated(config, uri, abs_src_path=str(source)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the page as Python's Markdown and mkdocs expect it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri in WEIGHTS:
        page.meta["search"] = {"boost": WEIGHTS[page.file.src_uri]}
    if page.file.src_uri in TAGS:
        page.meta["tags"] = TAGS[page.file.src_uri]
    return markdown.for_site(text, page.file.src_uri, config.extra["source_url"])


@event_priority(-200)
def on_page_context(context: object, page: Page, config: MkDocsConfig, nav: object) -> None:
    """Leave the messages out of the contents of the errors, after the search has taken them from there.

    They would be on the page three times.
    """
    if page.file.src_uri == "reference/errors.md":
        for top in page.toc:
            for kind in top.children:
                kind.children.clear()


@event_priority(-200)
def on_post_build(config: MkDocsConfig) -> None:
    """Warn about each dead link and each request to another host, after all plugins have written.

    With `strict` the build fails.
    """
    for problem in check.problems(Path(config.site_dir)):
        log.warning(problem)
