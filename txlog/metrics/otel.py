"""How does OpenTelemetry get the numbers of a registry? Through its API. The SDK and the exporter are the user's.

Counters and gauges are read when the SDK asks. Values of histograms are handed on one by one, because the API cannot
ask for a histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txlog._version import __version__
from txlog.errors import InvalidRequestError
from txlog.metrics.registry import Labels, Registry
from txlog.metrics.table import METRICS, SECONDS, Metric
from txlog.text import install_text

try:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter
except ModuleNotFoundError:
    raise InvalidRequestError(
        f"OpenTelemetry needs opentelemetry-api, which is not installed. hint: {install_text('otel')}"
    ) from None


def export(registry: Registry, meter_provider: MeterProvider | None = None) -> None:
    """Make an instrument for each metric."""
    meter = get_meter("txlog", __version__, meter_provider)
    histograms: dict[str, Histogram] = {}
    for metric in METRICS.values():
        name, unit, words = metric.instrument, metric.instrument_unit, metric.help
        match metric.kind:
            case "counter":
                meter.create_observable_counter(name, [_reader(registry, metric)], unit, words)
            case "gauge":
                meter.create_observable_gauge(name, [_reader(registry, metric)], unit, words)
            case "histogram":
                histograms[metric.name] = meter.create_histogram(
                    name, unit, words, explicit_bucket_boundaries_advisory=SECONDS
                )

    def record(name: str, value: float, labels: Labels) -> None:
        histograms[name].record(value, _attributes(METRICS[name], labels))

    registry.on_observe(record)


def _reader(registry: Registry, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        found = registry.values(metric.name)
        return [Observation(value, _attributes(metric, labels)) for labels, value in found.items()]

    return read


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
