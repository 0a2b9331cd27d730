"""What did a check of the store find, and how does it read objects without stopping at the first bad one?

A finding is a value: the object, the expected and the found content, and advice. No crash and no race can leave a
`damaged` or `missing` object behind. A `note` is about something that a crash can leave behind. Examples are a sealing
that is half done, a file that no record names, or a decided transaction that is not finished. It can also be about
something else that you may want to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Literal, TypeAlias, TypeVar

import msgspec

from txlog.clock import Clock
from txlog.core import chain, envelope, names
from txlog.core.names import TopicPartition
from txlog.core.record_checks import decode_records
from txlog.core.records import CommitRecord
from txlog.errors import CorruptLogError, StorageError, StoreAccessError, TxlogError, UnsupportedStoreError
from txlog.storage.object_store import ObjectStore

FindingKind: TypeAlias = Literal["damaged", "missing", "note"]
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

RESTORE = "restore it from a copy of the store, or from the versions that the object store keeps"
_RESTORE_PAGE = 'the page "Check, repair, restore, back up"'
_OLDER_STATE = (
    "If the store was restored to an older state while a writer ran, no copy has the object: restore that state again"
)
LATER = "nothing: maintenance or the next writer completes it"

MAX_FINDINGS = 10_000
"""Findings of one kind that a report names. Further ones are only counted."""
_ATTEMPTS = 4
_BACKOFF_MS = 250
_WINDOW = 16
"""Objects that are fetched at once. A commit record has up to 4 MiB."""


def lost_record(path: str) -> str:
    """Return the advice for a missing record that later records refer to, while its slot is empty.

    A store that was restored ends before what a writer had seen.
    """
    return (
        f"stop every writer first; then restore {path} from a copy that was made after it was written "
        f"({_RESTORE_PAGE}). {_OLDER_STATE}"
    )


def taken_slot(slot: str) -> str:
    """Return the advice for a lost record where other records may follow.

    `slot` is the first object of the folder that may be wrong or missing.
    """
    return (
        "stop every writer first, and compare the folder with a copy. If the objects that both have are equal, "
        f"restore those from {slot} on. Otherwise another record took the slot of the lost one, and no single object "
        "helps: put the whole store back, or read the good rows into a new one"
    )


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One error or note of a check."""

    kind: FindingKind
    path: str
    """The object, relative to the store's root. A folder ends in `/`."""
    expected: str
    found: str
    advice: str
    """What to do about it."""
    count: int = 1
    """Number of objects that refer to it. A missing object is one finding, which names the first of them."""


