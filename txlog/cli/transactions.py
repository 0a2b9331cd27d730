"""`txlog transactions`: list transactions, find those that hold readers back, and end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from txlog.cli.documents import AbortDocument, ExpireDocument, document_of
from txlog.cli.options import Execute, Session, argument, command, group, option
from txlog.cli.output import Output
from txlog.errors import CorruptLogError, InvalidRequestError
from txlog.text import duration_text, time_text

if TYPE_CHECKING:
    from txlog.client.admin.descriptions import TransactionDescription

app = group("transactions", "List and describe transactions, find hanging ones, abort and expire them.")

_Id = Annotated[str, argument("ID", "The transactional.id.")]


@command(app, "list")
def list_transactions(
    session: Session,
    state: Annotated[
        list[str] | None, option("--state STATE", "Only this state, as in ONGOING; may be repeated.")
    ] = None,
    producer_id: Annotated[
        list[int] | None, option("--producer-id PID", "Only this producer; may be repeated.")
    ] = None,
    duration_filter: Annotated[
        int, option("--duration-filter MS", "Only transactions open for longer than this.", show_default=False)
    ] = -1,
) -> None:
    """List all transactional.ids with their last transaction."""
    damaged: list[CorruptLogError] = []
    found = [
        each
        for each in session.admin.list_transactions(state or None, damaged=damaged)
        if (not producer_id or each.producer_id in producer_id)
        and (duration_filter < 0 or each.duration_ms > duration_filter)
    ]

    is_filtered = state or producer_id or duration_filter >= 0
    empty = "There are no such transactions." if is_filtered else "There are no transactional.ids."

    def text(out: Output) -> None:
        out.records(
            (
                {
                    "transactional id": each.transactional_id,
                    "state": each.state,
                    "producer": each.producer_id,
                    "epoch": each.producer_epoch,
                    "open for": duration_text(each.duration_ms),
                    "partitions": len(each.partitions),
                    "version": each.txn_version if each.txn_version >= 0 else None,
                    "updated": time_text(each.updated_at),
                }
                for each in found
            ),
            empty="No transaction can be shown." if damaged else empty,
        )

    session.show(found, text, damaged)


@command(app, "describe")
def describe(session: Session, name: _Id) -> None:
    """Show all details of a transactional.id."""
    found = session.admin.describe_transaction(name)
    session.out.show(found, lambda out: _describe(out, found))


@command(app, "find-hanging")
def find_hanging(
    session: Session,
    topic: Annotated[str | None, option("--topic TOPIC", "Only this topic.")] = None,
    partition: Annotated[int | None, option("--partition N", "Only this partition of --topic.")] = None,
    max_transaction_timeout: Annotated[
        int,
        option(
            "--max-transaction-timeout MINUTES",
            "List transactions that have written nothing for longer than this; 0 lists every open one.",
        ),
    ] = 15,
) -> None:
    """Find transactions that have been open in a partition for too long, and show what ends each of them.

    An open transaction holds back the last stable offset, and with it every reader of committed rows. The list has
    transactions that have written nothing for longer than --max-transaction-timeout, and those past their own time-out.
    """
    if partition is not None and topic is None:
        raise InvalidRequestError("--partition needs --topic")
    if max_transaction_timeout < 0:
        raise InvalidRequestError(f"--max-transaction-timeout {max_transaction_timeout}: expected minutes, at least 0")
    admin = session.admin
    if topic is not None and partition is not None:
        admin.describe_producers(topic, partition)  # raises an error for a partition that does not exist
    damaged: list[CorruptLogError] = []
    found = [
        each
        for each in admin.find_hanging(max_transaction_timeout * 60_000, topic, damaged=damaged)
        if partition is None or each.partition == partition
    ]

    def text(out: Output) -> None:
        out.records(
            (
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "since offset": each.first_offset,
                    "producer": each.producer_id,
                    "epoch": each.producer_epoch,
                    "quiet for": duration_text(each.open_ms),
                    "transactional id": each.transactional_id,
                    "state": each.state,
                    "advice": each.advice,
                }
                for each in found
            ),
            empty="No transaction can be shown."
            if damaged
            else "No transaction hangs: each open one wrote in the last "
            f"{duration_text(max_transaction_timeout * 60_000)} and is not past its time-out. "
            "--max-transaction-timeout 0 lists every open one."
            if max_transaction_timeout
            else "No transaction is open.",
        )

    session.show(found, text, damaged)


@command(app, "abort")
def abort(session: Session, name: _Id) -> None:
    """Abort the open transaction of a transactional.id. Its producer cannot commit it any more.

    The coordinator aborts it, as after a time-out. The producer's next send or commit fails with
    InvalidProducerEpochError; it may abort and begin a new transaction. A transaction that is already decided is
    finished as it was decided.
    """
    ended = session.admin.abort_transaction(name)
    now = ended or session.admin.describe_transaction(name)
    result = "nothing open" if ended is None else "committed" if ended.last_outcome == "commit" else "aborted"
    document = document_of(AbortDocument, now, result=result)
    words = {
        "nothing open": f"{name!r} has no open transaction; nothing was changed.",
        "committed": f"The transaction of {name!r} had been decided to commit; it was rolled forward and is visible.",
        "aborted": f"Aborted the transaction of {name!r}; nothing of it is visible. Its producer {now.producer_id} "
        f"may go on at epoch {now.producer_epoch}.",
    }
    session.out.show(document, lambda out: out.line(words[document.result]))


@command(app, "expire")
def expire(
    session: Session,
    transactional_id: Annotated[
        str | None, option("--transactional-id ID", "Forget only this id, if it is idle for long enough.")
    ] = None,
    force: Annotated[
        bool,
        option(
            "--force",
            "Forget --transactional-id now, even if it holds a txn.version. A replay of that "
            "version is then not detected.",
        ),
    ] = False,
    execute: Execute = False,
) -> None:
    """Abort transactions past their time-out, finish decided ones, delete ids that are idle for too long. A dry run,
    unless --execute is given.

    This changes nothing that a running producer needs. A producer or a Spark write also ends such a transaction if it
    writes to the same partition and the transaction was quiet for 10 s. Readers of rows do not.
    """
    if force and transactional_id is None:
        raise InvalidRequestError("--force needs --transactional-id")
    if transactional_id is not None:
        _expire_one(session, transactional_id, force=force, execute=execute)
        return
    done = session.admin.expire(dry_run=not execute)
    document = document_of(ExpireDocument, done, executed=execute)

    def text(out: Output) -> None:
        would = "" if execute else "would be "
        rows = [
            *((each, f"{would}aborted", "past its time-out") for each in done.aborted),
            *((each, f"{would}rolled forward", "decided, and not finished") for each in done.rolled_forward),
            *((each, f"{would}forgotten", "idle for too long") for each in done.removed),
        ]
        out.table(("transactional id", "was" if execute else "result", "because"), rows, empty="Nothing is due.")
        if rows and not execute:
            out.line()
            out.line("Add --execute to do it.")

    session.out.show(document, text)


def _expire_one(session: Session, transactional_id: str, *, force: bool, execute: bool) -> None:
    admin = session.admin
    found = admin.describe_transaction(transactional_id)
    if execute:
        due = admin.expire_id(transactional_id, force=force)
    else:
        due = (force and found.duration_ms < 0) or transactional_id in admin.expire(dry_run=True).removed
    document = ExpireDocument(executed=execute, removed=(transactional_id,) if due else ())
    if due:
        what = f"{transactional_id!r} (producer {found.producer_id})."
        words = f"Forgot {what}" if execute else f"Would forget {what} Add --execute to do it."
    else:
        words = f"{transactional_id!r} is kept: {_why_kept(found, force)}."
    session.out.show(document, lambda out: out.line(words))


def _why_kept(found: TransactionDescription, force: bool) -> str:
    if found.duration_ms >= 0:
        return f"its transaction is {found.state}; end it first (txlog transactions abort {found.transactional_id})"
    if force:
        return (
            "its last commit had hung for longer than delete.grace.ms and was finished just now; try again after "
            "delete.grace.ms, because maintenance jobs must know the id until then"
        )
    if found.txn_version >= 0:
        return (
            f"it holds txn.version {found.txn_version}, without which a late replay of an older transaction would be "
            "let in; --force forgets it all the same"
        )
    return (
        "it is not idle for long enough (transactional.id.expiration.ms, and at least delete.grace.ms); "
        "--force forgets it all the same"
    )


def _describe(out: Output, found: TransactionDescription) -> None:
    out.fields(
        [
            ("transactional id", found.transactional_id),
            ("state", found.state),
            ("last outcome", found.last_outcome),
            ("producer", found.producer_id),
            ("epoch", found.producer_epoch),
            ("time-out", duration_text(found.timeout_ms)),
            ("started", time_text(found.started_at)),
            ("open for", duration_text(found.duration_ms)),
            ("updated", time_text(found.updated_at)),
            ("txn.version", found.txn_version if found.txn_version >= 0 else None),
            ("version scope", found.txn_scope),
            ("coordinator", f"{found.coordinator} at offset {found.offset}"),
        ]
    )
    out.section("Partitions", ("topic", "partition"), found.partitions)
