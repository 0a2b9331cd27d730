"""Which query does Spark's checkpoint belong to, and which offsets did Spark plan for each batch?

Spark writes `metadata` once, when the query first starts, and `offsets/<batch id>` before the batch runs. Both are text
in a format that is stable since Spark 2 (`OffsetSeqLog`):

    v1                              v2
    {"batchWatermarkMs":0,…}        {"batchWatermarkMs":0,…}
    {"orders":{"0":5}}              0:{"orders":{"0":5}}
    -                               1:-

There is one line for each source, with `-` if a source has no offset yet. txlog reads them through its own adapters,
from a local folder or an object store. Nothing here writes, because a checkpoint belongs to Spark.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping

from txlog.engine import ObjectStore, open_object_store
from txlog.errors import InvalidRequestError, UnsupportedStoreError

ID_PREFIX = "spark-stream:"
"""Prefix of the default transactional.id of a query; the checkpoint's location follows."""

_MAX_ID_LENGTH = 1000
_VOID = "-"
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
# Hadoop has several driver names for one object store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


class Checkpoint:
    """One query's checkpoint, read only."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, location: str, storage_options: Mapping[str, object]) -> Checkpoint:
        """Open the checkpoint at `checkpointLocation`. Sends no request. Raises UnsupportedStoreError if txlog cannot
        read the location."""
        try:
            return cls(open_object_store(normal_location(location), storage_options))
        except UnsupportedStoreError as error:
            raise UnsupportedStoreError(
                f"checkpointLocation {location!r} cannot be read by txlog ({error}), but each commit "
                "includes the sources' offsets. "
                "hint: keep the checkpoint in a local folder or an object store, or set commitSourceOffsets=false"
            ) from error

    @classmethod
    def beside(cls, location: str, store_url: str, storage_options: Mapping[str, object]) -> Checkpoint:
        """Open as `open` does. `storage_options` belong to the log at `store_url`; an object store of the same kind
        uses them too."""
        place, store = normal_location(location), normal_location(store_url)
        alike = "://" in place and place.partition("://")[0] == store.partition("://")[0]
        return cls.open(location, storage_options if alike else {})

    def query_id(self) -> str:
        """Return Spark's id of the query. Raises InvalidRequestError if there is no checkpoint."""
        try:
            found = json.loads(self._read("metadata"))["id"]
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, str) or not found:
            raise InvalidRequestError(f'{self._store.url}/metadata: expected {{"id": …}}, as Spark writes it')
        return found

    def planned(self, batch_id: int) -> dict[str, str]:
        """Return the planned end of each source that has one, as its JSON, by the source's number or name.

        Raises InvalidRequestError if the batch does not exist, or has a format of a newer Spark.
        """
        path = f"offsets/{batch_id}"
        return parse_offsets(self._read(path), f"{self._store.url}/{path}")

    def noted_start(self, source: str) -> str | None:
        """Return where a source begins, as JSON, if the source recorded that before the query's first batch, as Kafka's
        does; else None.

        Other sources store other things here. The text is a start only if it parses as offsets.
        """
        found = self._store.get(f"sources/{source}/0")
        if found is None:
            return None
        # A zero byte precedes the version, for Spark 2.1.
        version, _, rest = found.decode("utf-8", "replace").lstrip("\0").partition("\n")
        return rest if version.strip() == "v1" else None

    def _read(self, path: str) -> str:
        found = self._store.get(path)
        if found is None:
            raise InvalidRequestError(
                f"{self._store.url} has no {path!r}, which Spark writes before a micro-batch runs. "
                "hint: check checkpointLocation, and name it with its scheme, as in file:///data/checkpoints/orders; "
                "if txlog's process cannot read it, set commitSourceOffsets=false"
            )
        return found.decode("utf-8", "replace")


def parse_offsets(text: str, where: str) -> dict[str, str]:
    """Parse the sources' offsets in a file of `offsets/`.

    Raises InvalidRequestError for other versions than Spark's 1 and 2.
    """
    version, _, rest = text.partition("\n")
    lines = rest.split("\n")[1:]
    if version.strip() == "v1":
        numbered = {str(number): line for number, line in enumerate(lines)}
    elif version.strip() == "v2" and all(":" in line for line in lines):
        numbered = {source: line for source, _, line in (line.partition(":") for line in lines)}
    else:
        raise InvalidRequestError(
            f"{where}: expected an offset log of Spark, version 1 or 2, found {text[:60]!r}. "
            "hint: if a newer Spark wrote it, set commitSourceOffsets=false"
        )
    return {source: line for source, line in numbered.items() if line.strip() not in {"", _VOID}}


def normal_location(location: str) -> str:
    """Return one spelling of a location: an absolute path, or an object store's URL with txlog's scheme and no trailing
    slash.

    Spark resolves a path without a scheme in its default file system. Here that is assumed to be the local one.
    """
    match = _SCHEME.match(location)
    scheme = match[1].lower() if match else "file"
    if scheme != "file":
        rest = location.split(":", 1)[1]
        return f"{_ALIASES.get(scheme, scheme)}:{rest.rstrip('/')}"
    path = location.split(":", 1)[1] if match else location
    # Hadoop writes file:/x where other tools write file:///x.
    path = re.sub(r"^//(localhost)?(?=/)", "", path)
    return os.path.normpath(os.path.join(os.getcwd(), path))


def default_transactional_id(location: str) -> str:
    """Return the default transactional.id of a query: the location of its checkpoint, shortened if it is too long.

    It is the same for every spelling of one location, but changes if the checkpoint moves: name the id before you move
    it.
    """
    place = normal_location(location)
    if "://" in place:
        scheme, _, rest = place.partition("://")
        host, slash, path = rest.partition("/")
        # Azure's `container@account` is a name; but text after a colon may be a password.
        host = host.rsplit("@", 1)[-1] if ":" in host.rsplit("@", 1)[0] and "@" in host else host
        place = f"{scheme}://{host}{slash}{path}"
    name = f"{ID_PREFIX}{place}"
    if len(name) <= _MAX_ID_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _MAX_ID_LENGTH - len(digest) - 1]}#{digest}"
