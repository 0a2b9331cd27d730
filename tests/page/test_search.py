"""Does a reader of the site find an error by its text: in the search, and in the address of the page?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.page.browser import Browser, browser

pytestmark = pytest.mark.page

ROOT = Path(__file__).parent.parent.parent
EPOCH = "batch-of-producer-transactional-id-epoch-sequences-the-partition-has-seen-epoch"
FENCED = (
    "audit-0: batch of producer 39 (transactional.id 'dup'), epoch 0, sequences 3..3: the partition has seen epoch "
    "1; a newer instance took over"
)
MESSAGES = {
    FENCED: EPOCH,
    f'"{FENCED.partition(";")[0]}"': EPOCH,
    "which store? Name it with --store URL, or in the environment as TXLOG_STORE": "which-store-name-it-with-store-url",
    "topic 'sale' does not exist. Did you mean 'sales'?": "topic-does-not-exist",
    "topic 'sales': row 0: column 'amount': expected float64, found str 'x'": "row-column-expected-found",
    "topic 't': unknown topic configuration key 'buffer.memory': txlog does not need it": "unknown-configuration-key",
}
PAGES = {
    "tombstone": "words.html maintenance.html",
    "high watermark": "no-broker.html",
    "consume-transform-produce": "first-program.html",
    "min.insync.replicas": "no-broker.html",
    "fetch.min.bytes": "settings.html reference/settings.html",
    "schema registry": "kafka.html no-broker.html",
    "what is a topic": "words.html",
    "partition": "words.html groups.html",
}
"""Words -> pages that explain them. These pages come before the errors, which have every word."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", "conf/mkdocs.yml", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def until(look: Callable[[], object]) -> object:
    """Return the first result that is not empty, within ten seconds."""
    for _ in range(100):
        if found := look():
            return found
        time.sleep(0.1)
    return None


def search(site: Path, tab: Browser, text: str) -> list[str]:
    """Return the links that the search shows, the best first."""
    tab.open("about:blank", width=1200, dark=False)
    tab.open(f"{(site / 'index.html').as_uri()}?q={quote(text)}", width=1200, dark=False)
    links = "return [...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"
    found = until(lambda: tab.run(links))
    assert isinstance(found, list), text
    return [link.removeprefix(f"{site.as_uri()}/").partition("?")[0] + "#" + link.partition("#")[2] for link in found]


def errors(site: Path, tab: Browser, address: str = "") -> None:
    """Open the page of the errors, which has nothing to do with an earlier address."""
    tab.open("about:blank", width=1200, dark=False)
    tab.open(f"{(site / 'reference' / 'errors.html').as_uri()}{address}", width=1200, dark=False)


def shown(tab: Browser, message: str) -> str:
    """Return what the field shows for a message."""
    fill = f"field.value = {json.dumps(message)}; field.dispatchEvent(new Event('input'))"
    return str(
        tab.run(
            f"const field = document.getElementById('message'); {fill}; return "
            "document.getElementById('found').innerText"
        )
    )


@pytest.mark.parametrize(("message", "anchor"), MESSAGES.items())
def test_a_pasted_message_is_found(site: Path, tab: Browser, message: str, anchor: str) -> None:
    _, first, *_ = search(site, tab, message)
    assert first.startswith(f"reference/errors.html#{anchor}")


@pytest.mark.parametrize(("words", "pages"), PAGES.items())
def test_a_word_is_found_where_it_is_explained(site: Path, tab: Browser, words: str, pages: str) -> None:
    found = list(dict.fromkeys(link.partition("#")[0] for link in search(site, tab, words)))
    assert found[0] in pages.split() or set(pages.split()) <= set(found[:4]), found
    assert "reference/errors.html" not in found[:4]


@pytest.mark.parametrize("write", [quote, str], ids=["encoded", "as it is"])
def test_a_message_in_the_address_goes_to_its_text(site: Path, tab: Browser, write: Callable[[str], str]) -> None:
    end = ", or a time-out or an operator ended the transaction. hint: abort; if that raises ProducerFencedError, close"
    errors(site, tab, f"#{write(FENCED + end)}")
    assert until(lambda: EPOCH in tab.run("return location.hash"))
    assert until(lambda: tab.run("return scrollY > 1000"))
    advice = tab.run("return document.querySelector('h3:target ~ .advice').innerText")
    assert all(part in advice for part in ("InvalidProducerEpochError", "Cause:", "What to do:"))


def test_the_field_leads_to_the_text_with_its_cause_and_what_to_do(site: Path, tab: Browser) -> None:
    errors(site, tab)
    found = shown(tab, f"Traceback (most recent call last):\n  ...\ntxlog.errors.InvalidProducerEpochError: {FENCED}")
    parts = (
        "the partition has seen epoch",
        "Hint: abort;",
        "InvalidProducerEpochError",
        "Cause:",
        "init_transactions",
    )
    assert all(part in found for part in parts), found
    tab.run("document.getElementById('message').form.requestSubmit()")
    assert tab.run("return location.hash") == f"#{EPOCH}"
    assert until(lambda: tab.run("return scrollY > 1000"))
    assert not [entry for entry in tab.logs("browser") if entry["level"] == "SEVERE"]


def test_a_message_without_a_text_leads_nowhere(site: Path, tab: Browser) -> None:
    errors(site, tab)
    assert shown(tab, "a: b") == "No text fits."
    assert shown(tab, "KeyError: 'x'") == "No text fits."
    assert shown(tab, "") == ""
    assert shown(tab, "the partition has seen epoch 1").startswith("No text fits. These are near:")
    assert shown(tab, "datetime.date(2026, 1, 1) is not a txn.version").startswith("'<version>' is not a txn.version")


def test_the_field_finds_each_text_with_other_values(site: Path, tab: Browser) -> None:
    errors(site, tab)
    found = tab.run(
        """
        const field = document.getElementById("message"), shown = document.getElementById("found");
        const values = ["orders-0", "it's 17", "s3://bucket/log/x", "'dup'"];
        return [...document.querySelectorAll("h3.message code")].map((code) => {
          let at = 0;
          field.value = code.textContent.replace(/<[^<>]*>/g, () => values[at++ % values.length]);
          field.dispatchEvent(new Event("input"));
          const best = shown.querySelector(".advice") && shown.querySelector("a code");
          return [code.textContent, best ? best.textContent : ""];
        });
        """
    )
    assert len(found) > 900
    assert [
        text for text, best in found if constant(text) != constant(best) and len("".join(constant(text))) > 15
    ] == []


def constant(text: str) -> list[str]:
    """Return the words of a text between its values. Texts with the same words cannot be distinguished."""
    return re.findall(r"\w{2,}", re.sub(r"<[^<>]*>", " ", text))
