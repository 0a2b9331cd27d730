"""How are the objects of a topic's Iceberg table named, and which ids and numbers does it have?

All of them follow from the topic and from a publication's number, so that two publishers write the same. Iceberg's
libraries are not needed here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FOLDER = "metadata/"
"""The folder of Iceberg's metadata in a topic's folder. It holds nothing else."""
HINT = FOLDER + "version-hint.text"
_MANIFEST = re.compile(r"m(\d+)-(\d+)-[0-9a-f]{16}(?:-deletes)?\.avro\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable:
    """The published table of one topic. Paths are relative to the topic's folder."""

    topic: str
    topic_id: str
    first: int
    """The publication that is version 0 of this table."""
    url: str
    """The URL of the store."""

    @property
    def location(self) -> str:
        return f"{self.url.rstrip('/')}/{self.topic}"

    def uri(self, path: str) -> str:
        """Return how the table's metadata name an object."""
        return f"{self.location}/{path}"

    def path(self, number: int) -> str:
        """Return the path of the metadata file of a publication. Spark finds this name without a catalog."""
        return f"{FOLDER}v{self.sequence_number(number)}.metadata.json"

    def sequence_number(self, number: int) -> int:
        """Return the sequence number of a publication. Files that are older than the table belong to its version 0."""
        return max(number, self.first) - self.first + 1

    def snapshot_id(self, number: int) -> int:
        """Return the id of a publication's snapshot: positive, and as good as random."""
        return int.from_bytes(self._digest(f"snapshot {max(number, self.first)}")[:8]) >> 1 or 1

    def manifest_list(self, number: int) -> str:
        return f"{FOLDER}snap-{self.snapshot_id(number)}.avro"

    def manifest(self, group: int, number: int) -> str:
        """Return the path of the list of a group's files that publication `number` writes."""
        return f"{FOLDER}m{group}-{number}-{self._seed}.avro"

    def delete_manifest(self, group: int, number: int) -> str:
        """Return the path of the list of the rows that are left out of a group's files."""
        return f"{FOLDER}m{group}-{number}-{self._seed}-deletes.avro"

    def deletes(self, file: str, number: int) -> str:
        """Return the path of the rows that publication `number` leaves out of a file."""
        return f"{FOLDER}d{number}-{self._digest(f'deletes {file}').hex()[:32]}.parquet"

    def sync_marker(self, path: str) -> bytes:
        """Return Avro's marker between blocks. It is random elsewhere."""
        return self._digest(f"marker {path}")[:16]

    @property
    def _seed(self) -> str:
        return self._digest("names").hex()[:16]

    def _digest(self, text: str) -> bytes:
        return hashlib.sha256(f"{self.topic_id} {self.first} {text}".encode()).digest()


def group_of(uri: str) -> int | None:
    """Return the group whose files, or whose rows left out, a manifest lists. None: it is not txlog's."""
    match = _MANIFEST.match(uri.rpartition("/")[2])
    return int(match[1]) if match else None
