"""`txlog consumer-groups`: list groups, show their lag, move their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from txlog.cli.documents import GroupDeletionDocument, ResetDocument
from txlog.cli.offsets import parse_spec
from txlog.cli.options import Execute, Session, argument, command, group, option
from txlog.cli.output import Output, Row
from txlog.cli.partitions import parse_partitions
from txlog.core.names import TopicPartition, is_reserved
from txlog.errors import CorruptLogError, InvalidRequestError
from txlog.text import count_text, time_text

if TYPE_CHECKING:
    from txlog.client.admin.admin import Admin
    from txlog.client.admin.descriptions import GroupInfo, OffsetReset

app = group("consumer-groups", "List and describe consumer groups, move their offsets, delete them.")

_Group = Annotated[str, argument("GROUP", "The group.id.")]
_Force = Annotated[
    bool,
    option(
        "--force",
        "Remove all members first. If they still run, they join again, and lose what they have not committed.",
    ),
]


@command(app, "list")
def list_groups(session: Session) -> None:
    """List all consumer groups."""
    damaged: list[CorruptLogError] = []
    found = session.admin.list_groups(damaged=damaged)

    def text(out: Output) -> None:
        out.table(
            ("group", "state", "member", "partitions", "lag"),
            [(each.group, each.state, _members(each), len(each.offsets), total_lag(each)) for each in found],
            empty="There are no consumer groups.",
        )

    session.show(found, text, damaged)


@command(app, "describe")
def describe(session: Session, name: _Group) -> None:
    """Show a group's members and what they read, its offsets and its lag.

    The lag counts offsets up to the last stable one, markers and aborted rows included. The lag in seconds is how long
    the oldest of them has waited. The lag is not known while a member has committed no offset in a partition.
    """
    damaged: list[CorruptLogError] = []
    found = session.admin.describe_group(name, damaged=damaged)
    session.show(found, lambda out: _describe(out, found), damaged)


@command(app, "reset-offsets")
def reset_offsets(
    session: Session,
    name: _Group,
    topic: Annotated[
        list[str] | None,
        option(
            "--topic TOPIC[:0,1,…]",
            "Only this topic, or these partitions of it; may be repeated (default: all for "
            "which the group has offsets).",
        ),
    ] = None,
    to_earliest: Annotated[bool, option("--to-earliest", "To the log start.")] = False,
    to_latest: Annotated[bool, option("--to-latest", "To the last stable offset.")] = False,
    to_offset: Annotated[int | None, option("--to-offset N", "To this offset.")] = None,
    to_datetime: Annotated[
        str | None, option("--to-datetime TIME", "To the first offset at or after a moment.")
    ] = None,
    shift_by: Annotated[
        int | None, option("--shift-by N", "Move by this number of offsets; backward if negative.")
    ] = None,
    force: _Force = False,
    execute: Execute = False,
) -> None:
    """Move a group's offsets. A dry run, unless --execute is given.

    A group with a member is refused, unless --force is given. A killed consumer stays a member until its
    session.timeout.ms is over, or until --force removes it. Offsets outside of the log are moved to the log's nearer
    end.
    """
    given = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None]
    if sum(given) != 1:
        raise InvalidRequestError(
            "where to? Give one of --to-earliest, --to-latest, --to-offset N, --to-datetime TIME and --shift-by N"
        )
    admin = session.admin
    partitions = _partitions(session, topic)
    if shift_by is not None:
        plan = admin.plan_reset(name, partitions, shift_by=shift_by)
    elif to_offset is not None:
        plan = _plan_to_offset(session, admin, name, partitions, to_offset)
    elif to_datetime is not None:
        plan = admin.plan_reset(name, partitions, parse_spec(to_datetime, "--to-datetime"))
    else:
        plan = admin.plan_reset(name, partitions, "earliest" if to_earliest else "latest")
    removed, refusal = _try(lambda: admin.reset_offsets(name, plan, force=force, dry_run=not execute), execute)
    document = ResetDocument(group=name, executed=execute, offsets=plan, removed_members=removed, refusal=refusal)

    def text(out: Output) -> None:
        _show_moves(out, document)
        if document.offsets:
            moved = count_text(sum(r.before != r.after for r in document.offsets), "offset")
            out.line()
            _show_done(out, document, f"moved {moved} of group {name!r}", f"move {moved} of group {name!r}")

    session.out.show(document, text)


@command(app, "delete")
def delete(session: Session, name: _Group, force: _Force = False, execute: Execute = False) -> None:
    """Delete a group and its offsets. A dry run, unless --execute is given.

    A group with a member is refused, unless --force is given. A killed consumer stays a member until its
    session.timeout.ms is over, or until --force removes it.
    """
    admin = session.admin
    what = f"group {name!r}: {count_text(len(admin.describe_group(name).offsets), 'offset')}"
    removed, refusal = _try(lambda: admin.delete_group(name, force=force, dry_run=not execute), execute)
    document = GroupDeletionDocument(
        kind="group", name=name, executed=execute, removed_members=removed, refusal=refusal
    )
    session.out.show(document, lambda out: _show_done(out, document, f"deleted {what}", f"delete {what}"))


def _try(call: Callable[[], tuple[str, ...]], execute: bool) -> tuple[tuple[str, ...], str | None]:
    """Return the members that a change removed. In a dry run, return instead why the change would be refused."""
    try:
        return call(), None
    except InvalidRequestError as error:
        if execute:
            raise
        return (), str(error)


def _show_moves(out: Output, document: ResetDocument) -> None:
    columns = ["topic", "partition", "before", "after"]
    rows: list[Row] = [(r.topic, r.partition, r.before, r.after) for r in document.offsets]
    if any(r.asked is not None for r in document.offsets):
        columns.append("because")
        rows = [(*row, _why_moved(r)) for row, r in zip(rows, document.offsets, strict=True)]
    out.table(columns, rows, empty=f"Group {document.group!r} has no offsets; name topics with --topic.")


def _why_moved(row: OffsetReset) -> str | None:
    if row.asked is None:
        return None
    return f"the log has no offset {row.asked}: this is its {'start' if row.asked < row.after else 'end'}"


def _show_done(out: Output, document: ResetDocument | GroupDeletionDocument, done: str, would: str) -> None:
    members = ", ".join(map(repr, document.removed_members))
    if document.executed:
        out.line(f"Removed member {members}, and {done}." if members else f"{done[0].upper()}{done[1:]}.")
        return
    first = f"remove member {members}, and " if members else ""
    out.line(f"Would {first}{would}. Add --execute to do it.")
    if document.refusal is not None:
        out.line(f"It would be refused: {document.refusal}.")


def _partitions(session: Session, topics: list[str] | None) -> list[TopicPartition] | None:
    if not topics:
        return None
    found: list[TopicPartition] = []
    for text in topics:
        name, given, numbers = text.partition(":")
        chosen = parse_partitions(numbers, "--topic") if given else range(session.store.topic(name).partitions)
        found += [TopicPartition(name, number) for number in chosen]
    return found


def _plan_to_offset(
    session: Session, admin: Admin, name: str, partitions: list[TopicPartition] | None, offset: int
) -> tuple[OffsetReset, ...]:
    # A local import, because it loads the client.
    from txlog.client.offsets import OffsetSpec

    if offset < 0:
        raise InvalidRequestError(f"--to-offset {offset}: expected an offset, at least 0")
    if partitions is None:
        found = admin.describe_group(name).offsets
        partitions = [TopicPartition(each.topic, each.partition) for each in found if not is_reserved(each.topic)]
    spec = OffsetSpec(kind="offsets", option="--to-offset", offsets=dict.fromkeys(partitions, offset))
    return admin.plan_reset(name, partitions, spec)


def total_lag(found: GroupInfo) -> int | None:
    """Return the total lag, or None if it is unknown in a partition for which the group has an offset or a member."""
    if _unread(found) or any(each.committed is not None and each.lag is None for each in found.offsets):
        return None
    return sum(each.lag or 0 for each in found.offsets)


def _unread(found: GroupInfo) -> list[TopicPartition]:
    """Return the partitions that a member is to read, and for which the group has no offset."""
    known = {TopicPartition(each.topic, each.partition) for each in found.offsets}
    return sorted({tp for member in found.members for tp in member.assigned} - known)


def _members(found: GroupInfo) -> str:
    more = f" and {len(found.members) - 1} more" if len(found.members) > 1 else ""
    return f"{found.client_id or found.member_id}{more}"


def _describe(out: Output, found: GroupInfo) -> None:
    alone = [] if found.members else [("member", found.member_id), ("client", found.client_id)]
    out.fields(
        [
            ("group", found.group),
            ("state", found.state),
            *alone,
            *([("assignor", found.assignor)] if found.members else []),
            ("generation", found.generation if found.generation >= 0 else None),
            ("topics", ", ".join(found.topics)),
            ("joined or left", time_text(found.updated_at)),
            ("lag", total_lag(found)),
        ]
    )
    if found.members:
        out.heading("Members")
        out.records(
            {
                "member": each.member_id,
                "client": each.client_id,
                "instance": each.instance_id,
                "reads": " ".join(map(str, each.partitions)),
                "is to read": "" if each.assigned == each.partitions else " ".join(map(str, each.assigned)),
                "last sign of life": time_text(each.seen_at),
            }
            for each in found.members
        )
    out.heading("Offsets")
    out.table(
        ("topic", "partition", "committed", "pending", "last stable", "log end", "lag", "lag s", "committed at"),
        [
            (
                each.topic,
                each.partition,
                each.committed,
                "removal" if each.pending_removal else each.pending,
                each.last_stable_offset,
                each.log_end_offset,
                each.lag,
                None if each.lag_ms is None else round(each.lag_ms / 1000),
                time_text(each.committed_at),
            )
            for each in found.offsets
        ]
        + [(tp.topic, tp.partition, *[None] * 7) for tp in _unread(found)],
        empty="It has committed no offsets.",
    )
    held = [each for each in found.offsets if (each.last_stable_offset or 0) < (each.log_end_offset or 0)]
    if held:
        more = f" and {count_text(len(held) - 1, 'other partition')}" if len(held) > 1 else ""
        out.line()
        out.line(
            f"An open transaction holds readers back in {held[0].topic}-{held[0].partition}{more}, and LAG ends there: "
            "`txlog transactions find-hanging --max-transaction-timeout 0` names it."
        )
