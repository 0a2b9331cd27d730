"""What has one call of a publisher done? An error in the middle tells this, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from txlog.core.publication import Tables
from txlog.core.records.publications import FormatName
from txlog.text import count_text


class SoFar:
    """The publications that a call has created, and the formats of the last one that it wrote."""

    def __init__(self) -> None:
        self.made = 0
        """Publications that this call has created."""
        self._tables: Tables | None = None
        self._names: tuple[FormatName, ...] = ()
        self._written: set[FormatName] = set()

    def begins(self, tables: Tables, formats: Sequence[FormatName]) -> None:
        """Note that the formats of a publication, which exists, are written now."""
        self._tables, self._names, self._written = tables, tuple(formats), set()

    def wrote(self, name: FormatName) -> None:
        """Note that the version of a format is complete."""
        self._written.add(name)

    @property
    def text(self) -> str | None:
        """Sentences for a person; None if the call has created and written nothing."""
        tables = self._tables
        if tables is None:
            return None
        topic = tables.newest.topic
        told = [f"Topic {topic!r}: this call has created {count_text(self.made, 'publication')}."] if self.made else []
        versions = {name: f"version {tables.version_of(name)} of {name}" for name in self._names}
        done = [version for name, version in versions.items() if name in self._written]
        late = [version for name, version in versions.items() if name not in self._written]
        if done:
            told.append(f"Publication {tables.number}: {' and '.join(done)} {_verb(done)} written.")
        if late:
            told.append(
                f"Publication {tables.number} exists, and {' and '.join(late)} {_verb(late)} not written, or only in part. "
                f"The next `txlog publish {topic} --once` writes the rest."
            )
        else:
            told.append(f"The next `txlog publish {topic} --once` goes on from there.")
        return " ".join(told)


def _verb(versions: Sequence[str]) -> str:
    return "was" if len(versions) == 1 else "were"
