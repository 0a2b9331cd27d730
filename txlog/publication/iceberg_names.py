"""How are the objects of a topic's Iceberg table named, and which ids and numbers does it have?

Numbers follow from the table and from a publication's number, so that two publishers write the same. Names of lists and
of rows left out end in a digest of the content. So an object that is there already says the same: what another spelling
of the store's URL, or a publication that was lost, has left has another name. Iceberg's libraries are not needed here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FOLDER = "metadata/"
"""The folder of Iceberg's metadata in a topic's folder. It holds nothing else."""
CATALOG_FOLDER = "catalog/"
"""The folder of tables in a catalog, in a topic's folder. Each has a folder of its own there."""
DATA_FOLDER = "data/"
"""The folder of copies in the folder of such a table."""
HINT = FOLDER + "version-hint.text"
PUBLICATION, DIGEST, CUT_AT = "txlog.publication", "txlog.digest", "txlog.cut_at"
"""What a snapshot's summary says of its publication. Older programs did not write the digest."""
_COPY = re.compile(rf"[^/]+/{CATALOG_FOLDER}[0-9a-f]{{32}}/{DATA_FOLDER}[^/]+\Z", re.ASCII)
_MANIFEST = re.compile(r"m(\d{1,19})-(\d{1,19})-[0-9a-f]{16}(?:-deletes)?\.avro\Z", re.ASCII)
_MANIFEST_LIST = re.compile(r"metadata/snap-\d{1,19}(?:-[0-9a-f]{16})?\.avro\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable:
    """The published table of one topic. Paths are relative to the topic's folder."""

    topic: str
    table_id: str
    """The table's UUID without its hyphens. Tables that older programs began have the id of the topic."""
    first: int
    """The publication that is version 0 of this table."""
    url: str
    """The URL of the store."""
    folder: str = ""
    """Where the table is in the topic's folder: empty for the one that is read by path, else ending in `/`."""
    has_copies: bool = False
    """Whether the table names copies of the topic's files, in its own folder."""

    @property
    def location(self) -> str:
        return f"{self.url.rstrip('/')}/{self.path('').rstrip('/')}"

    def path(self, name: str) -> str:
        """Return the path of one of the table's own objects, relative to the store."""
        return f"{self.topic}/{self.folder}{name}"

    def uri(self, name: str) -> str:
        """Return how the table's metadata name one of its own objects."""
        return f"{self.location}/{name}"

    def file_uri(self, path: str) -> str:
        """Return how the table's metadata name the rows of one of the topic's files."""
        return self.uri(copy_name(path)) if self.has_copies else f"{self.url.rstrip('/')}/{self.topic}/{path}"

    def sequence_number(self, number: int) -> int:
        """Return the sequence number of a publication. Files that are older than the table belong to its version 0."""
        return max(number, self.first) - self.first + 1

    def snapshot_id(self, number: int) -> int:
        """Return the id of a publication's snapshot: positive, and as good as random."""
        return int.from_bytes(self._digest(f"snapshot {max(number, self.first)}")[:8]) >> 1 or 1

    def manifest_list(self, number: int, data: bytes) -> str:
        return f"{FOLDER}snap-{self.snapshot_id(number)}-{_digest_of(data)}.avro"

    def manifest(self, group: int, number: int, data: bytes, *, is_of_deletes: bool) -> str:
        """Return the path of a list of a group that publication `number` writes: of files, or of rows left out."""
        return f"{FOLDER}m{group}-{number}-{_digest_of(data)}{'-deletes' if is_of_deletes else ''}.avro"

    def deletes(self, number: int, data: bytes) -> str:
        """Return the path of the rows that publication `number` leaves out of a file."""
        return f"{FOLDER}d{number}-{_digest_of(data, 32)}.parquet"

    def sync_marker(self, text: str) -> bytes:
        """Return Avro's marker between blocks. It is random elsewhere."""
        return self._digest(f"marker {text}")[:16]

    def _digest(self, text: str) -> bytes:
        return hashlib.sha256(f"{self.table_id} {self.first} {text}".encode()).digest()


def copy_name(path: str) -> str:
    """Return the path of the copy of a topic's file, in the folder of a table. No two files have the same."""
    return DATA_FOLDER + path.replace("/", "~")


def is_copy(path: str) -> bool:
    """Return whether an object, by its path in the store, is a copy of a topic's file."""
    return _COPY.match(path) is not None


def is_manifest_list(path: str) -> bool:
    """Return whether a path below the topic's folder is that of a list of manifests."""
    return _MANIFEST_LIST.match(path) is not None


def group_of(uri: str) -> int | None:
    """Return the group whose files, or whose rows left out, a manifest lists. None: it is not txlog's."""
    match = _MANIFEST.match(uri.rpartition("/")[2])
    return int(match[1]) if match else None


def _digest_of(data: bytes, digits: int = 16) -> str:
    return hashlib.sha256(data).hexdigest()[:digits]
