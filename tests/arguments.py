"""Each kind of value for each argument of a call: it works, or a TxlogError says in one sentence what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from txlog.client.session.arguments import KINDS, PARTS
from txlog.errors import InvalidConfigurationError, InvalidRequestError, SchemaMismatchError, TxlogError

LONGEST = 700
VALUES: Mapping[str, Any] = {
    "None": None,
    "True": True,
    "1": 1,
    "-1": -1,
    "2.5": 2.5,
    "'x'": "x",
    "b'x'": b"x",
    "[]": [],
    "[1]": [1],
    "{}": {},
    "{1: 1}": {1: 1},
    "object()": object(),
    "lambda": lambda *_: None,
    "table": pa.table({"id": [1]}),
}
Arguments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By call: the arguments that it needs. Those that stand before others by their places are under `*`."""


class Scene(Protocol):
    """A store, and objects with calls."""

    def call(self, name: str) -> Callable[..., object]:
        """Return the call `Class.method` of an object in the right state."""

    def use(self, result: Any) -> None:
        """Do with a result what shows whether the call works."""

    def close(self) -> None: ...


def parameters_of(call: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, without `self`, and without those that take nothing."""
    for name, each in inspect.signature(call).parameters.items():
        if name not in ("self", "cls") and each.annotation != "Never":
            yield each


def public_calls(kinds: Iterable[type]) -> dict[str, Callable[..., object]]:
    """Return the public methods of classes that have parameters, by `Class.method`."""
    return {
        f"{kind.__name__}.{name}": call
        for kind in kinds
        for name, call in vars(kind).items()
        if inspect.isfunction(call) and not name.startswith("_") and [*parameters_of(call)]
    }


def unchecked(calls: Mapping[str, Callable[..., object]]) -> set[str]:
    """Return the annotations that are not checked when a call begins."""
    annotations = {str(each.annotation) for call in calls.values() for each in parameters_of(call)}
    return {each for each in annotations if not all(part in KINDS for part in PARTS.split(each))}


def wrong_answers(
    make: Callable[[], Scene], name: str, parameter: inspect.Parameter, given: Arguments, keyword: str
) -> list[str]:
    """Give each value to one parameter, or to a `keyword` of many, and return the wrong answers.

    A scene is used until a call has worked in it. A refused call has done nothing.
    """
    found = []
    scene = make()
    call = scene.call(name)
    try:
        for label, value in VALUES.items():
            is_refused, answer = _tried(scene, partial(_invoke, call, parameter, value, given.get(name, {}), keyword))
            if answer:
                found.append(f"{name}({parameter.name}={label}): {answer}")
            if not is_refused:
                scene.close()
                scene = make()
                call = scene.call(name)
    finally:
        scene.close()
    return found


def _invoke(
    call: Callable[..., object], parameter: inspect.Parameter, value: Any, given: Mapping[str, Any], keyword: str
) -> object:
    named = {key: each for key, each in given.items() if key != "*"}
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return call(value, **named)
    named[keyword if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.name] = value
    return call(*given.get("*", ()), **named)


def _tried(scene: Scene, act: Callable[[], object]) -> tuple[bool, str]:
    """Return whether a call was refused for its arguments, and what is wrong with its answer."""
    try:
        scene.use(act())
    except TxlogError as error:
        text = str(error)
        is_plain = "\n" not in text and len(text) <= LONGEST and len(error.problem.split()) >= 4
        is_refused = type(error) in (InvalidRequestError, InvalidConfigurationError, SchemaMismatchError)
        return is_refused, "" if is_plain else f"not one sentence: {text!r}"
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    return False, ""
