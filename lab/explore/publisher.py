"""How does a publisher run here? The calls of scripts that run the shipped `txlog.publication.publish`.

The shipped publisher is blocking code between its requests. So it runs again from its beginning after each answer, with
all earlier answers, until it asks for something new (`replayed`). These answers are its whole state.

Three things at its doors are the kit's. A file of rows is JSON, as everywhere here. Settings and columns are those of
the topic's metadata. And the objects of a format are written by the shipped code, one request after another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import patch

import numpy as np

from lab.explore.client import Call, Client, patiently
from lab.explore.frames import Replayed
from txlog.client.session.session import Session
from txlog.client.session.settings import Settings
from txlog.core.effects import Gather, InlineRows, NewId, Now, Program, WriteRows
from txlog.core.evolution import written_schema
from txlog.core.features import PUBLICATION
from txlog.core.fetch_plan import FilePiece
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import InvalidRequestError, MissingObjectError, OutcomeUnknownError, RetriableError, TxlogError
from txlog.protocol import topic_changes
from txlog.protocol.publications import Shown
from txlog.protocol.requests import get
from txlog.protocol.topics import newest_version, refresh_topic
from txlog.protocol.vacuum_published import PublishRetention
from txlog.publication.expired import expired_objects
from txlog.publication.publish import publish_topic

T = TypeVar("T")

MAX_AGE_MS = 300_000
COLUMNS = (SchemaField(id=1, name="word", type="string"),)
_SETTINGS = Settings()


def make_published(topic: str, partitions: int, **config: object) -> Call:
    """Create a topic that is published. A name in `config` has `_` for each `.`."""
    named = {name.replace("_", "."): value for name, value in config.items()}

    def call(client: Client) -> Program[Client]:
        yield from topic_changes.create_topic(
            client.ctx,
            topic,
            fields=COLUMNS,
            partitions=partitions,
            config=named,
            append_log_start=topic_changes.ending_logs(client.ctx),
        )
        return client.noted("done")

    return call


def publish(*, until_cut: bool = False) -> Call:
    """Run `txlog publish` of the topic that the client has opened; with `until_cut` stop after the cut was taken.

    The next call then goes on from there.
    """

    def call(client: Client) -> Program[Client]:
        known = replace(client, answers=())
        try:
            answers = list(client.answers)
            number = yield from replayed(lambda door: _publish(door, known), answers, _is_cut if until_cut else None)
            if until_cut:
                return replace(client, answers=tuple(answers))
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            # As for other maintenance: the next call sees what is left to do.
            return known.noted("unknown", text=str(error))
        except InvalidRequestError as error:  # it slept for so long that its cut is too old
            return known.noted("too old", text=str(error))
        return known.noted("published", text=str(number))

    return call


def publish_alone(client: Client) -> Program[None]:
    """Publish, or go on with the deletion of the topic as a round of maintenance does, without a note."""
    (known,) = client.topics
    topic = yield from newest_version(known)
    if topic.deleted:
        yield from topic_changes.finish_deletion(topic, topic_changes.ending_logs(client.ctx))
        yield from replayed(lambda door: publish_topic(_Session(door, client), topic).number, [])
    else:
        yield from replayed(lambda door: _publish(door, client), [])


def retention_of(topic: TopicMetadata) -> PublishRetention:
    """Return what `txlog vacuum` takes from the topic's settings."""
    config = _SETTINGS.topic_config(topic)
    return PublishRetention(
        retention_ms=config.publish_retention_ms,
        is_ended=topic.deleted or not config.publish_formats,
        deleted_version=topic.number if topic.deleted and config.publish_formats else None,
        expired=expired_objects,
    )


# -- blocking code ----------------------------------------------------------------------------------------------------


class _NeededError(BaseException):
    """The code asks for something that was not answered yet. No handler of the shipped code may catch it."""

    def __init__(self, program: Program[Any]) -> None:
        super().__init__()
        self.program = program


class Door(Replayed):
    """Answers the requests of code that runs again from its beginning."""

    def __init__(self, answers: Sequence[tuple[Any, TxlogError | None]]) -> None:
        self._answers = iter(answers)

    def run(self, program: Program[T]) -> T:
        found = next(self._answers, None)
        if found is None:
            raise _NeededError(program)
        value, error = found
        if error is not None:
            raise error.with_traceback(None)
        return value  # type: ignore[no-any-return]


def replayed(
    code: Callable[[Door], T],
    answers: list[tuple[Any, TxlogError | None]],
    is_last: Callable[[Any], bool] | None = None,
) -> Program[T | None]:
    """Return the result of blocking code that sends its requests through a door; None if it stops before its end.

    `answers` are those that the code has got, and get those that follow. The code stops after one that `is_last`.
    """
    while True:
        program, result = _run(code, answers)
        if program is None:
            return result  # type: ignore[no-any-return]
        try:
            answer = yield from program
        except TxlogError as error:
            answers.append((None, error))
        else:
            answers.append((answer, None))
            if is_last is not None and is_last(answer):
                return None
            del answer


def _run(code: Callable[[Door], Any], answers: Sequence[Any]) -> tuple[Program[Any] | None, Any]:
    try:
        return None, code(Door(answers))
    except _NeededError as needed:
        return needed.program, None


def _is_cut(answer: Any) -> bool:
    """Return whether an answer is that of the call that takes a cut."""
    return isinstance(answer, tuple) and isinstance(answer[-1], Shown)


