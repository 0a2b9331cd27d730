"""`txlog topics`: list, create, change and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from txlog.cli.columns import columns_of_file, parse_added, parse_columns, to_schema
from txlog.cli.documents import DeletionDocument, PartitionEnds, SchemaVersion, TopicDocument, TopicSummary, document_of
from txlog.cli.options import Execute, Session, TopicName, argument, command, group, option, parse_pairs
from txlog.cli.output import Output
from txlog.cli.publish import describe_published, published
from txlog.config import COMPACTED_SEGMENT_MS, keys_of
from txlog.core.evolution import describe_changes, find_path
from txlog.core.names import TopicPartition
from txlog.core.schema import KEY_TYPES, describe as describe_type, evolve
from txlog.errors import CorruptLogError, InvalidRequestError, SchemaMismatchError, TopicExistsError
from txlog.text import bytes_text, count_text, time_text

if TYPE_CHECKING:
    from txlog.client.store import Store, TopicDescription
    from txlog.core.records import SchemaField
    from txlog.maintenance.size import PartitionSize

app = group("topics", "Create, list, describe, alter and delete topics.")

_Columns = Annotated[
    list[str] | None,
    option(
        "--column NAME:TYPE[:not-null]",
        "A column; may be repeated. Types: bool, int8 to int64, float32, float64, string, binary, date, timestamp, "
        "timestamp_ntz, decimal(p,s), and list<…>, map<…>, struct<name type, …> of them.",
    ),
]
_Schema = Annotated[
    str | None, option("--schema FILE", "The columns, as a JSON list of {name, type, nullable, fields}.")
]
_Set = Annotated[
    list[str] | None, option("--set KEY=VALUE", "A setting of the topic, as in retention.ms=-1; may be repeated.")
]


@command(app, "create")
def create(
    session: Session,
    name: TopicName,
    partitions: Annotated[int, option("--partitions N", "How many partitions.")] = 1,
    column: _Columns = None,
    schema: _Schema = None,
    from_file: Annotated[
        str | None, option("--from FILE.parquet", "The columns of this Parquet file; `produce --from` writes its rows.")
    ] = None,
    settings: _Set = None,
    if_not_exists: Annotated[
        bool,
        option(
            "--if-not-exists",
            "Do nothing if the topic exists already and has these columns, with these types; more only if they take "
            "null. Other partitions and settings are ignored: `txlog topics alter` changes them.",
        ),
    ] = False,
) -> None:
    """Create a topic, and the store itself if the location is empty.

    Without columns the topic has Kafka's columns: key, value, headers, timestamp.
    """
    fields = parse_columns(column, schema)
    if from_file is not None:
        if fields is not None:
            raise InvalidRequestError("--from and --column or --schema are given; name the columns in one way")
        fields = columns_of_file(from_file)
    config = parse_pairs(settings, "--set")
    asked = None if fields is None else to_schema(fields)
    store = session.open(may_be_new=True)
    try:
        made = store.create_topic(name, asked, partitions, config)
        done = f"Created topic {name!r} with {count_text(made.partitions, 'partition')}."
    except TopicExistsError:
        if not if_not_exists:
            raise
        made = store.create_topic(name, asked, partitions, config, if_not_exists=True)
        done = f"Topic {name!r} exists already, with {count_text(made.partitions, 'partition')}; nothing was changed."
    session.out.show(_document(session, made), lambda out: out.line(done))


@command(app, "list")
def list_topics(session: Session) -> None:
    """List all topics."""
    damaged: list[CorruptLogError] = []
    topics = [
        document_of(TopicSummary, found, topic=found.name, columns=len(found.fields), changed_at=found.created_at)
        for found in session.store.topics(damaged=damaged)
    ]

    def text(out: Output) -> None:
        out.table(
            ("topic", "partitions", "columns", "version", "changed", "settings"),
            [
                (
                    each.topic,
                    each.partitions,
                    each.columns,
                    each.version,
                    time_text(each.changed_at),
                    _spelled(each.config),
                )
                for each in topics
            ],
            empty="No topic can be shown." if damaged else "There are no topics.",
        )

    session.show(topics, text, damaged)


@command(app, "describe")
def describe(
    session: Session,
    name: Annotated[str | None, argument("TOPIC", "The topic's name.")] = None,
    size: Annotated[
        bool, option("--size", "Also show files, bytes, small files, aborted rows, and what a merge would gain.")
    ] = False,
    schema_history: Annotated[
        bool, option("--schema-history", "Also show when columns were changed, and how.")
    ] = False,
) -> None:
    """Show the columns, settings and partitions of one topic or of all topics."""
    store = session.store
    damaged: list[CorruptLogError] = []
    found = list(store.topics(damaged=damaged)) if name is None else [store.topic(name)]
    documents = [_document(session, each, damaged) for each in found]
    documents = [msgspec.structs.replace(each, published=published(session, each)) for each in documents]
    if size:
        sizes = {each.topic: _sizes(session, each, damaged) for each in documents}
        documents = [msgspec.structs.replace(each, sizes=sizes[each.topic]) for each in documents]
    if schema_history:
        documents = [msgspec.structs.replace(each, schema_history=_history(store, each.topic)) for each in documents]

    def text(out: Output) -> None:
        if not documents:
            out.line("No topic can be shown." if damaged else "There are no topics.")
        for number, document in enumerate(documents):
            if number:
                out.line()
            _describe(out, document)
            if document.published is not None:
                describe_published(out, document.published)
            if size:
                _describe_sizes(out, sizes[document.topic])
            if schema_history:
                _describe_history(out, document.schema_history)

    session.show(documents, text, damaged)


@command(app, "alter")
def alter(
    session: Session,
    name: TopicName,
    partitions: Annotated[
        int | None, option("--partitions N", "The new number of partitions. It cannot become smaller.")
    ] = None,
    column: _Columns = None,
    schema: _Schema = None,
    add_column: Annotated[
        list[str] | None,
        option(
            "--add-column NAME:TYPE[=DEFAULT]",
            "A new nullable column; may be repeated. Older rows have the default. NAME may be like address.city.",
        ),
    ] = None,
    rename_column: Annotated[
        list[str] | None,
        option("--rename-column OLD=NEW", "A column to rename; may be repeated. OLD may be like address.city."),
    ] = None,
    drop_column: Annotated[list[str] | None, option("--drop-column NAME", "A column to drop; may be repeated.")] = None,
    set_type: Annotated[
        list[str] | None,
        option("--set-type COLUMN=TYPE", "A wider type, as in qty=int64 or price=decimal(20,2); may be repeated."),
    ] = None,
    nullable: Annotated[
        list[str] | None, option("--nullable COLUMN", "A column that may be null from now on; may be repeated.")
    ] = None,
    column_order: Annotated[
        str | None, option("--column-order A,B,C", "The columns that come first, in this order.")
    ] = None,
    settings: _Set = None,
    unset: Annotated[list[str] | None, option("--unset KEY", "A setting to remove; may be repeated.")] = None,
    allow_key_movement: Annotated[
        bool,
        option(
            "--allow-key-movement",
            "Add partitions, or set other key.columns, although new rows of a key then go to another "
            "partition than its older ones.",
        ),
    ] = False,
) -> None:
    """Change a topic: its settings, more partitions, its columns.

    --column and --schema are as in `create`, and may also name existing columns, as `describe` prints them. The new
    ones are added.
    --rename-column, --drop-column, --set-type, --nullable, --column-order and a default need a store with the feature
    schema-evolution. No row is rewritten, and columns are named as they are before the command.
    """
    config = parse_pairs(settings, "--set")
    fields = parse_columns(column, schema)
    added, defaults = parse_added(add_column or ())
    if added and fields is not None:
        raise InvalidRequestError("--add-column and --column or --schema are given; name the new columns in one way")
    by_id = (rename_column, drop_column, set_type, nullable, column_order, added)
    if partitions is None and fields is None and not config and not unset and not any(by_id):
        raise InvalidRequestError(
            "nothing to alter; give --set, --unset, --partitions, --add-column, --rename-column, --drop-column, "
            "--set-type, --nullable or --schema"
        )
    store = session.store
    before = store.topic(name)
    inside = _by_struct(before.fields, added, f"topic {name!r}")
    if added:
        fields = inside.pop("", ())
    if fields is not None and schema is not None:
        fields = evolve(before.fields, fields, f"topic {name!r}")[len(before.fields) :]
    changed = store.alter_topic(
        name,
        config=config,
        remove_config=unset or (),
        partitions=partitions,
        add_columns=to_schema(fields) if fields else None,
        allow_key_movement=allow_key_movement,
        rename_columns=parse_pairs(rename_column, "--rename-column"),
        drop_columns=drop_column or (),
        set_types=parse_pairs(set_type, "--set-type"),
        nullable_columns=nullable or (),
        add_fields={above: to_schema(new) for above, new in inside.items()},
        column_defaults=defaults,
        column_order=tuple(filter(None, (column_order or "").split(","))),
    )
    done = (
        f"Topic {name!r} is as asked for already; nothing was changed."
        if changed.version == before.version
        else f"Changed topic {name!r}: version {changed.version}, {count_text(changed.partitions, 'partition')}, "
        f"{count_text(len(changed.fields), 'column')}, {_spelled(changed.config) or 'no settings of its own'}."
    )
    session.out.show(_document(session, changed), lambda out: out.line(done))
    moved = _wider_keys(before.fields, changed.fields) if changed.partitions > 1 else []
    if moved:
        session.out.note(
            f"warning: {', '.join(map(repr, moved))} became wider, and Kafka's serializers write a wider integer in "
            "more bytes. If a program sends rows with such a column as key, new rows of a key go to another "
            "partition than its older ones."
        )


def _wider_keys(before: Sequence[SchemaField], after: Sequence[SchemaField]) -> list[str]:
    """Return the columns that could be keys before, and have another type now."""
    types = {field.id: field.type for field in before if field.type in KEY_TYPES}
    return [field.name for field in after if types.get(field.id, field.type) != field.type]


@command(app, "delete")
def delete(session: Session, name: TopicName, execute: Execute = False) -> None:
    """Delete a topic and all its rows. A dry run, unless --execute is given."""
    document = _document(session, session.store.topic(name))
    if execute:
        session.store.delete_topic(name)
    offsets = sum(each.log_end_offset - each.log_start_offset for each in document.ends)
    what = f"topic {name!r}: {count_text(document.partitions, 'partition')}, {count_text(offsets, 'offset')}"
    session.out.show(
        DeletionDocument(kind="topic", name=name, executed=execute),
        lambda out: out.line(f"Deleted {what}." if execute else f"Would delete {what}. Add --execute to do it."),
    )


def _by_struct(
    fields: Sequence[SchemaField], added: Sequence[SchemaField], where: str
) -> dict[str, tuple[SchemaField, ...]]:
    """Return new columns by the struct that they are added to.

    A name like `address.city` is a column if there is no `address`.
    """
    found: dict[str, tuple[SchemaField, ...]] = {}
    for new in added:
        above, _, name = new.name.rpartition(".")
        try:
            find_path(fields, above, where)
        except SchemaMismatchError:
            above, name = "", new.name
        found[above] = (*found.get(above, ()), msgspec.structs.replace(new, name=name))
    return found


def _document(session: Session, topic: TopicDescription, damaged: list[CorruptLogError] | None = None) -> TopicDocument:
    """Return a topic with the ends of its partitions.

    With a list `damaged`, damaged partitions are left out and their errors are appended to the list.
    """
    ends = session.admin.list_offsets(topic.name, damaged=damaged)
    return document_of(
        TopicDocument,
        topic,
        topic=topic.name,
        columns=topic.fields,
        changed_at=topic.created_at,
        ends=tuple(document_of(PartitionEnds, ends[tp]) for tp in sorted(ends)),
    )


def _describe(out: Output, document: TopicDocument) -> None:
    out.fields(
        [
            ("topic", document.topic),
            ("id", document.topic_id),
            ("version", document.version),
            ("changed", time_text(document.changed_at)),
            ("partitions", document.partitions),
        ]
    )
    out.section("Columns", ("id", "name", "type"), [(c.id, c.name, describe_type(c)) for c in document.columns])
    out.heading("Settings")
    is_compacted = "compact" in document.config.get("cleanup.policy", "")
    others = {"segment.ms": str(COMPACTED_SEGMENT_MS)} if is_compacted else {}
    out.records(
        {
            "key": key.name,
            "value": document.config.get(key.name, others.get(key.name, key.text(key.default))),
            "from": "topic" if key.name in document.config else "default",
        }
        for key in keys_of("topic")
    )
    out.heading("Partitions")
    out.table(
        ("partition", "log start", "last stable", "log end"),
        [(e.partition, e.log_start_offset, e.last_stable_offset, e.log_end_offset) for e in document.ends],
    )


def _sizes(session: Session, document: TopicDocument, damaged: list[CorruptLogError]) -> tuple[PartitionSize, ...]:
    """Return the sizes of the partitions. Damaged ones are left out, and their errors are appended to `damaged`."""
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.size import measure_partition

    reads = read_session(session.store.runtime)
    sizes = []
    for number in (each.partition for each in document.ends):
        tp = TopicPartition(document.topic, number)
        try:
            sizes.append(measure_partition(reads, tp))
        except CorruptLogError as error:
            damaged.append(error)
        reads.forget([tp])
    return tuple(sizes)


def _history(store: Store, topic: str) -> tuple[SchemaVersion, ...]:
    versions = store.schema_history(topic)
    return tuple(
        SchemaVersion(
            schema_id=each.schema_id,
            changed_at=each.created_at,
            changes=("created",) if before is None else describe_changes(before.fields, each.fields),
            columns=each.fields,
        )
        for before, each in zip((None, *versions), versions, strict=False)
    )


def _describe_history(out: Output, versions: Sequence[SchemaVersion]) -> None:
    out.section(
        "Schema history",
        ("version", "changed", "columns", "changes"),
        [(each.schema_id, time_text(each.changed_at), len(each.columns), "; ".join(each.changes)) for each in versions],
    )


def _describe_sizes(out: Output, sizes: Sequence[PartitionSize]) -> None:
    out.heading("Size")
    out.records(
        {
            "partition": each.partition,
            "objects": each.objects,
            "segments": each.segments,
            "tail": each.tail_batches,
            "files": each.files,
            "small": _share(each.small_files, each.files),
            "bytes": bytes_text(each.bytes),
            "rows": each.rows,
            "aborted": _share(each.aborted_rows, each.rows),
        }
        for each in sizes
    )
    files, runs = sum(each.merge_files for each in sizes), sum(each.merge_runs for each in sizes)
    if not runs:
        out.line(
            "A merge would gain nothing: what is sealed lies in files of its size, or alone. The newest rows are "
            "sealed when segment.batches, segment.bytes or segment.ms are reached."
        )
        return
    moved = bytes_text(sum(each.merge_bytes for each in sizes))
    out.line(
        f"A merge would make {count_text(runs, 'file')} of {count_text(files, 'file')}, {moved}, and leave aborted "
        f"rows out; {count_text(sum(each.files for each in sizes) - files + runs, 'file')} would be left in all."
    )


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.0f} %)" if whole else "0"


def _spelled(config: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in config.items())
