"""Do the versions of a topic form a chain, and which partitions does the topic have?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from txlog.core import names
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.evolution import contradictions, impossible
from txlog.core.features import SCHEMA_EVOLUTION
from txlog.core.names import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from txlog.core.records import StoreDescriptor, TopicMetadata
from txlog.core.schema import check_fields
from txlog.errors import SchemaMismatchError
from txlog.maintenance.fsck.findings import Reader
from txlog.maintenance.fsck.partition_check import Schemas
from txlog.maintenance.fsck.publication_check import FORMAT_FOLDERS
from txlog.text import duration_text

SKEW_MS = 2 * MAX_CLOCK_ERROR_MS
"""The largest difference between the clocks of two writers (PROTOCOL.md, W2)."""


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic as its versions describe it."""

    name: str
    versions: dict[int, TopicMetadata] = field(default_factory=dict)
    folders: list[int] = field(default_factory=list)
    """Partitions that have a folder or that a finished transaction wrote to."""
    is_published: bool = False
    """Whether the topic has publications, of now or earlier."""
    last_version: int = -1

    @property
    def is_whole(self) -> bool:
        return len(self.versions) == self.last_version + 1

    @property
    def schemas(self) -> Schemas:
        # The oldest version with an id counts: it introduced the columns.
        newest_first = [version for _, version in sorted(self.versions.items(), reverse=True)]
        return {version.schema_id: version.schema for version in newest_first}


class TopicCheck:
    """Read topics, and check their versions and the names in their folders."""

    def __init__(self, reader: Reader, descriptor: StoreDescriptor | None) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.descriptor = descriptor

    def read(self, name: str) -> Topic:
        """Return a topic as its versions describe it."""
        topic = Topic(name=name)
        listed = self.reader.list(f"{name}/")
        topic.is_published = names.PUBLICATION_FOLDER in listed and name not in INTERNAL_TOPICS
        own = {"staged/", names.PUBLICATION_FOLDER, *(FORMAT_FOLDERS if topic.is_published else ())}
        strange = []
        numbers = []
        for entry in listed:
            if (partition := names.parse_partition_folder(entry)) is not None:
                topic.folders.append(partition)
            elif (number := names.parse_topic_metadata_name(entry)) is not None and name not in INTERNAL_TOPICS:
                numbers.append(number)
            elif entry not in own or name in INTERNAL_TOPICS:
                strange.append(entry)
        topic.folders.sort()
        self.findings.note_strange(f"{name}/", strange)
        if name in INTERNAL_TOPICS:
            self._check_internal_folders(topic)
            return topic
        for path, data in self.reader.get_many([names.topic_metadata_path(name, number) for number in numbers]):
            version = None if data is None else self.reader.decode(path, data, TopicMetadata, "version of a topic")
            if version is not None:
                self._check_version(topic, version, path)
        self._check_versions(topic, numbers)
        return topic

    def _check_internal_folders(self, topic: Topic) -> None:
        if self.descriptor is None:
            return
        constants = self.descriptor.constants
        is_table = topic.name == TRANSACTION_STATE_TOPIC
        count = constants.transaction_state_partitions if is_table else constants.consumer_offsets_partitions
        for number in topic.folders:
            if number >= count:
                self.findings.damaged(
                    f"{topic.name}/{number}/", f"partitions 0 to {count - 1}, as txlog.json says", f"partition {number}"
                )

    def _check_version(self, topic: Topic, version: TopicMetadata, path: str) -> None:
        if path != names.topic_metadata_path(version.topic, version.number):
            self.findings.damaged(
                path, "the version and the topic of its name", f"version {version.number} of {version.topic!r}"
            )
            return
        try:
            check_fields(version.schema)
        except SchemaMismatchError as error:
            self.findings.damaged(path, "a valid schema", error.problem)
            return
        features = () if self.descriptor is None else self.descriptor.features
        if version.last_field_id is not msgspec.UNSET and self.descriptor and SCHEMA_EVOLUTION not in features:
            self.findings.damaged(
                path, f"no last_field_id, as the store lacks the feature {SCHEMA_EVOLUTION}", f"{version.last_field_id}"
            )
        for expected, found in impossible(version):
            self.findings.damaged(path, expected, found)
        topic.versions[version.number] = version
        made_at = 0 if self.descriptor is None else self.descriptor.created_at
        if version.created_at + SKEW_MS < made_at:
            self.findings.damaged(
                names.STORE_DESCRIPTOR,
                f"a store that was made before {path}",
                f"one made {duration_text(made_at - version.created_at)} later: the descriptor of another store",
            )

    def _check_versions(self, topic: Topic, numbers: Collection[int]) -> None:
        """Check that the versions have no gaps and that each one follows from the one before."""
        topic.last_version = max(numbers, default=-1)
        if not numbers and not topic.folders:
            self.findings.note(
                f"{topic.name}/", "only folders of topics", "not a topic: it has no versions", "move it elsewhere"
            )
            return
        for number in range(max(numbers, default=0) + 1):
            if number not in numbers:
                self.findings.missing(
                    names.topic_metadata_path(topic.name, number), "a version of the topic; txlog never deletes one"
                )
        for number, version in sorted(topic.versions.items()):
            before = topic.versions.get(number - 1)
            path = names.topic_metadata_path(topic.name, number)
            if version.schema_id > number:
                self.findings.damaged(path, f"a schema of version {number} or an older one", f"{version.schema_id}")
            if before is None:
                continue
            for expected, found in contradictions(before, version):
                self.findings.damaged(path, expected, found)

    def check_staged_folder(self, topic: Topic, folders: Iterable[str], named: Collection[str]) -> None:
        """Report Spark's files that are not `named` by a record or a transaction. The others belong to a partition."""
        orphans = []
        strange = []
        for folder in folders:
            for inner in self.reader.list(f"{topic.name}/staged/{folder}") if folder.endswith("/") else ():
                for name in self.reader.list(f"{topic.name}/staged/{folder}{inner}") if inner.endswith("/") else ():
                    path = f"staged/{folder}{inner}{name}"
                    if names.parse_rows_path(path) is None:
                        strange.append(path)
                    elif path not in named:
                        orphans.append(path)
        folder = f"{topic.name}/staged/"
        advice = "nothing: their job died, failed, or has not committed yet; vacuum deletes them"
        self.findings.note_names(folder, orphans, "files that a record names", "no record names {}", advice)
        self.findings.note_strange(folder, strange, "nothing, if Spark's committer left them")
