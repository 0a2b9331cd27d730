"""When are two suspended generators the same state?

If they stop at the same instruction with equal locals, equal temporaries on the evaluation stack (iterators of running
`for` loops, operands of half evaluated expressions, the generator that a `yield from` waits for) and equal counters of
what they drew. `canonical` turns any value that protocol code holds into a hashable one; it refuses what it does not
know, so a new kind of local can never be merged by mistake.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
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
from typing import Any

import msgspec

from txlog.core.state import PartitionState, StoredRecord
from txlog.protocol.context import Context

_ATOMS = frozenset({int, str, bytes, bool, float, type(None)})
_SEQUENCES = (list, tuple)
_ITERATORS = tuple(
    type(iterator)
    for iterator in (
        iter([]), iter(()), iter(range(0)), iter(range(2**70)), iter({}), iter({}.values()), iter({}.items()), iter(set()),
        enumerate(()), zip(), map(len, ()), filter(None, ()), reversed([]), reversed(()),
    )
)  # fmt: skip
_CONSTANT = (CodeType, ModuleType, BuiltinFunctionType, type, Enum, Context)
"""What does not change while a scenario runs is its own identity."""


def fingerprint(program: Generator[Any, Any, Any]) -> Hashable:
    """Everything on which the rest of a suspended generator depends. Of one that has ended: that it has."""
    return _fingerprint(program, ())


def canonical(value: Any) -> Hashable:
    """`value` as something hashable that is equal for equal states; raises TypeError for a kind that it does not know."""
    return _canonical(value, ())


def _fingerprint(program: Any, inside: tuple[int, ...]) -> Hashable:
    frame = program.gi_frame
    if frame is None:
        return ("ended", program.gi_code)
    # Locals that are not bound yet leave no gap in what the collector sees, so their names are part of the state.
    local = frame.f_locals
    held = [
        each
        for each in gc.get_referents(program)
        if each is not local and not isinstance(each, FrameType | CodeType) and not _is_own_function(each, program)
    ]
    return (program.gi_code, frame.f_lasti, tuple(local), tuple(_canonical(each, inside) for each in held))


def _is_own_function(value: Any, program: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__ is program.gi_code


def _canonical(value: Any, inside: tuple[int, ...]) -> Hashable:
    kind = type(value)
    if kind in _ATOMS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, _CONSTANT):
        return value if isinstance(value, Enum | type | CodeType) else (kind, id(value))
    if id(value) in inside:
        return ("again", inside.index(id(value)))
    deeper = (*inside, id(value))
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(value)
    if isinstance(value, msgspec.Struct):
        return _struct(value)
    if isinstance(value, _SEQUENCES):
        return (kind, *(_canonical(each, deeper) for each in value))
    if isinstance(value, Mapping | MappingProxyType):
        return ("mapping", *((_canonical(key, deeper), _canonical(each, deeper)) for key, each in value.items()))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(_canonical(each, deeper) for each in value))
    if is_dataclass(value):
        return (kind, *(_canonical(getattr(value, field.name), deeper) for field in fields(value)))
    if isinstance(value, GeneratorType):
        return _fingerprint(value, deeper)
    if isinstance(value, FunctionType):
        cells = [_canonical(cell, deeper) for cell in value.__closure__ or ()]
        defaults = [_canonical(each, deeper) for each in (value.__defaults__, value.__kwdefaults__)]
        return ("function", value.__code__, *cells, *defaults)
    if isinstance(value, MethodType):
        return ("method", value.__func__.__code__, _canonical(value.__self__, deeper))
    if isinstance(value, CellType):
        try:
            return ("cell", _canonical(value.cell_contents, deeper))
        except ValueError:
            return ("cell",)
    if isinstance(value, range):
        return ("range", value.start, value.stop, value.step)
    if isinstance(value, _ITERATORS):
        return (kind, *(_canonical(each, deeper) for each in value.__reduce__()[1:]))
    if isinstance(value, BaseException):
        return (kind, str(value))
    raise TypeError(f"a protocol program holds a {kind!r}, and the explorer cannot tell when two are the same: {value!r}")


def _struct(value: msgspec.Struct) -> Hashable:
    try:
        hash(value)
    except TypeError:  # it holds a dictionary
        return (type(value), msgspec.json.encode(value))
    return value


def _stored(value: StoredRecord) -> Hashable:
    return ("stored", value.digest, value.record.base_offset)


def _state(value: PartitionState) -> Hashable:
    # The digest of the last record stands for the whole chain, of which all else is the fold; that shipped code folds
    # it right is the oracle's to check, so what a wrong snapshot could lack is named too.
    return (
        "state", value.topic_partition, value.log_start_offset, value.next_offset, value.segment_base, value.segment_batches,
        value.segment_bytes, value.segment_record_bytes, value.segment_started_at, value.last_timestamp, value.last_digest,
        value.deleted_version, tuple(value.producers.values()), tuple(map(_struct, value.transactions.values())),
        frozenset((pid, frozenset(rows)) for pid, rows in value.pending.items()), frozenset(value.committed), frozenset(value.groups),
    )  # fmt: skip


_SPECIAL: dict[type, Callable[[Any], Hashable]] = {StoredRecord: _stored, PartitionState: _state}
