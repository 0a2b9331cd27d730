"""How are the objects of a store named? Each name is made and parsed here and nowhere else in txlog.

See PROTOCOL.md, "Layout". A name that does not parse does not belong to txlog: lists skip it, and a reference to it is
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from txlog.errors import CorruptRecordError, InvalidTopicError

STORE_DESCRIPTOR = "txlog.json"
TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
PROBE_FOLDER = "__probe/"
PUBLICATION_FOLDER = "publication/"
"""Below a topic's folder."""
WAITING_FOLDER = "waiting/"
"""Below a partition's folder."""
MAINTENANCE_FOLDER = "__maintenance/"
ERASURES_FOLDER = "__erasures/"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC})

MAX_OFFSET = 2**63 - 1
MAX_TOPIC_NAME_LENGTH = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z", re.ASCII)
_WITH_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})[/:](\d{1,10})/?\Z", re.ASCII)
_OFFSET = r"(\d{20})"
# Each number has one spelling. With leading zeros two names would mean the same object.
_NUMBER = r"(0|[1-9]\d{0,18})"
_PARTITION = r"(0|[1-9]\d{0,9})"
_UNIQUE = r"([0-9a-f]{8,64})"
_TOPIC_METADATA = re.compile(rf"topic\.{_OFFSET}\.json\Z", re.ASCII)
_BY_OFFSET = re.compile(rf"{_OFFSET}\.(batch|snapshot|boundary|clean)\Z", re.ASCII)
_SEGMENT = re.compile(rf"{_OFFSET}-{_OFFSET}-(0|[1-9]\d{{0,8}})(?:-{_UNIQUE})?\.(index|txnindex|parquet)\Z", re.ASCII)
_ROWS = re.compile(rf"{_PARTITION}/rows/{_NUMBER}-{_NUMBER}-{_UNIQUE}\.parquet\Z", re.ASCII)
_STAGED_FILE = re.compile(
    rf"staged/{_NUMBER}-{_NUMBER}-{_UNIQUE}/_partition={_PARTITION}/[a-zA-Z0-9][a-zA-Z0-9._=-]{{0,200}}\.parquet\Z",
    re.ASCII,
)
_STAGED_FOLDER = re.compile(rf"{_NUMBER}-{_NUMBER}-{_UNIQUE}/\Z", re.ASCII)
_STAGED_LIST = re.compile(rf"{_NUMBER}-{_NUMBER}-{_UNIQUE}\.staged\Z", re.ASCII)
_WAITING = re.compile(rf"{_OFFSET}-([0-9a-f]{{32}})\.batch\Z", re.ASCII)
_PUBLICATION = re.compile(rf"{_OFFSET}\.json\Z", re.ASCII)
_PUBLISHED_COPY = re.compile(rf"{_OFFSET}-{_UNIQUE}\.parquet\Z", re.ASCII)
_HISTORY = re.compile(rf"{_OFFSET}-{_UNIQUE}\.json\Z", re.ASCII)
_ERASURE = re.compile(rf"{_UNIQUE}\.json\Z", re.ASCII)
_PARTITION_FOLDER = re.compile(rf"{_PARTITION}/\Z", re.ASCII)


class TopicPartition(NamedTuple):
    """A partition of a topic: Kafka's TopicPartition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def folder(self) -> str:
        """Return the partition's folder below the root, ending in `/`."""
        return f"{self.topic}/{self.partition}/"


# -- topics -----------------------------------------------------------------------------------------------------------


def is_topic_name(name: str) -> bool:
    """Return whether `name` could be a topic, internal ones included."""
    return bool(_TOPIC.match(name)) and name not in {".", ".."}


def is_reserved(name: str) -> bool:
    """Return whether `name` is reserved for txlog: an internal topic, or another name that begins with `__`."""
    return name.startswith("__")


def check_topic_name(name: str) -> str:
    """Return `name` if a user may give it to a topic; otherwise raise InvalidTopicError with the reason."""
    if not isinstance(name, str) or not is_topic_name(name):
        raise InvalidTopicError(
            f"topic name {str(name)!r:.260} is not valid: expected 1 to {MAX_TOPIC_NAME_LENGTH} of the characters a-z "
            f"A-Z 0-9 . _ -, and not '.' or '..'{_apart(name)}"
        )
    if is_reserved(name):
        raise InvalidTopicError(f"topic name {name!r} is reserved: names that begin with '__' belong to txlog itself")
    if name == STORE_DESCRIPTOR:  # the topic's folder would have the descriptor's name (PROTOCOL.md, W41)
        raise InvalidTopicError(f"topic name {name!r} is reserved: it is the name of the store's descriptor")
    return name


def _apart(name: object) -> str:
    """Return a hint if `name` joins a topic and a partition, otherwise empty text."""
    found = _WITH_PARTITION.match(name) if isinstance(name, str) else None
    return f". hint: name topic {found[1]!r} and partition {found[2]} separately" if found else ""


