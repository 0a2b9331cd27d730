"""Scenarios of topics whose columns change, or whose name is created again, and mutants of their rules."""

from __future__ import annotations

from typing import Any

from lab.explore import client as calls
from lab.explore.client import Call, Client, patiently
from lab.explore.explorer import Budget
from lab.explore.mutant import Mutant
from lab.explore.publisher import COLUMNS
from lab.explore.scene import A, Scenario, Scene, Size, context
from txlog.core import envelope, names
from txlog.core.effects import NewId, Program, PutIfAbsent
from txlog.core.evolution import AddColumn, Change, DropColumn, RenameColumn
from txlog.core.records import SchemaField
from txlog.core.schema import max_field_id
from txlog.errors import InvalidRequestError, OutcomeUnknownError, RetriableError, TopicExistsError
from txlog.protocol import column_changes, topic_changes
from txlog.protocol.topics import describe_topic

NOTE, TEXT = (SchemaField(id=1, name=name, type="string", nullable=True) for name in ("note", "text"))


def make_evolving(topic: str) -> Call:
    """Create a topic whose only column is a word."""

    def call(client: Client) -> Program[Client]:
        try:
            yield from topic_changes.create_topic(
                client.ctx,
                topic,
                fields=COLUMNS,
                append_log_start=topic_changes.ending_logs(client.ctx),
            )
        except TopicExistsError:
            return client.noted("exists")
        return client.noted("done")

    return call


def change(topic: str, *changes: Change) -> Call:
    """Change the columns of the topic that exists now. All tries are one call."""

    def call(client: Client) -> Program[Client]:
        try:
            base = yield from describe_topic(topic)
            write_id = yield NewId()
            made = yield from patiently(
                client, lambda: column_changes.change_columns(client.ctx, base, changes, write_id=write_id)
            )
        except InvalidRequestError as error:
            return client.noted("refused change", text=str(error))
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return client.noted("changed", text=write_id) if made.write_id == write_id else client.noted("done")

    return call


# -- scenarios --------------------------------------------------------------------------------------------------------


def _columns(size: Size) -> Scene:
    """One adds a column and drops it, the other one renames one and adds another; a writer goes on by what it knows."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), partitions=(A,), budget=Budget(lost=1))
    scene.before("t", scene.client(), make_evolving(A.topic))
    writer = scene.before("w", scene.client(), calls.open_topic(A.topic), calls.idempotent(), calls.send(A, "a"))
    scene.actor(
        "one", scene.client(), change(A.topic, AddColumn(field=NOTE)), change(A.topic, DropColumn(path=("note",)))
    )
    scene.actor(
        "two", scene.client(), change(A.topic, RenameColumn(path=("word",), name="words"), AddColumn(field=TEXT))
    )
    if full:
        scene.actor("writer", writer, calls.send(A, "b"), calls.open_topic(A.topic), calls.send(A, "c"))
    return scene


def _columns_deleted(size: Size) -> Scene:
    """The topic is deleted and created again while its columns change."""
    full = size == "full"
    scene = Scene(partitions=(), budget=Budget(lost=1))
    scene.before("t", scene.client(), make_evolving(A.topic))
    writer = scene.before("w", scene.client(), calls.open_topic(A.topic), calls.idempotent(), calls.send(A, "a"))
    scene.actor(
        "one", scene.client(), change(A.topic, AddColumn(field=NOTE)), change(A.topic, DropColumn(path=("note",)))
    )
    scene.actor("topics", scene.client(), calls.delete_topic(A.topic), make_evolving(A.topic))
    if full:
        scene.actor("writer", writer, calls.send(A, "b"))
    return scene


def _made_again(size: Size) -> Scene:
    """A deletion died before it ended the partition.

    The name is created again, beside another deletion and a writer.
    """
    full = size == "full"
    scene = Scene(partitions=(), budget=Budget(lost=1))
    scene.before("t", scene.client(), make_evolving(A.topic))
    writer = scene.before("w", scene.client(), calls.open_topic(A.topic), calls.idempotent(), calls.send(A, "a"))
    scene.dies("d", scene.client(), calls.delete_topic(A.topic), A.folder)
    scene.actor("maker", scene.client(), make_evolving(A.topic))
    scene.actor("writer", writer, calls.send(A, "b"))
    if full:
        scene.actor("other", scene.client(), make_evolving(A.topic))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="columns", what="two processes change the columns of a topic at once", rules=(1, 2), build=_columns),
        Scenario(name="columns, deleted", what="a topic is deleted and created again while its columns change", rules=(1, 2), build=_columns_deleted),
        Scenario(name="made again", what="a name is created again although its deletion is not finished", rules=(1, 2), build=_made_again),
    )
}  # fmt: skip


# -- mutants ----------------------------------------------------------------------------------------------------------

_CHANGES = "txlog.protocol.topic_changes."


def _whoever_won(ctx: Any, metadata: Any) -> Program[bool]:
    yield PutIfAbsent(names.topic_metadata_path(metadata.topic, metadata.number), envelope.encode(metadata))
    return True


def _finish_nothing(*_: Any) -> Program[None]:
    yield from ()


def _finish_own(metadata: Any, append: Any) -> Program[None]:
    yield from _FINISH(metadata, append)


_FINISH = topic_changes.finish_deletion


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a version that another process made counts as own", "columns", "W39", {"txlog.protocol.column_changes.put_version": _whoever_won}),
        ("ids of dropped columns are given again", "columns", "W39", {"txlog.protocol.column_changes.last_field_id": lambda version: max_field_id(version.schema)}),
        ("a name is created again before the deletion is in its partitions", "made again", "W40", {_CHANGES + "finish_deletion": _finish_nothing, _CHANGES + "_finish_decided": _finish_own}),
    )
)  # fmt: skip
