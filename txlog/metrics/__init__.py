"""How does a program count what it does, and give the numbers to Prometheus or OpenTelemetry?

A process counts nothing until it calls `enable`, or a function that calls `enable`. Call one of them before you open
the store, because an open store is not metered. `txlog.metrics.table` describes all metrics.

For Prometheus, run `pip install 'pyspark-txlog[metrics]'`. `serve` starts an HTTP server:

    import txlog.metrics

    with txlog.metrics.serve(port=9464):  # http://127.0.0.1:9464/metrics
        ...

A program that has such a server calls `prometheus_client.REGISTRY.register(txlog.metrics.collector())` instead.

For OpenTelemetry, run `pip install 'pyspark-txlog[otel]'`, and set up the SDK and the exporter of your choice. Then
this call hands all metrics to the global meter provider:

    txlog.metrics.opentelemetry()

Python workers of Spark do not call your functions. Set TXLOG_METRICS=opentelemetry in their environment instead
(`spark.executorEnv.TXLOG_METRICS`). Set up the SDK there by its own environment variables. Spark's JVM reads and writes
the files of native scans and native writes. Those requests, and rows that such a scan reads, are in Spark's own
metrics.

`txlog exporter` serves the metrics of a whole store. `txlog maintain --daemon --metrics-port` serves those of
maintenance.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from txlog._version import __version__
from txlog.errors import InvalidConfigurationError, ProducerFencedError
from txlog.metrics.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from txlog.metrics.prometheus import Collector, Server

__all__ = ["Registry", "active", "collector", "count", "disable", "enable", "enabled", "opentelemetry", "serve", "text"]

VARIABLE = "TXLOG_METRICS"


class Sized(Protocol):
    """Arrow data."""

    @property
    def nbytes(self) -> int: ...


_LOCK = threading.Lock()
_EXPORT_LOCK = threading.Lock()
_active: Registry | None = None


def _renew_locks() -> None:
    global _LOCK, _EXPORT_LOCK
    _LOCK, _EXPORT_LOCK = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_locks)


def enable() -> Registry:
    """Count from now on in this process, and return the registry. Further calls return the same one."""
    global _active  # noqa: PLW0603  one registry for a process
    with _LOCK:
        if _active is None:
            _active = Registry()
            _active.replace({"txlog_build_info": {(__version__,): 1}})
            # Prometheus counts from the second value of a series on, so the first fenced producer must not be the
            # first.
            _active.add("txlog_fenced_producers_total", 0)
        return _active


def disable() -> None:
    """Count nothing any more, and forget all numbers. Stores that are open keep counting into the old registry."""
    global _active  # noqa: PLW0603
    with _LOCK:
        _active = None


@contextlib.contextmanager
def enabled() -> Iterator[Registry]:
    """Count into a new registry inside the block. After it everything is as it was before."""
    global _active  # noqa: PLW0603
    with _LOCK:
        before, _active = _active, None
    try:
        yield enable()
    finally:
        with _LOCK:
            _active = before


def active() -> Registry | None:
    """Return the registry of this process; None if nobody asked for metrics."""
    return _active


def count(name: str, amount: float, *labels: str) -> None:
    """Add to a counter if anybody asked for metrics."""
    registry = _active
    if registry is not None:
        registry.add(name, amount, *labels)


def count_rows(verb: str, topic: str, rows: int, size: int | Sized) -> None:
    """Count rows as `produced` or `consumed`.

    `size` is their bytes, or Arrow data, whose size is computed only if needed.
    """
    registry = _active
    if registry is not None and rows:
        registry.add(f"txlog_{verb}_rows_total", rows, topic)
        registry.add(f"txlog_{verb}_bytes_total", size if isinstance(size, int) else size.nbytes, topic)


def count_fenced(error: BaseException) -> None:
    """Count a producer that ends because of `error`, if it was fenced."""
    if isinstance(error, ProducerFencedError):
        count("txlog_fenced_producers_total", 1)


class FencedOnce:
    """Counts a producer that is fenced inside one of the `with` blocks of this object, only once."""

    def __init__(self) -> None:
        self._counted = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ProducerFencedError) and not self._counted:
            self._counted = True
            count_fenced(error)


class TransactionEnd:
    """Measures one call that commits or aborts a transaction."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._began = time.perf_counter() if _active is not None else 0.0

    def done(self, outcome: str) -> None:
        """Count the transaction and the time of the call."""
        registry = _active
        if registry is not None and self._began:
            registry.add("txlog_transactions_total", 1, outcome)
            registry.observe("txlog_transaction_end_duration_seconds", time.perf_counter() - self._began, self._verb)


def serve(port: int = 9464, host: str = "127.0.0.1") -> contextlib.AbstractContextManager[Server]:
    """Serve this process's metrics as Prometheus text inside the `with` block. `port` 0 takes any free port.

    Raises InvalidRequestError if the port is taken, or if prometheus-client is not installed.
    """
    from txlog.metrics.prometheus import Server

    return Server(enable(), port, host)


def collector() -> Collector:
    """Return a collector for a registry of prometheus-client. Raises InvalidRequestError if that is not installed."""
    from txlog.metrics.prometheus import Collector

    return Collector(enable())


def text() -> str:
    """Return this process's metrics as Prometheus text. Raises InvalidRequestError without prometheus-client."""
    from txlog.metrics.prometheus import text_of

    return text_of(enable())


def opentelemetry(meter_provider: MeterProvider | None = None) -> None:
    """Give this process's metrics to OpenTelemetry: to `meter_provider`, or to the global one.

    Call it once for a provider. Raises InvalidRequestError if opentelemetry-api is not installed.
    """
    from txlog.metrics.otel import export

    export(enable(), meter_provider)


def from_environment() -> Registry | None:
    """Return the registry of this process, which TXLOG_METRICS may ask for. Raises InvalidConfigurationError."""
    if _active is not None or not (wanted := os.environ.get(VARIABLE)):
        return _active
    if wanted != "opentelemetry":
        raise InvalidConfigurationError(
            f"{VARIABLE}={wanted!r} is not known: expected 'opentelemetry'. "
            "hint: for Prometheus call txlog.metrics.serve()"
        )
    with _EXPORT_LOCK:
        # Two threads may open stores at once, and a second export would count each value of a histogram twice.
        if _active is None:
            opentelemetry()
    return _active
