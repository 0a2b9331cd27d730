"""Is the site of the documentation whole, does it ask no other host for anything, and does its reference have every
name?"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import pytest
import typer
from markdown_it import MarkdownIt
from mkdocs.utils.yaml import yaml_load

import pyspark_txlog
import txlog
from conf.site import api, check, commands, hooks, markdown
from pyspark_txlog.jobs import ingest_kafka
from pyspark_txlog.metadata_schemas import TABLES
from pyspark_txlog.option_table import KAFKA_OPTIONS, OPTIONS
from tests.cli.support import run
from txlog.config import KEYS, not_needed, other_names

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "conf" / "mkdocs.yml"
DOCS = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
CLASSES = [name for name in txlog.__all__ if isinstance(getattr(txlog, name), type) and not name.endswith("Error")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG), "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def article(site: Path, page: str) -> str:
    """Return the HTML of a page, without navigation and frame."""
    text = (site / page).with_suffix(".html").read_text(encoding="utf-8")
    return text.partition("<article")[2].partition("</article>")[0]


def words(text: str) -> str:
    """Return what a reader sees of HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def anchors(site: Path, page: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', article(site, page)))


def of_nav(items: list[object]) -> Iterator[str]:
    for item in items:
        for value in item.values() if isinstance(item, dict) else [item]:
            yield from of_nav(value) if isinstance(value, list) else [str(value)]


def test_links_lead_somewhere_and_nothing_comes_from_another_host(site: Path) -> None:
    assert list(check.problems(site)) == []


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><p id="here"></p><a href="#there">x</a><a href="b.html">x</a><a '
        'href="https://other.example/">x</a><img src="https://other.example/x.png"><script '
        'src="//other.example/x.js"></script><a href="a.html#here">x</a>'
    )
    (tmp_path / "a.css").write_text("p { background: url(https://other.example/y.png) }")
    found = list(check.problems(tmp_path))
    for part in ("#here", "#there", "b.html", "x.png", "x.js", "y.png"):
        assert sum(part in problem for problem in found) == 1, (part, found)
    assert len(found) == 6


