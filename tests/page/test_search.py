"""Does a reader of the site find an error by its text: in the search, and in the address of the page?"""

from __future__ import annotations

import os
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
MESSAGES = {
    "audit-0: batch of producer 39 (transactional.id 'dup'), epoch 0, sequences 3..3: the partition has seen epoch 1; a newer "
    "instance took over": EPOCH,
    "\"audit-0: batch of producer 39 (transactional.id 'dup'), epoch 0, sequences 3..3: the partition has seen epoch 1\"": EPOCH,
    "which store? Name it with --store URL, or in the environment as TXLOG_STORE": "which-store-name-it-with-store-url",
}


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


@pytest.mark.parametrize(("message", "anchor"), MESSAGES.items())
def test_a_pasted_message_is_found(site: Path, tab: Browser, message: str, anchor: str) -> None:
    tab.open("about:blank", width=1200, dark=False)
    tab.open(f"{(site / 'index.html').as_uri()}?q={quote(message)}", width=1200, dark=False)
    links = "return [...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"
    found = until(lambda: tab.run(links))
    assert isinstance(found, list)
    assert any("errors.html?h=" in link or "errors.html#" in link for link in found[:1]), found[:3]
    assert any(anchor in link for link in found[:4]), found[:4]


def test_a_message_in_the_address_goes_to_its_text(site: Path, tab: Browser) -> None:
    message = (
        next(iter(MESSAGES))
        + ", or a time-out or an operator ended the transaction. hint: abort; if that raises ProducerFencedError, close"
    )
    tab.open("about:blank", width=1200, dark=False)
    tab.open(f"{(site / 'reference' / 'errors.html').as_uri()}#{quote(message)}", width=1200, dark=False)
    assert until(lambda: EPOCH in tab.run("return location.hash"))
    assert until(lambda: tab.run("return scrollY > 1000"))
