"""How do streaming queries reach the metrics of Spark's driver? A listener counts what Spark reports of each
micro-batch.

    spark.streams.addListener(pyspark_txlog.ProgressMetrics())
    with txlog.metrics.serve(port=9464):
        query.awaitTermination()

A Python data source cannot report metrics. Spark's `CustomMetric` and `ReportsSourceMetrics` exist only in Java. Its
stream reader can report `latestOffset`. There txlog's source has its lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_txlog.stream_offsets import SOURCE_KEY, is_stream_offset, json_object
from txlog import metrics

_GAUGES = ("last_batch", "last_batch_timestamp_seconds", "lag_offsets", "lag_seconds", "lost_offsets")


class ProgressMetrics(StreamingQueryListener):
    """Counts into the registry of this process, with the query's name, or its id if it has none, as label.

    It switches the metrics of the process on (`txlog.metrics.enable`). The gauges of a query end with the query.
    """

    def __init__(self) -> None:
        self._registry = metrics.enable()
        self._names: dict[str, str] = {}
        """By run id. A progress has the name, and the event of an end has not."""
        self._gauges: dict[str, dict[str, float]] = {}
        """By query, then by the end of the metric's name."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        """Remember the name of the query."""
        query = self._names[str(event.runId)] = event.name or str(event.id)
        for outcome in ("stopped", "failed"):
            # So that Prometheus sees the first end as an increase.
            self._registry.add("txlog_query_ended_total", 0, query, outcome)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        """Count a micro-batch that has ended."""
        progress = event.progress
        query = self._names.setdefault(str(progress.runId), progress.name or str(progress.id))
        self._registry.add("txlog_query_batches_total", 1, query)
        self._registry.add("txlog_query_input_rows_total", sum(each.numInputRows for each in progress.sources), query)
        self._registry.observe("txlog_query_batch_duration_seconds", progress.batchDuration / 1000, query)
        reports = [report for each in progress.sources if (report := _report(each.latestOffset)) is not None]
        gauges: dict[str, float] = {
            "last_batch": progress.batchId,
            "last_batch_timestamp_seconds": datetime.fromisoformat(progress.timestamp).timestamp(),
        }
        if reports:
            gauges |= {
                "lag_offsets": sum(report["lag"]["rows"] for report in reports),
                "lag_seconds": max(report["lag"]["seconds"] for report in reports),
                "lost_offsets": sum(report["lost"] for report in reports),
            }
        self._gauges[query] = gauges
        self._publish()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        """Count the end, and forget the gauges of the query."""
        query = self._names.pop(str(event.runId), str(event.id))
        self._registry.add("txlog_query_ended_total", 1, query, "stopped" if event.exception is None else "failed")
        if query not in self._names.values():
            self._gauges.pop(query, None)
            self._publish()

    def _publish(self) -> None:
        self._registry.replace(
            {
                f"txlog_query_{name}": {
                    (query,): gauges[name] for query, gauges in self._gauges.items() if name in gauges
                }
                for name in _GAUGES
            }
        )


def _report(latest_offset: str | None) -> Mapping[str, Any] | None:
    """Return what txlog's source reports with its latest offset; None for another source, or before the first look."""
    offset = json_object(latest_offset)
    if offset is None or not is_stream_offset(offset):
        return None
    report: Mapping[str, Any] = offset[SOURCE_KEY]
    return report if "lag" in report else None
