"""How does a test damage a store? The port cannot replace an object, so a test deletes it and creates it again."""

from __future__ import annotations

from txlog.storage.object_store import ObjectStore, PutOutcome


def overwrite(store: ObjectStore, path: str, data: bytes) -> None:
    """Give the object at `path` these bytes, whether it exists or not. In between, it does not exist."""
    store.delete(path)
    outcome = store.put_if_absent(path, data)
    assert outcome is PutOutcome.WRITTEN, f"{path}: {outcome}"
