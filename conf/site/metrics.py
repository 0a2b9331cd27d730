"""Write the page of metrics, reference/metrics.md, from the table in txlog/metrics/table.py."""

from __future__ import annotations

from collections.abc import Mapping

from conf.site.markdown import escape
from txlog.inspection import look
from txlog.metrics.table import METRICS, SECONDS, Metric, Source

SOURCES: Mapping[Source, str] = {
    "process": (
        "Every process that opens a store after `txlog.metrics.enable()`: producers, consumers, jobs, Spark's tasks."
    ),
    "maintain": "`txlog maintain`, about its own rounds.",
    "store": "`txlog exporter`, about the whole store.",
    "exporter": "`txlog exporter`, about its own looks at the store.",
    "spark": "Spark's driver, about the streaming queries of a session with `pyspark_txlog.ProgressMetrics`.",
}
"""The sources, in their order on the page, and what each of them is."""

_TITLES = {
    "process": "Metrics of a process",
    "maintain": "Metrics of maintenance",
    "store": "Metrics of a store",
    "exporter": "Metrics of the exporter",
    "spark": "Metrics of Spark's streaming queries",
}

_START = """# Metrics

Prometheus gets these names. OpenTelemetry gets the same ones in its own form: `txlog_produced_rows_total` is
`txlog.produced_rows`. A metric without a number is absent.

Labels are bounded: a topic and a group are labels, a transactional.id is not. A counter or histogram of a process with more
than 10,000 sets of labels counts the further ones with the label `(other)`.
"""


def page() -> str:
    """Return the page, as Markdown."""
    parts = [_START]
    for source, text in SOURCES.items():
        parts.append(f"## {_TITLES[source]}\n\n{escape(text)}\n")
        parts += [_section(metric) for metric in METRICS.values() if metric.source == source]
    buckets = ", ".join(f"{bound:g}" for bound in SECONDS)
    parts.append(f"## Buckets\n\nHistograms have buckets up to these numbers of seconds: {buckets}.\n")
    parts.append(f"## What a look of the exporter costs\n\n{_costs()}\n")
    return "\n".join(parts)


def _section(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return f"### `{metric.name}`\n\n{escape(metric.help)}\n\n- **Kind:** {metric.kind}.\n- **Labels:** {labels}.\n"


def _costs() -> str:
    """Return what the module that reads the store says of its requests."""
    assert look.__doc__ is not None
    return look.__doc__.partition("\n\n")[2].strip()