class _Hidden(Replayed):
    """A suspended program whose frames are not looked at, because the answers that it got are its state."""

    def __init__(self, program: Program[Any]) -> None:
        self._program = program
        self.result: Any = None

    def after(self, answer: Any, error: TxlogError | None = None) -> Any:
        """Return the next effect; None at the end."""
        try:
            return self._program.send(answer) if error is None else self._program.throw(error)
        except StopIteration as stop:
            self.result = stop.value
            return None


def recorded(program: Program[T]) -> Program[T]:
    """Run a program whose frames hold values that cannot be compared. Its concurrent requests are made in turn."""
    hidden, answers = _Hidden(_in_turn(program)), []
    del program
    effect = hidden.after(None)
    while effect is not None:
        try:
            answer = yield effect
        except TxlogError as error:
            answers.append(repr(error))
            effect = hidden.after(None, error)
        else:
            answers.append(answer)
            effect = hidden.after(answer)
            del answer
    return hidden.result  # type: ignore[no-any-return]


def _in_turn(program: Program[T]) -> Program[T]:
    answer: Any = None
    failure: TxlogError | None = None
    while True:
        try:
            effect = program.send(answer) if failure is None else program.throw(failure)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = failure = None
        try:
            if isinstance(effect, Gather):
                found: tuple[Any, ...] = ()
                for each in effect.programs:
                    found = (*found, (yield from _in_turn(each)))
                answer = found
            else:
                answer = yield effect
        except TxlogError as error:
            failure = error


# -- what the publisher needs of a client -----------------------------------------------------------------------------


def _publish(door: Door, client: Client) -> int:
    session = _Session(door, client)
    return publish_topic(session, session.runtime.topic("", 0)).number


class _Runtime(Replayed):
    """Stands in for a `Runtime`, with the settings of the topic and the columns of its version."""

    settings = _SETTINGS
    url = "memory://store"
    where = "here"

    def __init__(self, door: Door, client: Client) -> None:
        self._door = door
        self._client = client
        (self._topic,) = client.topics
        self.constants = client.ctx.constants
        self.store = _Store(door)
        self.clock = SimpleNamespace(now_ms=lambda: door.run(_ask(Now())))
        self.ids = SimpleNamespace(new_id=lambda: door.run(_ask(NewId())))

    def run(self, program: Program[T]) -> T:
        is_format = cast(Any, program).gi_code.co_name in ("write_version", "complete_version")
        return self._door.run(recorded(program) if is_format else program)

    def topic(self, name: str, max_age_ms: int) -> TopicMetadata:
        self._topic = self._door.run(refresh_topic(self._topic))
        return self._topic

    def context(self, _: Any) -> Any:
        return self._client.ctx

    def require_store(self) -> Any:
        return SimpleNamespace(features=(PUBLICATION,))

    def ensure_writable(self) -> None:
        pass

    def written_schemas(self, topic: TopicMetadata, versions: Any) -> Any:
        return {number: written_schema(topic) for number in versions}


class _Store(Replayed):
    def __init__(self, door: Door) -> None:
        self._door = door

    def get(self, path: str) -> bytes | None:
        return self._door.run(get(path))

    def write(self, rows: WriteRows) -> Any:
        return self._door.run(_ask(rows))


class _Retry(Replayed):
    """Repeats a call as the clients of scripts do."""

    timeout_ms = 10**9

    def __init__(self, door: Door, client: Client) -> None:
        self._door = door
        self._client = client

    def run(self, driver: Any, ctx: Any, what: str, program: Callable[[], Program[T]], **_: Any) -> T:
        return self._door.run(patiently(self._client, program))


class _Session(Session, Replayed):
    """The shipped session, with the retries of a script."""

    def __init__(self, door: Door, client: Client) -> None:
        self.runtime = _Runtime(door, client)  # type: ignore[assignment]
        self.runtime.driver = None  # type: ignore[assignment]
        self.retry = _Retry(door, client)  # type: ignore[assignment]
        self.metadata_max_age_ms = MAX_AGE_MS
        self._config = None  # type: ignore[assignment]
        self._lock = nullcontext()  # type: ignore[assignment]
        self._views = {}
        self._looked_at_ms = {}


def _ask(effect: Any) -> Program[Any]:
    return (yield effect)


# -- rows -------------------------------------------------------------------------------------------------------------


class _Rows:
    """Stands in for a batch of Arrow rows."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self.rows = rows

    def column(self, _: str) -> Any:
        return SimpleNamespace(to_numpy=lambda: np.array([offset for offset, _ in self.rows]))


def _read_pieces(store: _Store, pieces: Sequence[FilePiece], *_: Any, **__: Any) -> list[_Rows]:
    found = []
    for piece in pieces:
        data = store.get(f"{piece.topic_partition.topic}/{piece.file.path}")
        if data is None:
            raise MissingObjectError(f"{piece.file.path} is gone")
        stored = json.loads(data)
        for each in piece.ranges:
            rows = stored[each.first_row : each.first_row + each.rows]
            found.append(
                _Rows([(at if each.by_column else each.base_offset + n, word) for n, (at, word) in enumerate(rows)])
            )
    return found


def _write_rows_file(store: _Store, topic: str, path: str, batches: Sequence[_Rows], *_: Any, **__: Any) -> Any:
    rows = tuple(
        InlineRows(payload=json.dumps([word]).encode(), base_offset=offset, timestamp=0, schema_id=0)
        for batch in batches
        for offset, word in batch.rows
    )
    return store.write(WriteRows(topic, path, rows))


@contextmanager
def rows_are_words() -> Iterator[None]:
    """Let a publisher read and write files of words."""
    with ExitStack() as stack:
        stack.enter_context(patch("txlog.client.rows.read_pieces", _read_pieces))
        stack.enter_context(patch("txlog.storage.parquet_writer.write_rows_file", _write_rows_file))
        yield
