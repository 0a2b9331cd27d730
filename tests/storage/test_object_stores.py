"""The drivers of object stores against servers: one contract for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.start import Server, start
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import open_object_store
from txlog.testing.process_contract import ProcessContract
from txlog.testing.store_contract import StoreContract

_NUMBERS = itertools.count()


class ServerContract(StoreContract, ProcessContract):
    """The contract against a server: each store is a folder of its own."""

    server: Server
    listed = 250

    def make_store(self, tmp_path: Path) -> ObjectStore:
        return open_object_store(self.server.store_url(f"contract/{next(_NUMBERS)}"), self.server.storage_options)


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with start("s3", "--page", "100") as server:
        yield server


class TestS3(ServerContract):
    @pytest.fixture(autouse=True)
    def _take_server(self, s3: Server) -> None:
        self.server = s3
