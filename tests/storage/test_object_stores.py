"""The drivers of object stores against servers: one contract for all of them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.testing.process_contract import ProcessContract
from lab.testing.store_contract import StoreContract
from tests.servers.start import Server, start
from txlog.clock import SystemIds
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import open_object_store

_NUMBERS = itertools.count()


class Served:
    """Stores on a server: each has its own folder."""

    server: Server

    def make_store(self, tmp_path: Path) -> ObjectStore:
        return open_object_store(self.server.store_url(f"contract/{next(_NUMBERS)}"), self.server.storage_options)


class ServerContract(Served, StoreContract, ProcessContract):
    """The contract against a server."""

    listed = 250


@pytest.fixture(scope="module", params=("s3", "gcs", "azure"))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start(request.param, "--page", "100") as started:
        yield started


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    with start("moto", "--page", "100") as started:
        yield started


class TestDrivers(ServerContract):
    """s3fs, gcsfs and adlfs, each against a server that is atomic by construction."""

    names = 100

    @pytest.fixture(autouse=True)
    def _take_server(self, server: Server) -> None:
        self.server = server


@pytest.mark.exhaustive
class TestLongRaces(Served, ProcessContract):
    """The same drivers, when processes race for five times as many names."""

    @pytest.fixture(autouse=True)
    def _take_server(self, server: Server) -> None:
        self.server = server


class TestMoto(ServerContract):
    """s3fs against a third-party server. It answers only a hundred requests a second, so there are fewer names."""

    names = 40

    @pytest.fixture(autouse=True)
    def _take_server(self, moto: Server) -> None:
        self.server = moto


class TestLocalFolder(ProcessContract):
    """The other half of its contract is in test_local.py."""

    def make_store(self, tmp_path: Path) -> ObjectStore:
        return open_object_store(str(tmp_path))


if GIVEN := os.environ.get("TXLOG_TEST_STORE"):

    class TestGiven(ServerContract):
        """Your own store: TXLOG_TEST_STORE=s3://bucket/folder TXLOG_TEST_STORE_OPTIONS='{"endpoint_url": …}'."""

        listed = 2_345

        def make_store(self, tmp_path: Path) -> ObjectStore:
            options = json.loads(os.environ.get("TXLOG_TEST_STORE_OPTIONS", "{}"))
            return open_object_store(f"{GIVEN}/{SystemIds().new_id()}", options)
