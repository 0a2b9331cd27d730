"""What does Spark's checkpoint of a streaming query say: which query is it, and which offsets did it plan for a batch?

Spark writes `metadata` once, when the query first starts, and `offsets/<batch id>` before the batch runs, both as text that
is stable since Spark 2 (`OffsetSeqLog`):

    v1                              v2
    {"batchWatermarkMs":0,…}        {"batchWatermarkMs":0,…}
    {"orders":{"0":5}}              0:{"orders":{"0":5}}
    -                               1:-

a line for each source, `-` where a source has no offset yet. They are read as any object is, through txlog's own adapters:
a local folder, or the object stores. Nothing here writes: a checkpoint is Spark's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping

from txlog.errors import InvalidRequestError, UnsupportedStoreError
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import open_object_store

ID_PREFIX = "spark-stream:"
"""Begins the transactional.id of a query that names none; the checkpoint's location follows."""

_MAX_ID_LENGTH = 1000
_VOID = "-"
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
# Hadoop's names of drivers for what is one object store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


class Checkpoint:
    """One query's checkpoint, read only."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, location: str, storage_options: Mapping[str, object]) -> Checkpoint:
        """The checkpoint at `checkpointLocation`. Contacts nobody. Raises UnsupportedStoreError for what txlog cannot read."""
        try:
            return cls(open_object_store(normal_location(location), storage_options))
        except UnsupportedStoreError as error:
            raise UnsupportedStoreError(
                f"checkpointLocation {location!r} cannot be read by txlog ({error}), and the sources' offsets are to be part of each commit. Keep the "
                "checkpoint in a local folder or an object store, or do without: commitSourceOffsets=false, of append_stream commit_source_offsets=False"
            ) from error

    @classmethod
    def beside(cls, location: str, store_url: str, storage_options: Mapping[str, object]) -> Checkpoint:
        """As `open`; `storage_options` are the log's at `store_url`, and a checkpoint's in an object store of the same kind."""
        place, store = normal_location(location), normal_location(store_url)
        alike = "://" in place and place.partition("://")[0] == store.partition("://")[0]
        return cls.open(location, storage_options if alike else {})

    def query_id(self) -> str:
        """Spark's id of the query. Raises InvalidRequestError if there is no checkpoint."""
        try:
            found = json.loads(self._read("metadata"))["id"]
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, str) or not found:
            raise InvalidRequestError(f'{self._store.url}/metadata: expected {{"id": …}}, as Spark writes it')
        return found

    def begun_query_id(self) -> str | None:
        """Spark's id of the query, or None if no query has begun with this checkpoint. Raises as `query_id`."""
        return None if self._store.get("metadata") is None else self.query_id()

    def planned(self, batch_id: int) -> dict[str, str]:
        """The planned end of each source that has one, as its JSON, by the source's number or name.

        Raises InvalidRequestError if the batch is not there or in a format of a newer Spark.
        """
        path = f"offsets/{batch_id}"
        return parse_offsets(self._read(path), f"{self._store.url}/{path}")

    def noted_start(self, source: str) -> str | None:
        """Where a source was to begin, as JSON, if it noted that before the query's first batch, as Kafka's does; else None.

        Other sources keep other things in this place: what is returned begins a query only where it says so.
        """
        found = self._store.get(f"sources/{source}/0")
        if found is None:
            return None
        # A zero byte stands before the version, for the sake of Spark 2.1.
        version, _, rest = found.decode("utf-8", "replace").lstrip("\0").partition("\n")
        return rest if version.strip() == "v1" else None

    def _read(self, path: str) -> str:
        found = self._store.get(path)
        if found is None:
            raise InvalidRequestError(
                f"{self._store.url} has no {path!r}, which Spark writes before a micro-batch runs: is this the place that Spark means by "
                "checkpointLocation? Name it with its scheme, as in file:///data/checkpoints/orders; where txlog's process cannot read it: "
                "commitSourceOffsets=false"
            )
        return found.decode("utf-8", "replace")


def parse_offsets(text: str, where: str) -> dict[str, str]:
    """The sources' offsets in a file of `offsets/`; raises InvalidRequestError for any but Spark's versions 1 and 2."""
    version, _, rest = text.partition("\n")
    lines = rest.split("\n")[1:]
    if version.strip() == "v1":
        numbered = {str(number): line for number, line in enumerate(lines)}
    elif version.strip() == "v2" and all(":" in line for line in lines):
        numbered = {source: line for source, _, line in (line.partition(":") for line in lines)}
    else:
        raise InvalidRequestError(
            f"{where}: expected an offset log of Spark, version 1 or 2, found {text[:60]!r}. If a newer Spark wrote it: commitSourceOffsets=false"
        )
    return {source: line for source, line in numbered.items() if line.strip() not in {"", _VOID}}


def normal_location(location: str) -> str:
    """One spelling of a location: a local one is an absolute path, an object store's has txlog's scheme and no slash at its end.

    Spark takes a path without a scheme for one of its default file system, which is taken to be the local one here.
    """
    match = _SCHEME.match(location)
    scheme = match[1].lower() if match else "file"
    if scheme != "file":
        rest = location.split(":", 1)[1]
        return f"{_ALIASES.get(scheme, scheme)}:{rest.rstrip('/')}"
    path = location.split(":", 1)[1] if match else location
    # Hadoop writes file:/x where others write file:///x.
    path = re.sub(r"^//(localhost)?(?=/)", "", path)
    return os.path.normpath(os.path.join(os.getcwd(), path))


def default_transactional_id(location: str) -> str:
    """The transactional.id of a query that names none: the location of its checkpoint, in words, and cut if it is too long.

    Equal for every spelling of one location. A checkpoint that is moved has another one: name the id before you move it.
    """
    place = normal_location(location)
    if "://" in place:
        scheme, _, rest = place.partition("://")
        host, slash, path = rest.partition("/")
        # Azure's `container@account` is a name; what stands before a colon may be a password.
        host = host.rsplit("@", 1)[-1] if ":" in host.rsplit("@", 1)[0] and "@" in host else host
        place = f"{scheme}://{host}{slash}{path}"
    name = f"{ID_PREFIX}{place}"
    if len(name) <= _MAX_ID_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _MAX_ID_LENGTH - len(digest) - 1]}#{digest}"
