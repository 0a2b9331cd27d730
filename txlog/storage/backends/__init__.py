"""Which object stores can hold a log?

A new backend is a module here, an entry of BACKENDS, and an extra in pyproject.toml.
"""

from __future__ import annotations

from txlog.storage.backends.azure import Azure
from txlog.storage.backends.backend import Backend
from txlog.storage.backends.gcs import Gcs
from txlog.storage.backends.s3 import S3

BACKENDS: tuple[type[Backend], ...] = (S3, Gcs, Azure)
BY_SCHEME = {scheme: backend for backend in BACKENDS for scheme in backend.schemes}
BY_DRIVER = {backend.driver: backend for backend in BACKENDS}
URLS = tuple(f"{backend.schemes[0]}://" for backend in BACKENDS)
"""How the URL of a store begins, one for each backend; for messages and help."""


def backend_of(url: str) -> type[Backend] | None:
    """Return the backend of the store at `url`; None for a folder, for a store in memory, and for an unknown scheme."""
    return BY_SCHEME.get(url.partition("://")[0].lower())


def canonical_url(url: str) -> str:
    """Return the URL of a store with the one scheme that most engines know among those that mean the same place."""
    backend = backend_of(url)
    return url if backend is None else f"{backend.table_scheme}://{url.partition('://')[2]}"
