"""Which texts can the errors of the shipped modules have?

The source is read, not run. A value in a text stands as `<name>`. If a value is one of a few texts (a local variable,
an argument of a helper, a conditional expression), there is a template for each of them.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import txlog.errors
import txlog.text
from txlog.errors import TxlogError

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (ROOT / "txlog", ROOT / "spark_ext" / "pyspark_txlog")
CLASSES = tuple(kind for kind in vars(txlog.errors).values() if isinstance(kind, type) and issubclass(kind, TxlogError))
"""Every public error, in the order of txlog/errors.py."""
KEY_ERRORS = ("InvalidConfigurationError", "InvalidTxnTimeoutError")
"""What `self.error` is: the error of a ConfigKey."""

NOTE = "NotNativeError"
"""Its texts are notes of `format("txlog")` in the log of Spark's driver."""
_NAMES = frozenset(kind.__name__ for kind in CLASSES) | {NOTE}
_MOST = 20  # a text with more variants shows the names of its fields instead
_MOST_OF_SEVERAL = 3  # the same if several of its fields have variants, or one of which they are a small part
_SMALL = 6  # how much longer such a text is
NOT_LISTED = (
    "txlog/testing/",
    "txlog/core/published_checks.py",
    "txlog/core/record_checks.py",
    "txlog/core/segments.py",
    "txlog/core/snapshot_state.py",
    "txlog/protocol/staged_lists.py",
    "txlog/storage/inline_rows.py",
)
"""Modules whose texts are not listed: the test kit, and the checks of objects whose checksum is right. An object that
they refuse was written by another program, or by a defect. What to do is what its class says."""
_DEPTH = 4  # helpers that call helpers

Function = ast.FunctionDef | ast.AsyncFunctionDef


def templates() -> dict[str, list[str]]:
    """Return the texts by the names of the errors, each text once, in the order of the source."""
    found: dict[str, dict[str, None]] = {name: {} for name in (*(kind.__name__ for kind in CLASSES), NOTE)}
    source = _Source(PACKAGES)
    for module in source.modules:
        if module.path.startswith(NOT_LISTED):
            continue
        for call, function in module.calls:
            if not call.args:
                continue
            for name, scope in source.classes(call.func, _Scope(module, function)):
                for text in source.texts(call.args[0], scope):
                    if re.search(r"[a-z]{2}", _without_fields(text)) and ": . " not in text:
                        found[name][" ".join(text.split())] = None
    return {name: list(texts) for name, texts in found.items()}


def _without_fields(text: str) -> str:
    return "".join(part.partition(">")[2] if at else part for at, part in enumerate(text.split("<")))


@dataclass(eq=False)
class _Module:
    name: str
    path: str
    tree: ast.Module
    calls: list[tuple[ast.Call, Function | None]] = field(default_factory=list)
    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))

    def value(self, name: str) -> object:
        """Return the value of a global name; None if there is none."""
        return getattr(importlib.import_module(self.name), name, None)


@dataclass(frozen=True)
class _Scope:
    module: _Module
    function: Function | None
    bound: tuple[tuple[str, tuple[str, ...]], ...] = ()  # the texts of the function's parameters in one call
    depth: int = 0


