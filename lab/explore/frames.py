"""When are two suspended generators the same state?

They must stop at the same instruction with equal locals, and with equal counters of the ids and times that they drew.
The temporaries on the evaluation stack must also be equal. These are iterators of running `for` loops, operands of half
evaluated expressions, and the generator for which a `yield from` waits. `canonical` turns any value in protocol code
into a hashable one. It refuses unknown types, so a new kind of local can never be merged by mistake.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from txlog.core.record_checks import StoredRecord
from txlog.core.state import PartitionState
from txlog.protocol.context import Context
from txlog.publication.publish import _Attempt


class Replayed:
    """An object of code that runs again from its beginning.

    The answers that it got are its state, and lie beside it.
    """


_Handler: TypeAlias = Callable[[Any, tuple[int, ...]], Hashable]
_ATOMS = frozenset({int, str, bytes, bool, float, type(None)})
_NOT_HELD = frozenset({FrameType, CodeType})
_SEQUENCES = (list, tuple)
_ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter(range(0))), type(iter(range(2**70))), type(iter({})), type(iter({}.values())),
    type(iter({}.items())), type(iter(set())), type(reversed([])), reversed, enumerate, zip, map, filter,
)  # fmt: skip
_CONSTANT = (CodeType, ModuleType, BuiltinFunctionType, type, Enum, Context)
"""Values that do not change while a scenario runs are compared by identity."""
_REPLAYED = (Replayed, _Attempt)


def fingerprint(program: Generator[Any, Any, Any]) -> Hashable:
    """Return everything on which the rest of a suspended generator depends.

    For an ended generator that is only this fact.
    """
    return _fingerprint(program, ())


def canonical(value: Any) -> Hashable:
    """Return `value` in a hashable form that is equal for equal states. Raises TypeError for an unknown kind."""
    return _canonical(value, ())


def _fingerprint(program: Any, inside: tuple[int, ...]) -> Hashable:
    frame = program.gi_frame
    if frame is None:
        return ("ended", program.gi_code)
    # The collector does not show which locals are unbound, so their names are part of the state.
    local = frame.f_locals
    held = [
        each
        for each in gc.get_referents(program)
        if each is not local and type(each) not in _NOT_HELD and not _is_own_function(each, program)
    ]
    return (program.gi_code, frame.f_lasti, frozenset(local), tuple(_canonical(each, inside) for each in held))


def _is_own_function(value: Any, program: Any) -> bool:
    return type(value) is FunctionType and value.__code__ is program.gi_code


def _canonical(value: Any, inside: tuple[int, ...]) -> Hashable:
    kind = type(value)
    if kind in _ATOMS:
        return value  # type: ignore[no-any-return]
    handler = _HANDLERS.get(kind)
    if handler is None:
        handler = _HANDLERS[kind] = _handler(kind, value)
    if handler in _CONTAINERS:
        if id(value) in inside:
            return ("again", inside.index(id(value)))
        inside = (*inside, id(value))
    return handler(value, inside)


def _handler(kind: type, value: Any) -> _Handler:
    """Return the function that makes values of a type canonical. The first value of a type decides for all."""
    for kinds, handler in _KINDS:
        if issubclass(kind, kinds):
            return handler
    if is_dataclass(kind):
        frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return _frozen if frozen else _dataclass
    raise TypeError(
        f"a protocol program holds a {kind!r}, and the explorer cannot tell when two are the same: {value!r}"
    )


def _constant(value: Any, inside: tuple[int, ...]) -> Hashable:
    return value if isinstance(value, Enum | type | CodeType) else (type(value), id(value))


def _replayed(value: Any, inside: tuple[int, ...]) -> Hashable:
    return (type(value),)


def _sequence(value: Any, inside: tuple[int, ...]) -> Hashable:
    return (type(value), *[_canonical(each, inside) for each in value])


def _mapping(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("mapping", *[(_canonical(key, inside), _canonical(each, inside)) for key, each in value.items()])


def _set(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("set", frozenset([_canonical(each, inside) for each in value]))


def _dataclass(value: Any, inside: tuple[int, ...]) -> Hashable:
    return (
        type(value),
        *[_canonical(getattr(value, name), inside) for name in _field_names(cast(Hashable, type(value)))],
    )


def _function(value: Any, inside: tuple[int, ...]) -> Hashable:
    cells = [_canonical(cell, inside) for cell in value.__closure__ or ()]
    return (
        "function",
        value.__code__,
        *cells,
        _canonical(value.__defaults__, inside),
        _canonical(value.__kwdefaults__, inside),
    )


def _method(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("method", value.__func__.__code__, _canonical(value.__self__, inside))


def _partial(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("partial", *[_canonical(each, inside) for each in (value.func, value.args, value.keywords)])


def _cell(value: Any, inside: tuple[int, ...]) -> Hashable:
    try:
        return ("cell", _canonical(value.cell_contents, inside))
    except ValueError:
        return ("cell",)


def _array(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("array", value.dtype.str, value.shape, value.tobytes())


def _range(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("range", value.start, value.stop, value.step)


def _iterator(value: Any, inside: tuple[int, ...]) -> Hashable:
    return (type(value), *[_canonical(each, inside) for each in value.__reduce__()[1:]])


def _match(value: Any, inside: tuple[int, ...]) -> Hashable:
    return ("match", value.re.pattern, value.string, value.span())


def _error(value: Any, inside: tuple[int, ...]) -> Hashable:
    return (type(value), str(value))


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cast(Any, kind)))


# Views, states and clients are values in many frames, so each is examined once. A remembered value is kept alive, so
# that its id stays unique, and has a number, so that comparing it costs nothing.
_remembered: dict[int, tuple[Any, int]] = {}
_numbers: dict[Hashable, int] = {}
_MAX_REMEMBERED = 50_000


def _frozen(value: Any, inside: tuple[int, ...]) -> Hashable:
    found = _remembered.get(id(value))
    if found is None:
        special = _SPECIAL.get(type(value))
        made = special(value) if special is not None else _dataclass(value, ())
        if len(_remembered) > _MAX_REMEMBERED:
            _remembered.clear()
        found = _remembered[id(value)] = (value, _numbers.setdefault(made, len(_numbers)))
    return ("frozen", found[1])


def forget() -> None:
    """Free what was remembered. Only between explorations, because the numbers then start again."""
    _remembered.clear()
    _numbers.clear()


def _struct(value: msgspec.Struct, inside: tuple[int, ...] = ()) -> Hashable:
    try:
        hash(value)
    except TypeError:  # it has a dictionary
        return (type(value), msgspec.json.encode(value))
    return value


def _stored(value: StoredRecord) -> Hashable:
    return ("stored", value.digest, value.record.base_offset)


def _state(value: PartitionState) -> Hashable:
    # The digest of the last record determines the whole chain and so its fold. The oracle checks that shipped code
    # folds it correctly, so this also contains what a wrong snapshot could lack.
    return (
        "state", value.topic_partition, value.log_start_offset, value.next_offset, value.segment_base, value.segment_batches,
        value.segment_bytes, value.segment_record_bytes, value.segment_started_at, value.last_timestamp, value.last_digest,
        value.deleted_version, tuple(value.producers.values()), tuple(map(_struct, value.transactions.values())),
        frozenset((pid, frozenset(rows)) for pid, rows in value.pending.items()), frozenset(value.committed), frozenset(value.groups),
    )  # fmt: skip


_SPECIAL: dict[type, Callable[[Any], Hashable]] = {StoredRecord: _stored, PartitionState: _state}

_KINDS: tuple[tuple[type | tuple[type, ...], _Handler], ...] = (
    (_CONSTANT, _constant),
    (_REPLAYED, _replayed),
    (msgspec.Struct, _struct),
    (_SEQUENCES, _sequence),
    ((dict, Mapping, MappingProxyType), _mapping),
    ((set, frozenset), _set),
    (GeneratorType, _fingerprint),
    (FunctionType, _function),
    (MethodType, _method),
    (partial, _partial),
    (CellType, _cell),
    (range, _range),
    (np.ndarray, _array),
    (_ITERATORS, _iterator),
    (re.Match, _match),
    (BaseException, _error),
)
_CONTAINERS = frozenset(
    {_sequence, _mapping, _set, _dataclass, _fingerprint, _function, _method, _partial, _cell, _iterator}
)
_HANDLERS: dict[type, _Handler] = {}
