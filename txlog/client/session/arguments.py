"""Does a call get the arguments that its signature names? A wrong one is refused in one sentence, and nothing is done.

`KINDS` has the annotations that are checked here, as the source spells them. Everything else is checked where it is
used: rows, schemas, partitions, offsets, versions, times, conditions and settings.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from txlog.config.kafka_calls import in_place_of
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.text import any_text

P = ParamSpec("P")
T = TypeVar("T")
Milliseconds: TypeAlias = int
"""A time to wait, from 0."""
Kind: TypeAlias = tuple[Callable[[Any], bool], str]


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool) or (not isinstance(value, str) and str(value) in ("True", "False", "0", "1"))


def _are_names(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _is_iterable(value: object) -> bool:
    # Its items are not read here, because an iterator gives them only once.
    return isinstance(value, Iterable) and not isinstance(value, bytes)


def _is_layer(value: object) -> bool:
    return isinstance(value, Mapping) and _are_names(value.keys())


def _are_resets(value: object) -> bool:
    return isinstance(value, Collection) and all(hasattr(each, "after") for each in value)


def _takes(count: int) -> Callable[[object], bool]:
    def accepts(value: Any) -> bool:
        is_method = type(value) is MethodType
        function = value.__func__ if is_method else value
        if type(function) is not FunctionType:  # other objects that can be called are not looked into
            return callable(value) and not inspect.iscoroutinefunction(getattr(value, "func", None))
        code, given = function.__code__, count + is_method
        is_enough = given >= code.co_argcount - len(function.__defaults__ or ())
        is_enough &= code.co_kwonlyargcount <= len(function.__kwdefaults__ or ())
        fits = given <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS)
        return is_enough and fits and not code.co_flags & inspect.CO_COROUTINE

    return accepts


_NAMES = "a list of names"
_PARTITIONS: Kind = (_is_iterable, "a list of TopicPartition(topic, number)")
_BY_NAME: Kind = (_is_layer, "a dictionary with names as keys")
_BY_PARTITION: Kind = (lambda value: isinstance(value, Mapping), "a dictionary with TopicPartitions as keys")

KINDS: Mapping[str, Kind] = {
    "None": (lambda value: value is None, ""),
    "str": (lambda value: isinstance(value, str), "text"),
    "int": (_is_whole, "a whole number"),
    "Milliseconds": (lambda value: _is_whole(value) and value >= 0, "a whole number of milliseconds, at least 0"),
    "bool": (_is_flag, "True or False"),
    "os.PathLike[str]": (lambda value: hasattr(value, "__fspath__"), "a path"),
    "Sequence[str]": (_are_names, _NAMES),
    "Iterable[str]": (_is_iterable, _NAMES),
    "Topics": (lambda value: _is_iterable(value) or isinstance(value, re.Pattern), f"{_NAMES}, or a re.compile()"),
    "Iterable[int]": (lambda value: _is_iterable(value) and not isinstance(value, str), "a list of whole numbers"),
    **dict.fromkeys(("Iterable[TopicPartition]", "Iterable[tuple[str, int]]"), _PARTITIONS),
    **dict.fromkeys(("Layer", "Mapping[str, object]", "Mapping[str, pa.Schema]"), _BY_NAME),
    "Mapping[str, str | pa.DataType]": _BY_NAME,
    "Mapping[str, str]": (lambda value: _is_layer(value) and _are_names(value.values()), "a dictionary of names"),
    **dict.fromkeys(("Offsets", "Mapping[TopicPartition, int | None]"), _BY_PARTITION),
    "Mapping[TopicPartition, int | datetime.datetime]": _BY_PARTITION,
    "Sequence[OffsetReset]": (_are_resets, "what plan_reset(group, spec='earliest') returns"),
    "Listener": (_takes(1), "a plain function of one argument, the partitions"),
    "OnDelivery": (_takes(2), "a plain function of two arguments, error and metadata"),
    "Callable[[TransactionMetadata | None], None]": (callable, "a function"),
    "list[CorruptLogError]": (lambda value: isinstance(value, list), "a list, to which errors are appended"),
    "SparkSession": (lambda value: hasattr(value, "createDataFrame"), "a SparkSession"),
    "DataFrame": (lambda value: hasattr(value, "sparkSession"), "a DataFrame of Spark"),
}

MANY = 16
"""A class with at most so many calls lists them if another one is called."""
PARTS = re.compile(r" \| (?![^\[]*\])")
"""Stands between the parts of an annotation, and not inside of one."""
_CHECK_THEMSELVES = ("poll", "send", "begin_transaction", "commit_transaction")
"""Calls that are not wrapped. An interrupt after their last step, in a wrapper, would look as if they had not ended."""


def checked_calls(kind: type[T]) -> type[T]:
    """Make each public call of a class check its arguments first, and name what a call of Kafka's clients is here."""
    for name, call in list(vars(kind).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(call) and is_public and name not in _CHECK_THEMSELVES:
            setattr(kind, name, checked(call))

    return named_calls(kind)


def named_calls(kind: type[T]) -> type[T]:
    """Let a class name what it has in place of a call of Kafka's clients."""
    names = [name for name in dir(kind) if not name.startswith("_")]

    def lacking(self: T, name: str) -> Any:
        if hasattr(type(self), name):  # a property that has raised
            return object.__getattribute__(self, name)
        hint = ""
        if not name.startswith("_"):
            hint = in_place_of(*(f"{each}.{name}" for each in (kind.__name__, "Producer", "Admin")))
            hint = hint or (f"; it has {', '.join(names)}" if len(names) <= MANY else "")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    kind.__getattr__ = lacking  # type: ignore[attr-defined]
    return kind


def checked(call: Callable[P, T]) -> Callable[P, T]:
    """Return a call that checks its arguments first."""
    signature = inspect.signature(call)
    known = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if all(part in KINDS for part in PARTS.split(str(parameter.annotation)))
    }

    if len(signature.parameters) == 1:

        @functools.wraps(call)
        def plain(self: object, /, *others: object, **unknown: object) -> T:
            if others or unknown:
                raise misfit(call, others, unknown)
            return alone(self)  # with no `*`: so nothing interrupts between its last step and the caller

        alone = cast(Callable[[object], T], call)
        return cast(Callable[P, T], plain)

    @functools.wraps(call)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        given = _bound(call, signature, args, kwargs) if known else {}
        for name in filter(known.__contains__, given):
            is_many = known[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in given[name] if is_many else (given[name],):
                check(_label(call), name, value, known[name].annotation)
        try:
            return call(*args, **kwargs)
        except TypeError:
            _bound(call, signature, args, kwargs)
            raise

    return checking


def _bound(
    call: Callable[..., object], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise _misfit(call, str(error)) from None


def misfit(
    call: Callable[..., object], others: Iterable[object], unknown: Iterable[str], needed: str = ""
) -> InvalidRequestError:
    """Return the error of a call that gets too many or unknown arguments, or otherwise lacks the one that is needed."""
    given = [*map(any_text, others), *(f"{name}=" for name in unknown)]
    return _misfit(call, f"{', '.join(given)} cannot be given" if given else f"missing a required argument: {needed!r}")


def _misfit(call: Callable[..., object], what: str) -> InvalidRequestError:
    given = inspect.signature(call).parameters.values()
    names = ", ".join(each.name for each in given if each.name != "self" and each.annotation != "Never")
    name = call.__qualname__.removesuffix(".__init__")
    hint = in_place_of(name if "." in name else f"txlog.{name}")
    return InvalidRequestError(f"{_label(call)}(): {what}; it takes {names or 'nothing'}{hint}")


def _label(call: Callable[..., object]) -> str:
    """Return the name that a program calls: that of a class for its `__init__`."""
    return call.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def check(call: str, name: str, value: object, annotation: str) -> None:
    """Raise InvalidRequestError unless `value` is of one of the kinds in `annotation`.

    For a list of columns it is SchemaMismatchError.
    """
    kinds = _kinds(annotation)
    if any(accepts(value) for accepts, _ in kinds):
        return
    found = type(value) if name == "storage_options" else value  # these options hold credentials
    expected = " or ".join(dict.fromkeys(words for _, words in kinds if words))
    text = f"{call}(): {name} = {any_text(found)}: expected {expected}{_hint(call, name, value, expected)}"
    is_of_columns = "column" in name and annotation.startswith("Sequence[str]")
    raise SchemaMismatchError(text) if is_of_columns else InvalidRequestError(text)


@functools.cache
def _kinds(annotation: str) -> tuple[Kind, ...]:
    return tuple(KINDS[part] for part in PARTS.split(annotation))


_HINTS = {
    ("TxLog", "spark"): "hint: TxLog(spark, root)",
    ("TxLog", "root"): "hint: TxLog(spark, root)",
    ("create_topic", "name"): "hint: create_topic(name, columns)",
    ("send", "key"): "hint: name columns; the key itself is a value of the row",
    ("send", "topic"): "hint: send(topic, rows)",
    ("commit", "offsets"): "hint: {tp: row['_offset'] + 1}, or {tp: consumer.position(tp)}",
    ("send_offsets_to_transaction", "offsets"): "hint: {tp: row['_offset'] + 1}, or {tp: consumer.position(tp)}",
}
"""By call and argument."""


def _hint(call: str, name: str, value: Any, expected: str) -> str:
    if (call, name) in _HINTS:
        return f". {_HINTS[call, name]}"
    if name.endswith("_ms") and isinstance(value, float) and 0 <= value <= 60:
        return f". hint: {value} seconds are {name}={round(value * 1000)}"
    if isinstance(value, Mapping) and call == "open":
        return ". hint: name a folder or a URL; there are no servers"
    if isinstance(value, Mapping) and call in ("producer", "consumer"):
        return f". hint: {call}(config={{...}})"
    if isinstance(value, str) and expected == _NAMES:
        return f". hint: {name}=[{value!r}]"
    if name == "topics" and _are_names(value) and len(value):
        return f". hint: name them one by one, as in {call}({', '.join(map(repr, value))})"
    return ""
