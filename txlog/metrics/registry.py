"""Where do the numbers of a process wait until somebody reads them?

A registry holds one number for each metric and each set of labels. Prometheus and OpenTelemetry read it
(`txlog.metrics.prometheus`, `txlog.metrics.otel`). It knows neither of them, and starts no thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from txlog.metrics.table import METRICS, SECONDS

Labels: TypeAlias = tuple[str, ...]
Observer: TypeAlias = Callable[[str, float, Labels], None]
"""Called with each value of a histogram: name, value, labels."""

MAX_SERIES = 10_000
"""Sets of labels that one counter or histogram may have. Further ones are counted together."""
OTHER = "(other)"
"""The value of every label of those further ones. No topic can have this name."""


@dataclass(slots=True)
class Histogram:
    """The values of one series."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """Values in each bucket, not cumulative. The last bucket has no upper bound."""
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(SECONDS, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        return Histogram(list(self.counts), self.sum)


class Registry:
    """The numbers of one process. Thread-safe. A forked child begins at zero, because its parent exports the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._observers: tuple[Observer, ...] = ()
        _REGISTRIES.add(self)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add to a counter. `labels` are the values, in the order of the table."""
        with self._lock:
            series = self._values.setdefault(name, {})
            key = _bounded(series, labels)
            series[key] = series.get(key, 0) + amount

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            series = self._histograms.setdefault(name, {})
            key = _bounded(series, labels)
            found = series.get(key)
            if found is None:
                found = series[key] = Histogram()
            found.add(value)
            observers = self._observers
        for observer in observers:
            observer(name, value, key)

    def replace(self, gauges: Mapping[str, Mapping[Labels, float]]) -> None:
        """Set all series of these gauges, or of counters that another object sums up. Series that are not given end."""
        with self._lock:
            for name, series in gauges.items():
                self._values[name] = dict(series)

    def values(self, name: str) -> dict[Labels, float]:
        """Return all series of a counter or gauge."""
        with self._lock:
            return dict(self._values.get(name, {}))

    def histograms(self, name: str) -> dict[Labels, Histogram]:
        """Return all series of a histogram."""
        with self._lock:
            return {labels: found.copy() for labels, found in self._histograms.get(name, {}).items()}

    def on_observe(self, observer: Observer) -> None:
        """Call `observer` with each value of a histogram from now on."""
        with self._lock:
            self._observers = (*self._observers, observer)

    def clear(self) -> None:
        """Set everything to zero."""
        self._lock = threading.Lock()
        self._values, self._histograms = {}, {}


def _bounded(series: Mapping[Labels, object], labels: Labels) -> Labels:
    if labels in series or len(series) < MAX_SERIES:
        return labels
    return (OTHER,) * len(labels)


def _clear_all() -> None:
    for registry in list(_REGISTRIES):
        registry.clear()


_REGISTRIES: weakref.WeakSet[Registry] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not on Windows
    # A thread of the parent may have held a lock at the fork, so the child needs new ones, too.
    os.register_at_fork(after_in_child=_clear_all)

assert all(metric.kind != "histogram" or metric.unit == "seconds" for metric in METRICS.values())
