"""Is the registry of backends consistent, and has the package an extra for each backend?"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from txlog.storage.backends import BACKENDS, BY_SCHEME
from txlog.storage.backends.backend import Backend

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_no_two_backends_take_one_url() -> None:
    assert len(BY_SCHEME) == sum(len(backend.schemes) for backend in BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.__name__)
def test_each_backend_has_an_extra_that_installs_its_driver(backend: type[Backend]) -> None:
    assert any(needed.startswith(f"{backend.package}>=") for needed in EXTRAS[backend.extra])