def topic_metadata_path(topic: str, number: int) -> str:
    """Return the path of version `number` of a topic's metadata."""
    return f"{topic}/topic.{number:020d}.json"


def parse_topic_metadata_name(name: str) -> int | None:
    """Return the version number in a topic metadata object's name; None for another name."""
    match = _TOPIC_METADATA.match(name)
    return _bounded(match[1]) if match else None


def parse_partition_folder(name: str) -> int | None:
    """Return the partition of a folder name as a list gives it (`3/`); None for another name."""
    match = _PARTITION_FOLDER.match(name)
    return int(match[1]) if match else None


# -- objects named by one number --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class NumberedName:
    """`<number>.<kind>`: a batch, snapshot or boundary by offset, a `.clean` by version."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.number:020d}.{self.kind}"


def batch_name(base_offset: int) -> str:
    """Return the name of the commit record whose batch begins at `base_offset`."""
    return f"{base_offset:020d}.batch"


def waiting_path(tp: TopicPartition, slot: int, write_id: str) -> str:
    """Return the path of a record that waits, made for `slot` (PROTOCOL.md, "Waiting")."""
    return f"{tp.folder}{WAITING_FOLDER}{slot:020d}-{write_id}.batch"


def parse_waiting_name(name: str) -> tuple[int, str] | None:
    """Return (slot, write_id) of a name in a partition's folder `waiting/`; None for another name."""
    match = _WAITING.match(name)
    slot = _bounded(match[1]) if match else None
    return None if match is None or slot is None else (slot, match[2])


def snapshot_name(offset: int) -> str:
    """Return the name of the snapshot of the partition's state just before `offset`."""
    return NumberedName("snapshot", offset).name


def boundary_name(offset: int) -> str:
    """Return the name of a boundary: slots below `offset` may have been deleted."""
    return NumberedName("boundary", offset).name


def clean_name(number: int) -> str:
    """Return the name of version `number` of the partition's list of cleaned runs."""
    return NumberedName("clean", number).name


# -- segments ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A sealed segment (generation 0) or cleaned run: `[base_offset, end_offset)`.

    `unique` is empty for the `.index` and `.txnindex` of generation 0, which are pure functions of the log.
    """

    base_offset: int
    end_offset: int
    generation: int
    unique: str = ""

    def _stem(self) -> str:
        stem = f"{self.base_offset:020d}-{self.end_offset:020d}-{self.generation}"
        return f"{stem}-{self.unique}" if self.unique else stem

    @property
    def index(self) -> str:
        return f"{self._stem()}.index"

    @property
    def txnindex(self) -> str:
        return f"{self._stem()}.txnindex"

    @property
    def parquet(self) -> str:
        return f"{self._stem()}.parquet"


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """The parsed name of one of a segment's objects; `kind` is index, txnindex or parquet."""

    segment: SegmentName
    kind: str


def parse_partition_object(name: str) -> NumberedName | SegmentObject | None:
    """Return what a name in a partition's folder means; None for a name that does not belong to txlog."""
    if match := _BY_OFFSET.match(name):
        number = int(match[1])
        return NumberedName(match[2], number) if number <= MAX_OFFSET else None
    if match := _SEGMENT.match(name):
        base, end, generation, unique, kind = int(match[1]), int(match[2]), int(match[3]), match[4] or "", match[5]
        if end <= base or end > MAX_OFFSET:
            return None
        if bool(unique) != (generation > 0 or kind == "parquet"):
            return None
        return SegmentObject(SegmentName(base, end, generation, unique), kind)
    return None


# -- files of rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowsFile:
    """A Parquet file as its writer made it, by producer and epoch. Its path is relative to the topic's folder."""

    partition: int
    producer_id: int
    producer_epoch: int
    unique: str
    staged: bool = False


def rows_file_path(partition: int, producer_id: int, producer_epoch: int, unique: str) -> str:
    """Return the path of a new file of rows of one partition, relative to the topic's folder."""
    return f"{partition}/rows/{producer_id}-{producer_epoch}-{unique}.parquet"


def staged_folder(producer_id: int, producer_epoch: int, unique: str) -> str:
    """Return the folder for Spark's own writer, relative to the topic's folder.

    Spark adds `_partition=<p>/part-….parquet`.
    """
    return f"staged/{producer_id}-{producer_epoch}-{unique}/"


def parse_staged_folder(name: str) -> tuple[int, int] | None:
    """Return (producer_id, producer_epoch) of a folder listed in `<topic>/staged/`; None for another name."""
    match = _STAGED_FOLDER.match(name)
    return _producer(match, 1) if match else None


def parse_rows_path(path: str) -> RowsFile | None:
    """Parse a `rows_file_path` or the path of a file below a `staged_folder`; return None for another path."""
    if match := _ROWS.match(path):
        partition, producer, unique, staged = int(match[1]), _producer(match, 2), match[4], False
    elif match := _STAGED_FILE.match(path):
        partition, producer, unique, staged = int(match[4]), _producer(match, 1), match[3], True
    else:
        return None
    return RowsFile(partition, *producer, unique, staged) if producer else None