class Findings:
    """Collect findings, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Finding] = {}
        self._damaged: set[str] = set()
        self.counts: dict[FindingKind, int] = {"damaged": 0, "missing": 0, "note": 0}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    @property
    def is_clean(self) -> bool:
        """Return whether no object is damaged or missing."""
        return not self.counts["damaged"] and not self.counts["missing"]

    def damaged(self, path: str, expected: str, found: str, advice: str = RESTORE) -> None:
        """Report bytes that are not what they should be."""
        self._damaged.add(path)
        self._add(Finding(kind="damaged", path=path, expected=expected, found=found, advice=advice))

    def unreadable(self, path: str, error: TxlogError) -> None:
        """Report an object that the store does not give."""
        self.damaged(path, "an object that can be read", reason(error, path), "check the disk and the permissions")

    def missing(
        self, path: str, expected: str, advice: str = RESTORE, found: str = "it does not exist", count: int = 1
    ) -> None:
        """Report an object that should exist, unless it is already reported as unreadable."""
        if path not in self._damaged:
            self._add(Finding(kind="missing", path=path, expected=expected, found=found, advice=advice, count=count))

    def note(self, path: str, expected: str, found: str, advice: str = LATER) -> None:
        """Report something that a crash can leave behind."""
        self._add(Finding(kind="note", path=path, expected=expected, found=found, advice=advice))

    def note_names(self, path: str, found: Iterable[str], expected: str, words: str, advice: str) -> None:
        """Report names in a folder, if there are any. `words` has a place for the first of them."""
        if listed := sorted(found):
            self.note(path, expected, words.format(few(listed)), advice)

    def note_strange(self, path: str, found: Iterable[str], advice: str = "move them elsewhere") -> None:
        """Report names that txlog does not use."""
        self.note_names(path, found, "only names that txlog uses", "other names: {}", advice)

    def take(self, other: Findings) -> None:
        """Add the findings of `other`."""
        for finding in other:
            self._add(finding)
        self._damaged |= other._damaged

    def _add(self, finding: Finding) -> None:
        key = (finding.kind, finding.path, "" if finding.kind == "missing" else finding.expected)
        known = self._found.get(key)
        if known is not None:
            if known.expected != finding.expected:
                self._found[key] = msgspec.structs.replace(known, count=known.count + finding.count)
            return
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= MAX_FINDINGS:
            self._found[key] = finding


class Reader:
    """Read objects for a check: several at once, with retries. An object that cannot be read becomes a finding."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        findings: Findings,
        pool: ThreadPoolExecutor | None,
        on_object: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.findings = findings
        self.objects = 0
        self.bytes = 0
        self._clock = clock
        self._pool = pool
        self._on_object = on_object
        """Called after each object that was checked."""

    def with_findings(self, findings: Findings) -> Reader:
        """Return a reader that reports to `findings`."""
        return Reader(self.store, self._clock, findings, self._pool, self._on_object)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder. Raises StorageError if the LIST fails, because the check cannot go on."""
        return self._patiently(lambda: self.store.list(folder))

    def get(self, path: str) -> bytes | None:
        """Return the object, or None if it does not exist or cannot be read. The latter is a finding."""
        return self._taken(path, self._fetch(path))

    def get_many(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield each path with its object, in order. Some are fetched in parallel, but few are in memory at a time."""
        left = iter(paths)
        while window := list(islice(left, _WINDOW)):
            pool = self._pool if len(window) > 1 else None
            found = map(self._fetch, window) if pool is None else pool.map(self._fetch, window)
            for path, each in zip(window, found, strict=True):
                yield path, self._taken(path, each)

    def decode(self, path: str, data: bytes, kind: type[S], noun: str) -> S | None:
        """Return the object's value, or None and a finding if the object is damaged."""
        try:
            return envelope.decode(data, kind, path)[0]
        except (CorruptLogError, UnsupportedStoreError) as error:
            self.findings.damaged(path, f"a valid {noun}", reason(error, path))
            return None

    def read(self, path: str, kind: type[S], noun: str) -> S | None:
        """Return the object's value, or None if it does not exist or is damaged. The latter is a finding."""
        data = self.get(path)
        return None if data is None else self.decode(path, data, kind, noun)

    def records(self, path: str, data: bytes) -> tuple[CommitRecord, ...]:
        """Return the records of a `.batch`; none, and a finding, if the object is damaged."""
        try:
            return tuple(record for record, _ in decode_records(data, path))
        except (CorruptLogError, UnsupportedStoreError) as error:
            self.findings.damaged(path, "a valid commit record", reason(error, path))
            return ()

    def record_at(self, tp: TopicPartition, offset: int) -> CommitRecord | None:
        """Return the commit record that begins at an offset; None if it does not exist or is damaged.

        The latter is a finding. Its object may have the name of an earlier record.
        """
        path = tp.folder + names.batch_name(offset)
        data = self.get(path)
        if data is None:
            before = [base for base in chain.parse_listing(self.list(tp.folder)).batches if base < offset]
            path = tp.folder + names.batch_name(before[-1]) if before else path
            data = self.get(path) if before else None
        records = () if data is None else self.records(path, data)
        return next((record for record in records if record.base_offset == offset), None)

    def count(self, size_bytes: int) -> None:
        """Count one more checked object of that size."""
        self.objects += 1
        self.bytes += size_bytes
        if self._on_object is not None:
            self._on_object()

    def _fetch(self, path: str) -> bytes | TxlogError | None:
        try:
            return self._patiently(lambda: self.store.get(path))
        except (StorageError, CorruptLogError, StoreAccessError) as error:
            return error

    def _patiently(self, request: Callable[[], T]) -> T:
        for attempt in range(_ATTEMPTS - 1):
            try:
                return request()
            except StorageError:
                self._clock.sleep_ms(_BACKOFF_MS * 2**attempt)
        return request()

    def _taken(self, path: str, found: bytes | TxlogError | None) -> bytes | None:
        if isinstance(found, TxlogError):
            self.findings.unreadable(path, found)
            return None
        if found is not None:
            self.count(len(found))
        return found


def few(found: Iterable[str]) -> str:
    """Return the first three names, and how many more there are."""
    listed = sorted(found)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3:,} more" if len(listed) > 3 else "")


def reason(error: TxlogError, path: str) -> str:
    """Return what is wrong, without the path at its beginning."""
    return error.problem.removeprefix(f"{path}: ")
