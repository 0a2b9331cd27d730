"""The registry of backends, and two places that do not import it: the extras of the package and the command line's help."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.support import run
from txlog.storage.backends import BACKENDS, BY_SCHEME, URLS
from txlog.storage.backends.backend import Backend

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_no_two_backends_take_one_url() -> None:
    assert len(BY_SCHEME) == sum(len(backend.schemes) for backend in BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.__name__)
def test_each_backend_has_an_extra_that_installs_its_driver(backend: type[Backend]) -> None:
    assert any(needed.startswith(f"{backend.package}>=") for needed in EXTRAS[backend.extra])


def test_the_command_line_names_each_backend() -> None:
    """The command line does not import the backends, so that `txlog --help` is quick."""
    text = run("topics", "list", "--help").out
    assert [url for url in URLS if url not in text] == []