def test_the_search_needs_no_server(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    # They change the worker of the search before the bundle starts one.
    scripts = re.findall(r'src="assets/([^"]+)"', home)
    assert scripts[:3] == ["iframe-worker.js", "find-message.js", "search-query.js"]
    assert any("bundle" in script for script in scripts[3:])
    assert (site / "assets" / "iframe-worker.js").read_bytes() == (ROOT / "conf/site/iframe-worker.js").read_bytes()
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = {")
    for known in (
        "transactional.id",
        "ProducerFencedError",
        "startingOffsetsByTimestamp",
        "find-hanging",
        "last_stable_offset",
    ):
        assert known in index
    for page in (*DOCS, "PROTOCOL.md", "reference/options.md"):
        assert f'"location":"{page.removesuffix(".md")}.html' in index, page


def test_each_text_of_an_error_is_below_its_cause_and_what_to_do(site: Path) -> None:
    """The script of the page shows both with the text that a pasted message has (tests/page/test_search.py)."""
    shown = article(site, "reference/errors")
    assert re.search(
        r'<form class="find-message" hidden>\s*<label for="message">.*<textarea id="message"', shown, re.DOTALL
    )
    assert shown.index('src="../assets/errors.js"') > shown.rindex('class="message"')
    classes = shown.split("<h2 ")[1:]
    assert sum(each.count('<h3 class="message"') for each in classes) == shown.count('<h3 class="message"') > 650
    for each in classes:
        advice = each.partition("<h3 ")[0]
        assert advice.index("<ul>") < advice.index("Cause:") < advice.index("What to do:"), each[:80]


def test_alarms_and_dashboard_can_be_downloaded(site: Path) -> None:
    links = re.findall(r'href="(files/[^"]+)"', article(site, "monitor.md"))
    assert set(links) == {"files/alerts.yml", "files/grafana.json"}
    for link in links:
        assert (site / link).read_bytes() == (ROOT / link.replace("files", "conf")).read_bytes()


def test_every_page_is_in_the_navigation_once() -> None:
    nav = list(of_nav(yaml_load(CONFIG.read_text(encoding="utf-8"))["nav"]))
    assert sorted(nav) == sorted([*DOCS, *markdown.ROOT_PAGES.values(), *hooks.GENERATED])


@pytest.mark.parametrize("page", [*DOCS, *markdown.ROOT_PAGES.values()])
def test_a_page_has_the_same_parts_as_in_the_repository(site: Path, page: str) -> None:
    """Python's Markdown differs from the CommonMark of everybody else, for example in nested lists."""
    source = next((path for path, place in markdown.ROOT_PAGES.items() if place == page), f"docs/{page}")
    text = (ROOT / source).read_text(encoding="utf-8")
    expected = MarkdownIt("commonmark").enable("table").render(text)
    shown = article(site, page)
    for tag in ("h1", "h2", "h3", "li", "ul", "ol", "tr", "th", "td", "pre", "blockquote", "img", "strong"):
        one = re.compile(rf"<{tag}[\s>]")
        assert len(one.findall(shown)) == len(one.findall(expected)), tag


def test_a_link_to_a_file_that_is_no_page_becomes_its_name_or_goes_to_the_repository() -> None:
    text = (
        "[the setup](../scripts/setup.sh), [settings](../conf/txlog.toml), `[x](../Makefile)`, "
        "[rule](../PROTOCOL.md#time)"
    )
    here = markdown.for_site(text, "spark.md", "")
    assert here == (
        "the setup (`scripts/setup.sh`), [settings](reference/settings.md), `[x](../Makefile)`, "
        "[rule](PROTOCOL.md#time)"
    )
    there = markdown.for_site(text, "spark.md", "https://host.example/txlog/")
    assert there.startswith("[the setup](https://host.example/txlog/scripts/setup.sh), ")
    assert (
        markdown.for_site("![goals](docs/benchmarks.svg)", markdown.ROOT_PAGES["README.md"], "")
        == "![goals](benchmarks.svg)"
    )


def test_a_link_leads_somewhere_in_a_clone() -> None:
    """Before `make docs` there is no reference, so links name the files that its pages are made from."""
    dead = []
    for source in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        text = re.sub(
            r"^ *```.*?^ *```$|`[^`\n]*`", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        targets = re.findall(r"\]\(([^()#:\s]+)(?:#[^()\s]*)?\)", text)
        dead += [f"{source.name}: {target}" for target in targets if not (source.parent / target).exists()]
    assert dead == []
    assert all((ROOT / path).is_file() for path in markdown.INSTEAD)


def test_the_reference_has_every_option(site: Path) -> None:
    shown, ids = words(article(site, "reference/options")), anchors(site, "reference/options")
    for option in OPTIONS:
        assert option.name.lower().replace("<", "").replace(">", "") in ids
        assert plain(option.doc) in shown
    for kafka in KAFKA_OPTIONS:
        assert f"{kafka.name} {kafka.side} {plain(kafka.here)}" in shown


def test_the_reference_has_every_setting(site: Path) -> None:
    shown = words(article(site, "reference/settings"))
    for key in KEYS.values():
        assert f" {key.name} " in shown
        assert plain(key.doc) in shown
        assert plain(key.expected) in shown
    assert shown.count("Default:") == len(KEYS)
    for name, reason in not_needed().items():
        assert f"{name} {plain(reason[:1].upper() + reason[1:])}." in shown
    for name, known in other_names().items():
        assert f"{name} {known}" in shown


def test_help_at_80_columns_cuts_no_word() -> None:
    found = {path: each for path, each in commands.commands() if not hasattr(each, "commands")}
    assert "txlog compact" in found
    for path, each in found.items():
        shown = run(*path.split()[1:], "--help", env={"COLUMNS": "80", "TERMINAL_WIDTH": None}).out
        texts = [each.help, *(text for one in each.params for text in (one.help, one.metavar))]
        assert shown.count("…") == sum(text.count("…") for text in texts if text), path
        assert max(map(len, shown.splitlines())) <= 80


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    shown, ids = words(article(site, "reference/commands")), anchors(site, "reference/commands")
    found = dict(commands.commands())
    assert {"txlog topics create", "txlog consumer-groups reset-offsets", "txlog demo"} <= set(found)
    for path, command in found.items():
        anchor = path.removeprefix("txlog ").replace(" ", "-")
        assert anchor in ids, path
        section = shown.partition(f" {path} ")[2]
        for option in command.params:
            if not option.hidden:
                assert plain(option.help or "") in shown, (path, option.name)
                assert option.param_type_name == "argument" or all(name in section for name in option.opts)


def test_the_reference_has_the_options_of_the_job_that_copies_from_kafka(site: Path) -> None:
    section = words(article(site, "reference/commands")).partition(" python -m pyspark_txlog.jobs.ingest_kafka ")[2]
    command: Any = typer.main.get_command(ingest_kafka.app)
    options = [option for option in command.params if not option.hidden]
    assert len(options) > 10
    for option in options:
        assert all(name in section for name in (*option.opts, *option.secondary_opts))


def test_the_reference_has_every_metadata_table_and_column(site: Path) -> None:
    shown = words(article(site, "reference/metadata-tables"))
    for name, table in TABLES.items():
        assert name in anchors(site, "reference/metadata-tables")
        assert plain(table.doc) in shown
        for column, kind, doc in table.columns:
            assert f"{column} {kind.replace(',', ', ')} {plain(doc)}" in shown


def test_the_reference_has_every_public_name(site: Path) -> None:
    ids = {each for name in api.SUBJECTS for each in anchors(site, f"reference/api/{name}")}
    index = words(article(site, "reference/api/index"))
    for package in (txlog, pyspark_txlog):
        for name in package.__all__:
            if name.endswith("Error"):
                assert f"txlog.{name}" in index
            elif name != "__version__":
                assert f"{package.__name__}.{name}" in ids
    for name in CLASSES:
        members = {each for each in vars(getattr(txlog, name)) if not each.startswith("_")}
        assert {f"txlog.{name}.{each}" for each in members} <= ids


def test_docstrings_are_no_other_markdown_than_they_look(site: Path) -> None:
    """A bare `*` or `<name>` of a docstring would become emphasis or a tag that nobody sees."""
    tags = {"a", "code", "div", "h1", "h2", "h3", "h4", "li", "p", "pre", "span", "strong", "ul"}
    for name in api.SUBJECTS:
        assert set(re.findall(r"<(\w[\w-]*)", article(site, f"reference/api/{name}"))) <= tags, name


def test_the_reference_has_what_public_calls_take_and_return(site: Path) -> None:
    """The types of the client and of the Spark package in the signatures of public methods, and in the fields of these
    types."""
    ids = {each for name in api.SUBJECTS for each in anchors(site, f"reference/api/{name}")}
    loader = griffe.GriffeLoader(search_paths=[ROOT, ROOT / "spark_ext"], allow_inspection=False)
    for package in ("txlog", "pyspark_txlog"):
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    waiting = [f"txlog.{name}" for name in ("open", *CLASSES)]
    waiting += [
        f"pyspark_txlog.{name}" for name in pyspark_txlog.__all__ if name not in ("DefaultSource", "TxlogDataSource")
    ]
    ids |= {loader.modules_collection[path].final_target.path for path in waiting if path in ids}
    seen = set()
    while waiting:
        found = loader.modules_collection[waiting.pop()]
        found = found.final_target if found.is_alias else found
        if found.path in seen or found.is_module:
            continue
        seen.add(found.path)
        for one in found.members.values() if found.is_class else [found]:
            if not one.is_alias and not one.name.startswith("_") and one.name not in ("of", *api.INTERNAL):
                waiting += [name for name in names_in(one) if name.startswith(("txlog.client.", "pyspark_txlog."))]
    assert len(seen) > 35
    assert {path for path in seen if path not in ids} == set()


def names_in(one: Any) -> Iterator[str]:
    """Yield the paths of the names in an annotation, or in the signature of a function."""
    expressions = [one.annotation] if one.is_attribute else []
    if one.is_function:
        expressions = [one.returns, *(parameter.annotation for parameter in one.parameters)]
    for expression in expressions:
        if isinstance(expression, griffe.Expr):
            yield from (each.canonical_path for each in expression.iterate() if isinstance(each, griffe.ExprName))


def plain(text: str) -> str:
    """Return what a reader sees of a text with code in backticks."""
    return " ".join(re.sub(r"`([^`]+)`", r" \1 ", text).split())