def segment_file_path(partition: int, segment: SegmentName) -> str:
    """Return the path of the Parquet file of a sealed segment or cleaned run, relative to the topic's folder."""
    return f"{partition}/{segment.parquet}"


def check_data_path(topic: str, partition: int, path: str) -> str:
    """Return `path` if it may hold rows of this partition; otherwise raise CorruptRecordError (R3).

    The path is relative to the topic's folder.
    """
    parsed = parse_rows_path(path)
    if parsed is not None and parsed.partition == partition:
        return path
    folder, _, name = path.partition("/")
    segment = parse_partition_object(name)
    if folder == str(partition) and isinstance(segment, SegmentObject) and segment.kind == "parquet":
        return path
    raise CorruptRecordError(
        f"{topic}-{partition}: the log names a file {path!r} that cannot belong to this partition. "
        "hint: check the store with `txlog fsck`"
    )


def check_own(said: str, path: str) -> None:
    """Raise CorruptRecordError unless an object that names partition `said` lies in that partition's folder."""
    topic, _, rest = path.partition("/")
    if said != f"{topic}-{rest.partition('/')[0]}":
        raise CorruptRecordError(f"{path}: it says that it is of partition {said!r}; an object was swapped or copied")


# -- publications -----------------------------------------------------------------------------------------------------


def publication_path(topic: str, number: int) -> str:
    """Return the path of a topic's publication."""
    return f"{topic}/{PUBLICATION_FOLDER}{number:020d}.json"


def parse_publication_name(name: str) -> int | None:
    """Return the number of a publication's name in its folder; None for another name."""
    match = _PUBLICATION.match(name)
    return _bounded(match[1]) if match else None


def published_copy_path(number: int, unique: str) -> str:
    """Return the path of rows that were copied for publication `number`, relative to the topic's folder."""
    return f"{PUBLICATION_FOLDER}{number:020d}-{unique}.parquet"


def parse_published_copy_name(name: str) -> int | None:
    """Return the publication for which a file of that name was written; None for another name."""
    match = _PUBLISHED_COPY.match(name)
    return _bounded(match[1]) if match else None


def parse_published_copy_path(path: str) -> int | None:
    """Return the publication for which a file was written, by its path in the topic's folder; None for another path."""
    folder, slash, name = path.rpartition("/")
    return parse_published_copy_name(name) if folder + slash == PUBLICATION_FOLDER else None


def table_version_path(format_name: str, topic: str, version: int) -> str:
    """Return the path of the object that declares a version of a topic's table in another format."""
    if format_name == "delta":
        return f"{topic}/_delta_log/{version:020d}.json"
    return f"{topic}/metadata/v{version + 1}.metadata.json"


# -- staged lists -----------------------------------------------------------------------------------------------------


def staged_list_name(producer_id: int, producer_epoch: int, unique: str) -> str:
    """Return the name of an object with a large list of staged files, beside the state partition's records."""
    return f"{producer_id}-{producer_epoch}-{unique}.staged"


def parse_staged_list_name(name: str) -> tuple[int, int, str] | None:
    """Return (producer_id, producer_epoch, unique) of a staged list's name; None for another name."""
    match = _STAGED_LIST.match(name)
    producer = _producer(match, 1) if match else None
    return (*producer, match[3]) if match and producer else None


# -- the history of maintenance jobs ----------------------------------------------------------------------------------


def history_name(started_ms: int, unique: str) -> str:
    """Return the name of one run of a job in MAINTENANCE_FOLDER. Names sort by the time at which the run began."""
    return f"{started_ms:020d}-{unique}.json"


def parse_history_name(name: str) -> tuple[int, str] | None:
    """Return (time at which it began, unique) of the name of a job's run; None for another name."""
    match = _HISTORY.match(name)
    started_ms = _bounded(match[1]) if match else None
    return (started_ms, match[2]) if match and started_ms is not None else None


def erasure_path(erasure_id: str) -> str:
    """Return the path of an erasure that has begun and not ended."""
    return f"{ERASURES_FOLDER}{erasure_id}.json"


def parse_erasure_name(name: str) -> str | None:
    """Return the id of an erasure by the name of its object in ERASURES_FOLDER; None for another name."""
    match = _ERASURE.match(name)
    return match[1] if match else None


def _producer(match: re.Match[str], group: int) -> tuple[int, int] | None:
    """Return the producer's id and epoch from two groups of `match`; None if they do not fit into int64s."""
    producer_id, epoch = _bounded(match[group]), _bounded(match[group + 1])
    return None if producer_id is None or epoch is None else (producer_id, epoch)


def _bounded(digits: str) -> int | None:
    """Return the number; None if it does not fit into an int64."""
    number = int(digits)
    return number if number <= MAX_OFFSET else None
