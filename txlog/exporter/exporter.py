"""When does an exporter look at the store, and what does it say while the store does not answer?

A scrape looks at the store, unless the last look began less than `min_interval_ms` ago: then it gets the same numbers
again. So scrapes of several servers cost no more than those of one. Without a scrape there is no request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from txlog.client.session.runtime import Runtime
from txlog.clock import Clock, SystemClock
from txlog.core.names import is_reserved
from txlog.errors import RetriableError, TxlogError
from txlog.exporter.gauges import Gauges, gauges
from txlog.inspection.look import StoreMonitor
from txlog.logs import log
from txlog.metrics.registry import Registry
from txlog.metrics.table import METRICS

DEFAULT_MIN_INTERVAL_MS = 15_000
DEFAULT_MAX_READS = 500
MAX_RUNS = 32
"""Runs of maintenance that one look reads, the newest first."""
LONGEST_WAIT_MS = 8_000
"""Prometheus gives up a scrape after 10 s."""
_LOG = logging.getLogger(__name__)
_NO_NUMBERS: Gauges = {name: {} for name, metric in METRICS.items() if metric.source == "store"}


class Exporter:
    """Keeps the metrics of one store in a registry. Thread-safe. All scrapes share one look."""

    def __init__(
        self,
        open_store: Callable[[], Runtime],
        registry: Registry,
        *,
        min_interval_ms: int = DEFAULT_MIN_INTERVAL_MS,
        max_reads: int = DEFAULT_MAX_READS,
        longest_wait_ms: int = LONGEST_WAIT_MS,
        clock: Clock | None = None,
    ) -> None:
        """Set up an exporter. `open_store` is called again after each look that failed."""
        self._open_store = open_store
        self._registry = registry
        self._min_interval_ms = min_interval_ms
        self._max_reads = max_reads
        self.clock: Clock = clock or SystemClock()
        self._longest_wait_ms = longest_wait_ms
        self._lock = threading.Lock()
        self._closed = False
        self._running: Future[None] | None = None
        self._looked_at_ms: int | None = None
        self._runtime: Runtime | None = None
        self._monitor: StoreMonitor | None = None
        self._error = ""
        for outcome in ("ok", "failed"):
            registry.add("txlog_exporter_looks_total", 0, outcome)
        for scope in ("store", "topic", "internal"):
            registry.add("txlog_exporter_errors_total", 0, scope)

    def refresh(self) -> None:
        """Look at the store if the last look is too long ago. Raises nothing: `txlog_up` is 0 after a failure.

        A look that takes too long for a scrape goes on without it, and the scrape gets the numbers of the look before.
        """
        with self._lock:
            if self._closed:
                return
            if self._running is None or self._running.done():
                now_ms = self.clock.monotonic_ms()
                if self._looked_at_ms is not None and now_ms - self._looked_at_ms < self._min_interval_ms:
                    return
                self._looked_at_ms = now_ms
                self._running = Future()
                # A daemon, because the end of the program does not wait for a store that does not answer.
                threading.Thread(target=self._run, args=(self._running,), name="txlog-exporter", daemon=True).start()
            running = self._running
        wait([running], timeout=self._longest_wait_ms / 1000)

    def open(self) -> None:
        """Open the store if it is not open. Raises what opening it raises."""
        if self._monitor is None:
            self._runtime = self._open_store()
            self._monitor = StoreMonitor(self._runtime, "exporter", max_reads=self._max_reads, max_runs=MAX_RUNS)

    def close(self) -> None:
        """Begin no look any more, and close the store."""
        with self._lock:
            self._closed = True
        self._forget()

    def _forget(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = self._monitor = None

    def _run(self, done: Future[None]) -> None:
        try:
            self._look()
        finally:
            done.set_result(None)

    def _look(self) -> None:
        began, requests = time.perf_counter(), self._requests()
        try:
            found = self._found()
        except Exception as error:
            # Any error: a program that watches a store must outlive each of its faults.
            self._failed(error)
            found = {"txlog_up": {(): 0}}
            outcome = "failed"
        else:
            self._error, outcome = "", "ok"
            found["txlog_exporter_look_timestamp_seconds"] = {(): self.clock.now_ms() / 1000}
        self._registry.add("txlog_exporter_looks_total", 1, outcome)
        own: Gauges = {
            "txlog_exporter_look_duration_seconds": {(): time.perf_counter() - began},
            "txlog_exporter_look_requests": {(): self._requests() - requests},
        }
        self._registry.replace({**_NO_NUMBERS, **found, **own})

    def _found(self) -> Gauges:
        self.open()
        assert self._monitor is not None
        seen = self._monitor.look()
        for name, error in seen.damaged:
            log(_LOG, logging.WARNING, "damage_found", "%s", error, topic=name, error=type(error).__name__)
            scope = "topic" if name and not is_reserved(name) else "internal"
            self._registry.add("txlog_exporter_errors_total", 1, scope)
        return gauges(seen)

    def _failed(self, error: Exception) -> None:
        if self._closed:
            return  # the look lost its store
        self._registry.add("txlog_exporter_errors_total", 1, "store")
        if str(error) != self._error:
            self._error = str(error)
            log(
                _LOG,
                logging.WARNING,
                "look_failed",
                "the store cannot be read; the next scrape tries again: %s",
                error,
                error=type(error).__name__,
                exc_info=not isinstance(error, TxlogError),
            )
        if not isinstance(error, RetriableError):
            # The location may hold another store now.
            self._forget()

    def _requests(self) -> float:
        return sum(self._registry.values("txlog_storage_requests_total").values())
