"""Is the hint of an error a field that survives every copy, and does a message fit in three lines?"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_txlog
import txlog
from txlog.errors import InvalidRequestError, TxlogError

LONGEST = 300
"""The maximum number of characters of a problem, and of a hint."""
DOCS = Path(__file__).parent.parent / "docs"
PLACEHOLDER = 25
"""The assumed number of characters of a value in a message: more than most names and numbers have."""


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("topic 'a' has 2 partitions", "topic 'a' has 2 partitions", None),
        ("a log is append-only. hint: use append", "a log is append-only", "use append"),
        ("no driver (x). hint: add it. hint: or copy", "no driver (x)", "add it. hint: or copy"),
        ("expected a hint", "expected a hint", None),
        ("", "", None),
    ],
)
def test_the_hint_is_a_field(text: str, problem: str, hint: str | None) -> None:
    error = InvalidRequestError(text)
    for each in (error, pickle.loads(pickle.dumps(error)), TxlogError(str(error))):
        assert (str(each), each.problem, each.hint) == (text, problem, hint)


def test_no_message_is_too_long() -> None:
    too_long = [
        f"{where}: about {len(part)} characters: {part}"
        for where, text in _texts()
        for part in text.split(" hint: ")
        if len(part) > LONGEST and not part.startswith("<")  # markup of a page
    ]
    assert not too_long, "\n".join(too_long)


def test_a_message_cites_a_page_by_its_title() -> None:
    """Its reader has the site, not the folder docs."""
    titles = {page.read_text(encoding="utf-8").partition("\n")[0] for page in DOCS.glob("*.md")}
    cited = set()
    for where, text in _strings():
        assert not re.search(r"docs/\S+\.md", text), f"{where}: {text}"
        cited |= {(where, title) for title in re.findall(r'[Tt]he page "([^"]+)"', text)}
    assert len({title for _, title in cited}) >= 2
    assert not [each for each in cited if f"# {each[1]}" not in titles]


def _strings() -> Iterator[tuple[str, str]]:
    """Yield the strings of the shipped modules that are not docstrings, with their places."""
    for package in (txlog, pyspark_txlog):
        (folder,) = package.__path__
        for file in sorted(Path(folder).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                    yield f"{file}:{node.lineno}", node.value


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the f-strings of the shipped modules, with their places. The texts of errors are among them."""
    for package in (txlog, pyspark_txlog):
        (folder,) = package.__path__
        for file in sorted(Path(folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        str(each.value) if isinstance(each, ast.Constant) else "x" * PLACEHOLDER for each in node.values
                    )
                    yield f"{file}:{node.lineno}", "".join(parts)
