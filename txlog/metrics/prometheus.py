"""How does Prometheus get the numbers of a registry? Through prometheus-client, which only this module imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from txlog.errors import InvalidRequestError
from txlog.metrics.registry import Registry
from txlog.metrics.table import METRICS, SECONDS, Metric
from txlog.text import install_text

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server, write_to_textfile
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as BaseCollector
except ModuleNotFoundError:
    raise InvalidRequestError(
        f"Prometheus's text needs prometheus-client, which is not installed. hint: {install_text('metrics')}"
    ) from None

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_BOUNDS = (*map(str, SECONDS), "+Inf")


class Collector(BaseCollector):
    """All metrics of a registry that have a number."""

    def __init__(self, registry: Registry, before: Callable[[], None] | None = None) -> None:
        """Set up a collector. `before` is called first in each scrape."""
        self._registry = registry
        self._before = before

    def describe(self) -> list[Family]:
        """Return the metrics without numbers, so that registering the collector scrapes nothing."""
        return [_empty(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[Family]:
        """Yield all metrics that have a number."""
        if self._before is not None:
            self._before()
        for metric in METRICS.values():
            family = _empty(metric)
            if isinstance(family, HistogramMetricFamily):
                for labels, found in sorted(self._registry.histograms(metric.name).items()):
                    family.add_metric(labels, list(zip(_BOUNDS, accumulate(found.counts), strict=True)), found.sum)
            else:
                for labels, value in sorted(self._registry.values(metric.name).items()):
                    family.add_metric(labels, value)
            if family.samples:
                yield family


class Server:
    """Serve `/metrics` inside the `with` block, to every client that can reach `host` and `port`."""

    def __init__(self, registry: Registry, port: int, host: str, before: Callable[[], None] | None = None) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, _registry_of(registry, before))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            text = f"metrics cannot be served at {host}:{port}: {why}. hint: choose another port, as in --port 9100"
            raise InvalidRequestError(text) from None
        self.host = host

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host or 'localhost'}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def text_of(registry: Registry) -> str:
    """Return all metrics as Prometheus text."""
    return generate_latest(_registry_of(registry)).decode()


def write_file(registry: Registry, path: str | os.PathLike[str]) -> None:
    """Replace a file for node_exporter's textfile collector, atomically. Raises InvalidRequestError if that fails."""
    try:
        write_to_textfile(os.fspath(path), _registry_of(registry))
    except OSError as error:
        raise InvalidRequestError(
            f"--metrics-file {os.fspath(path)!r} cannot be written: {error.strerror or error}"
        ) from None


def _registry_of(registry: Registry, before: Callable[[], None] | None = None) -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    made.register(Collector(registry, before))
    return made


def _empty(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(metric.name, metric.help, labels=metric.labels)