class _Source:
    def __init__(self, packages: Iterable[Path]) -> None:
        self.modules: list[_Module] = []
        self._callers: dict[str, list[tuple[ast.Call, _Scope]]] = defaultdict(list)
        for package in packages:
            for path in sorted(package.rglob("*.py")):
                if path.stem != "__main__":
                    parts = path.relative_to(package.parent).with_suffix("").parts
                    name = ".".join(parts).removesuffix(".__init__")
                    place = f"{package.name}/{path.relative_to(package).as_posix()}"
                    self.modules.append(_Module(name, place, ast.parse(path.read_text(encoding="utf-8"))))
        for module in self.modules:
            for node, function in _walk(module.tree, None):
                if isinstance(node, Function):
                    module.functions[node.name].append(node)
                elif isinstance(node, ast.Call):
                    module.calls.append((node, function))
                    self._callers[_last(node.func)].append((node, _Scope(module, function)))

    def classes(self, called: ast.expr, scope: _Scope) -> list[tuple[str, _Scope]]:
        """Return the names of the errors that the called expression may create, each with the scope of its text."""
        name = _last(called)
        if name in _NAMES:
            return [(name, scope)]
        if ast.unparse(called) == "self.error":
            return [(each, scope) for each in KEY_ERRORS]
        if isinstance(called, ast.Name) and scope.function and name in _parameters(scope.function):
            calls = [(call, at, _argument(call, scope.function, name)) for call, at in self._calls_of(scope)]
            return [
                (_last(error), replace(scope, bound=self._bound(call, scope.function, at)))
                for call, at, error in calls
                if error is not None and _last(error) in _NAMES
            ]
        return []

    def texts(self, node: ast.expr, scope: _Scope) -> list[str]:
        """Return the texts that an expression may have; [`<name>`] if the source does not show any."""
        return self._texts(node, scope) or [f"<{_field(node)}>"]

    def _texts(self, node: ast.expr, scope: _Scope) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return self._join(parts, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._join([left, right], scope)
            case ast.FormattedValue(value=value, conversion=conversion):
                texts = self._texts(value, scope)
                quote = "'" if conversion == ord("r") else ""
                return [f"{quote}{text}{quote}" for text in texts or [f"<{_field(value)}>"]]
            case ast.IfExp(body=body, orelse=orelse):
                both = [self._texts(body, scope), self._texts(orelse, scope)]
                return list(itertools.chain(*both)) if all(both) else []
            case ast.Name(id=name):
                return self._named(name, scope)
            case ast.Call() if scope.depth < _DEPTH:
                return self._called(node, scope)
        return []

    def _join(self, parts: list[ast.expr], scope: _Scope) -> list[str]:
        variants = [self.texts(part, scope) for part in parts]
        # Many messages begin with a place that others give. Its variants would repeat the whole message.
        if parts and isinstance(parts[0], ast.FormattedValue) and _field(parts[0]) in ("where", "place", "path"):
            variants[0] = [f"<{_field(parts[0])}>"]
        # The last variants are in details: the first ones distinguish messages. Each advice is shown.
        advice = next((at for at, texts in enumerate(variants) if any("hint:" in text for text in texts)), len(parts))
        while True:
            product = list(itertools.product(*variants))
            several = [at for at, texts in enumerate(variants) if len(texts) > 1]
            values = [at for at in several if isinstance(parts[at], ast.FormattedValue)] or several
            lengths = sum(len("".join(texts)) for texts in product)
            is_small = len(values) == 1 and values[0] < advice and _SMALL * sum(map(len, variants[values[0]])) < lengths
            if len(product) <= (_MOST_OF_SEVERAL if len(values) > 1 or is_small else _MOST):
                break
            at = max([at for at in values if at < advice] or values, key=lambda each: (len(variants[each]), each))
            variants[at] = [f"<{_field(parts[at])}>"]
        return list(dict.fromkeys("".join(texts) for texts in product))

    def _named(self, name: str, scope: _Scope) -> list[str]:
        bound = dict(scope.bound)
        if name in bound:
            return list(bound[name])
        function = scope.function
        if function is not None:
            values = _assigned(function, name)
            if values:
                # A name may be assigned from itself.
                deeper = replace(scope, depth=scope.depth + 1)
                texts = [self._texts(value, deeper) for value in values] if scope.depth < _DEPTH else [[]]
                return list(itertools.chain(*texts)) if all(texts) else []
            if name in _parameters(function):
                return self._from_callers(name, scope)
        value = scope.module.value(name) if name.isupper() or name.lstrip("_").isupper() else None
        return [str(value)] if isinstance(value, str | int) and str(value) else []

    def _from_callers(self, name: str, scope: _Scope) -> list[str]:
        assert scope.function is not None
        if scope.depth >= _DEPTH:
            return []
        texts: list[str] = []
        for call, at in self._calls_of(scope):
            given = _argument(call, scope.function, name)
            if given is not None:
                deeper = replace(at, depth=scope.depth + 1)
                # A word is a value that one caller gives. Only phrases are parts of the message.
                texts += [
                    text if " " in _without_fields(text).strip() else "" for text in self._texts(given, deeper)
                ] or [""]
        return list(dict.fromkeys(text or f"<{name}>" for text in texts)) if any(texts) else []

    def _calls_of(self, scope: _Scope) -> list[tuple[ast.Call, _Scope]]:
        """Return the calls of the scope's function. A name that several modules define belongs to each of them."""
        assert scope.function is not None
        name = scope.function.name
        private = name.startswith("_") or sum(name in module.functions for module in self.modules) > 1
        return [(call, at) for call, at in self._callers[name] if at.module is scope.module or not private]

    def _called(self, call: ast.Call, scope: _Scope) -> list[str]:
        """Return the texts of a call of a function of the same module, or of a function of txlog/text.py."""
        name = _last(call.func)
        if all(isinstance(each, ast.Constant) for each in call.args) and call.args and not call.keywords:
            known = getattr(txlog.text, name, None)
            if callable(known):
                return [str(known(*(ast.literal_eval(each) for each in call.args)))]
        functions = scope.module.functions.get(name, [])
        if len(functions) != 1 or not (
            isinstance(call.func, ast.Name) or ast.unparse(call.func.value) in ("self", "cls")  # type: ignore[attr-defined]
        ):
            return []
        (function,) = functions
        deeper = _Scope(scope.module, function, self._bound(call, function, scope), scope.depth + 1)
        returned = [
            self._texts(node.value, deeper)
            for node in _own(function)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        return list(dict.fromkeys(itertools.chain(*returned))) if returned and all(returned) else []

    def _bound(self, call: ast.Call, function: Function, scope: _Scope) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the texts of the parameters of a function in one call of it."""
        given = ((name, _argument(call, function, name)) for name in _parameters(function))
        return tuple((name, tuple(self.texts(value, scope))) for name, value in given if value is not None)


def _walk(node: ast.AST, function: Function | None) -> Iterator[tuple[ast.AST, Function | None]]:
    """Yield every node below this one, with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        yield child, function
        yield from _walk(child, child if isinstance(child, Function) else function)


@cache
def _own(function: Function) -> tuple[ast.AST, ...]:
    """Return the nodes of a function without those of the functions in it."""
    return tuple(node for node, owner in _walk(function, function) if owner is function)


@cache
def _assigned(function: Function, name: str) -> tuple[ast.expr, ...]:
    """Return the expressions that are assigned to a local name."""
    found = []
    for node in _own(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    found.append(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    found += [value for each, value in pairs if isinstance(each, ast.Name) and each.id == name]
    return tuple(found)


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _argument(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    at = _parameters(function).index(name)
    return (
        call.args[at] if at < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args) else None
    )


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _field(node: ast.expr) -> str:
    """Return the name of a value in a template, from the expression that computes it."""
    match node:
        case ast.FormattedValue(value=inner) | ast.Await(value=inner) | ast.Subscript(value=inner):
            return _field(inner)
        case ast.Attribute(value=inner, attr="name") if ast.unparse(inner) != "self":
            return _field(inner)
        case ast.Attribute(attr="__name__"):
            return "type"
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(func=ast.Name(id="map" | "filter"), args=[_, second, *_]):
            return _field(second)
        case ast.Call(func=ast.Attribute(value=inner), args=[] | [ast.Constant(), *_]) if not _is_module(inner):
            return _field(inner)
        case ast.Call(args=[first, *_]):
            return _field(first)
        case ast.Call(func=called):
            return _last(called).strip("_")
        case ast.IfExp(body=body, orelse=orelse):
            return _field(orelse if isinstance(body, ast.Constant) else body)
        case ast.BinOp(left=left, right=right):
            return _field(right if isinstance(left, ast.Constant) else left)
        case ast.BoolOp(values=[first, *_]):
            return _field(first)
        case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner) | ast.Starred(value=inner):
            return _field(inner)
    return "…"


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in ("self", "os", "time")
