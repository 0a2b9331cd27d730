"""The store that docs/inspect.md makes: it has everything that a page draws."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.support import Cli
from tests.client.world import World
from tests.page.shop import make_shop


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    make_shop(folder)
    return folder


@pytest.fixture
def shop(shop_folder: Path, tmp_path: Path) -> Cli:
    """Return a runner on a copy of that store."""
    shutil.copytree(shop_folder / "my-shop", tmp_path / "my-shop")
    return Cli(tmp_path / "my-shop")
