"""The store in a folder under the contract: with and without fsync, with and without nameless files."""

from __future__ import annotations

from pathlib import Path

from txlog.storage.local import LocalObjectStore
from txlog.testing.store_contract import StoreContract


class TestLocalObjectStore(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(str(tmp_path / "root"))


class TestWithoutFsync(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(str(tmp_path / "root"), fsync=False)


class TestWithoutNamelessFiles(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalObjectStore:
        store = LocalObjectStore(str(tmp_path / "root"), fsync=False)
        store._state.nameless = False
        return store
