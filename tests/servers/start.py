"""How do tests, benchmarks and runs of many processes get an object store? A server process on a free port.

    with start("s3") as server:
        store = txlog.open(server.store_url("runs/1"), storage_options=server.storage_options)

Another process needs only `server.store_url` and `server.storage_options`, which are plain values for JSON. `start`
takes "s3", "gcs", "azure" or "moto". The server keeps its objects in memory. It ends with the block, or with the
process that started it, however that process ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers import azure, s3
from tests.servers.objects import BUCKET

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of an object store, and its credentials."""

    kind: str
    url: str
    """The URL of the server itself."""

    def store_url(self, prefix: str) -> str:
        """Return the URL of a store in this server's bucket, for txlog.open."""
        return f"{_SCHEMES[self.kind]}://{BUCKET}/{prefix}"

    @property
    def storage_options(self) -> dict[str, object]:
        """The storage options for that URL."""
        return dict(_OPTIONS[self.kind](self.url))

    def at(self, url: str) -> Server:
        """Return the same server behind a proxy."""
        return Server(kind=self.kind, url=url)


@contextlib.contextmanager
def start(kind: str, *arguments: str) -> Iterator[Server]:
    """Run a server of that kind during the block, with `arguments` for its program."""
    command = [sys.executable, "-m", f"tests.servers.{kind}", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"{' '.join(command)} did not start")
            yield Server(kind=kind, url=url)
        finally:
            process.stdin.close()
            process.wait()


def _s3_options(url: str) -> Mapping[str, object]:
    return {
        "key": s3.ACCESS_KEY,
        "secret": s3.SECRET_KEY,
        "endpoint_url": url,
        "client_kwargs": {"region_name": "us-east-1"},
    }


def _gcs_options(url: str) -> Mapping[str, object]:
    return {"token": "anon", "endpoint_url": url}


def _azure_options(url: str) -> Mapping[str, object]:
    return {
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName={azure.ACCOUNT};"
        f"AccountKey={azure.ACCOUNT_KEY};BlobEndpoint={url}/{azure.ACCOUNT};"
    }


_SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "abfs", "moto": "s3"}
_OPTIONS: dict[str, Callable[[str], Mapping[str, object]]] = {
    "s3": _s3_options,
    "gcs": _gcs_options,
    "azure": _azure_options,
    "moto": _s3_options,
}
