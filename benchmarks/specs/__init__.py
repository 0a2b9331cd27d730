"""The rows of the table, one module each. `all_specs` returns them in the order in which they run."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.harness import Spec


def all_specs() -> tuple[Spec, ...]:
    """Return the specs of all modules, P1 first. Importing them needs none of the rivals' packages."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [spec for name in names for spec in importlib.import_module(f"{__name__}.{name}").SPECS]
    return tuple(sorted(found, key=_place))


def _place(spec: Spec) -> tuple[bool, int, str]:
    number = spec.row.removeprefix("P")
    return (False, int(number), "") if number.isdigit() else (True, 0, spec.row)
