"""Nothing that is read from a store can run: shipped code has no pickle, no eval, and no loader that builds objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "txlog").rglob("*.py"), *(ROOT / "spark_ext").rglob("*.py")])
MODULES = frozenset(
    {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle", "code"}
)
CALLS = frozenset({"eval", "exec", "compile", "__import__"})
ATTRIBUTES = frozenset(
    {"allow_pickle", "read_pickle", "UnknownExtensionType", "register_extension_type", "PyExtensionType"}
)


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_loaded(path: Path) -> None:
    assert list(forbidden(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from yaml import load",
        "import a.b, marshal",
        "eval('1')",
        "x = exec",
        "np.load(f, allow_pickle=True)",
        "pd.read_pickle(f)",
    ],
)
def test_the_search_finds_it(text: str) -> None:
    assert list(forbidden(ast.parse(text)))


def forbidden(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found = {(node.module or "").partition(".")[0]} & MODULES
        elif isinstance(node, ast.Name):
            found = {node.id} & CALLS
        elif isinstance(node, ast.Attribute):
            found = {node.attr} & ATTRIBUTES
        elif isinstance(node, ast.keyword):
            found = {node.arg or ""} & ATTRIBUTES
        else:
            continue
        yield from (f"line {getattr(node, 'lineno', 0)}: {name}" for name in found)
