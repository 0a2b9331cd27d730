"""Write grafana.json, a Grafana dashboard over the metrics of txlog: `python conf/dashboard.py`.

Each panel is a line below. The units and descriptions come from the table of metrics, so they cannot disagree with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from txlog.metrics.table import METRICS

TARGET = Path(__file__).with_name("grafana.json")
WIDTH = 24
"""Columns of Grafana's grid."""

Json: TypeAlias = dict[str, Any]
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"seconds": "s", "bytes": "bytes"}
_NAME = re.compile(r"txlog_\w+")

STORE = 'instance=~"$store"'
TOPIC = f'{STORE}, topic=~"$topic"'
GROUP = f'{TOPIC}, group=~"$group"'
PROCESS = 'instance=~"$process"'
OF_TOPIC = f'{PROCESS}, topic=~"$topic"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: its queries with their legends, and how it shows them."""

    title: str
    queries: Sequence[tuple[str, str]]
    kind: Literal["timeseries", "stat"] = "timeseries"
    unit: str = ""
    """Grafana's unit; empty: that of the first metric."""
    width: int = 8
    height: int = 8
    red_from: float | None = None
    """From this value on a number is red."""
    red_below: float | None = None
    stacked: bool = False


def _stat(title: str, query: str, *, red_from: float | None = None, red_below: float | None = None) -> Panel:
    return Panel(
        title=title, queries=[(query, "")], kind="stat", width=4, height=4, red_from=red_from, red_below=red_below
    )


def _lines(title: str, *queries: tuple[str, str], unit: str = "", width: int = 8, stacked: bool = False) -> Panel:
    return Panel(title=title, queries=queries, unit=unit, width=width, stacked=stacked)


def _quantile(name: str, by: str, where: str = PROCESS) -> str:
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate({name}_bucket{{{where}}}[$__rate_interval])))"


def _rate(name: str, by: str, where: str = PROCESS) -> str:
    return f"sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Health": (
        _stat("Store reachable", f"min(txlog_up{{{STORE}}})", red_below=1),
        _stat("Damaged topics", f"count(txlog_topic_up{{{STORE}}} == 0) or vector(0)", red_from=1),
        _stat("Overdue transactions", f"sum(txlog_overdue_transactions{{{STORE}}})", red_from=1),
        _stat("Oldest open transaction", f"max(txlog_oldest_open_transaction_seconds{{{STORE}}})", red_from=900),
        _stat("Greatest lag", f"max(txlog_group_lag_seconds{{{STORE}}}) or vector(0)", red_from=600),
        _stat("Failures of maintenance", f"sum(txlog_maintenance_last_run_failures{{{STORE}}}) or vector(0)", red_from=1),
    ),
    "Lag": (
        _lines("Lag of groups", (f"sum by (group, topic) (txlog_group_lag_offsets{{{GROUP}}})", "{{group}} {{topic}}")),
        _lines("Waiting time of groups", (f"max by (group, topic) (txlog_group_lag_seconds{{{GROUP}}})", "{{group}} {{topic}}")),
        _lines("Members of groups", (f'max by (group) (txlog_group_members{{{STORE}, group=~"$group"}})', "{{group}}")),
    ),
    "Transactions and the last stable offset": (
        _lines("Open transactions", (f"sum by (state) (txlog_open_transactions{{{STORE}}})", "{{state}}"), stacked=True),
        _lines("Held back by open transactions", (f"max by (topic) (txlog_lso_hold_seconds{{{TOPIC}}})", "{{topic}}")),
        _lines("Offsets held back", (f"sum by (topic) (txlog_lso_hold_offsets{{{TOPIC}}})", "{{topic}}")),
        _lines("Transactions ended, by outcome", (_rate("txlog_transactions_total", "outcome"), "{{outcome}}"), unit="ops"),
        _lines("Time to commit or abort (p99)", (_quantile("txlog_transaction_end_duration_seconds", "verb"), "{{verb}}")),
        _lines(
            "Fenced producers in an hour",
            (f"sum by (instance) (increase(txlog_fenced_producers_total{{{PROCESS}}}[1h]))", "{{instance}}"),
        ),
    ),
    "Rows": (
        _lines("Produced rows", (_rate("txlog_produced_rows_total", "topic", OF_TOPIC), "{{topic}}"), unit="rowsps"),
        _lines("Consumed rows", (_rate("txlog_consumed_rows_total", "topic", OF_TOPIC), "{{topic}}"), unit="rowsps"),
        _lines(
            "Bytes of rows",
            (_rate("txlog_produced_bytes_total", "topic", OF_TOPIC), "{{topic}} produced"),
            (_rate("txlog_consumed_bytes_total", "topic", OF_TOPIC), "{{topic}} consumed"),
            unit="Bps",
        ),
        _lines("Growth of the log", (f"sum by (topic) (deriv(txlog_log_end_offset{{{TOPIC}}}[15m]))", "{{topic}}"), unit="ops"),
        _lines(
            "Offsets that readers can read",
            (
                f"sum by (topic) (txlog_last_stable_offset{{{TOPIC}}} - txlog_log_start_offset{{{TOPIC}}})",
                "{{topic}}",
            ),
        ),
        _lines("Processes by version", (f"count by (version) (txlog_build_info{{{PROCESS}}})", "{{version}}"), stacked=True),
    ),
    "Requests": (
        _lines("Requests by verb", (_rate("txlog_storage_requests_total", "verb"), "{{verb}}"), unit="reqps", stacked=True),
        _lines(
            "Requests that did not succeed",
            (_rate("txlog_storage_requests_total", "outcome", f'{PROCESS}, outcome!="ok"'), "{{outcome}}"),
            unit="reqps",
        ),
        _lines("Latency by verb (p99)", (_quantile("txlog_storage_request_duration_seconds", "verb"), "{{verb}}")),
        _lines("Retries", (_rate("txlog_retries_total", "level"), "{{level}}"), unit="ops"),
        _lines(
            "Bytes from and to the store",
            (_rate("txlog_storage_read_bytes_total", "topic", OF_TOPIC), "{{topic}} read"),
            (_rate("txlog_storage_written_bytes_total", "topic", OF_TOPIC), "{{topic}} written"),
            unit="Bps",
        ),
        _lines(
            "Requests of the exporter for a look",
            (f"max by (instance) (txlog_exporter_look_requests{{{STORE}}})", "{{instance}}"),
        ),
    ),
    "Storage": (
        _lines("Size", (f"sum by (topic) (txlog_log_size_bytes{{{TOPIC}}})", "{{topic}}"), stacked=True),
        _lines(
            "Files",
            (f"sum by (topic) (txlog_files{{{TOPIC}}})", "{{topic}}"),
            (f"sum by (topic) (txlog_small_files{{{TOPIC}}})", "{{topic}} small"),
        ),
        _lines(
            "Segments, and batches without an index",
            (f"sum by (topic, state) (txlog_segments{{{TOPIC}}})", "{{topic}} {{state}}"),
            (f"sum by (topic) (txlog_tail_batches{{{TOPIC}}})", "{{topic}} batches"),
        ),
    ),
    "Maintenance": (
        _lines(
            "Time since a job last did something",
            (f"time() - max by (step) (txlog_maintenance_last_run_timestamp_seconds{{{STORE}}})", "{{step}}"),
        ),
        _lines(
            "Failures",
            (f"sum by (step) (txlog_maintenance_last_run_failures{{{STORE}}})", "{{step}}, last run"),
            (
                f'sum by (step) (increase(txlog_maintain_actions_total{{{PROCESS}, result="failed"}}[1h]))',
                "{{step}}, in an hour",
            ),
        ),
        _lines(
            "Time since a round of the daemon",
            (f"time() - max by (instance) (txlog_maintain_last_round_timestamp_seconds{{{PROCESS}}})", "{{instance}}"),
        ),
        _lines("Time of the steps", (_rate("txlog_maintain_step_seconds_total", "step"), "{{step}}"), unit="percentunit", stacked=True),
        _lines("What the steps did", (_rate("txlog_maintain_work_total", "step, what"), "{{step}} {{what}}"), unit="short"),
        _lines("Rows that the last run wrote", (f"sum by (step) (txlog_maintenance_last_run_rows{{{STORE}}})", "{{step}}")),
    ),
    "Publication": (
        _lines(
            "Age of the published tables",
            (f"max by (topic, format) (txlog_publication_lag_seconds{{{TOPIC}}})", "{{topic}} {{format}}"),
            width=12,
        ),
        _lines(
            "Offsets that the tables do not show",
            (f"sum by (topic, format) (txlog_publication_lag_offsets{{{TOPIC}}})", "{{topic}} {{format}}"),
            width=12,
        ),
    ),
    "Streaming queries of Spark": (
        _lines(
            "Lag of queries",
            (f"max by (query) (txlog_query_lag_seconds{{{PROCESS}}})", "{{query}}"),
        ),
        _lines("Offsets that queries have not read", (f"sum by (query) (txlog_query_lag_offsets{{{PROCESS}}})", "{{query}}")),
        _lines("Time of a micro-batch (p99)", (_quantile("txlog_query_batch_duration_seconds", "query"), "{{query}}")),
        _lines("Rows read", (_rate("txlog_query_input_rows_total", "query"), "{{query}}"), unit="rowsps"),
        _lines(
            "Time since the last micro-batch began",
            (f"time() - max by (query) (txlog_query_last_batch_timestamp_seconds{{{PROCESS}}})", "{{query}}"),
        ),
        _lines(
            "Queries that failed, and offsets lost",
            (
                f'sum by (query) (increase(txlog_query_ended_total{{{PROCESS}, outcome="failed"}}[1h]))',
                "{{query}} failed in an hour",
            ),
            (f"max by (query) (txlog_query_lost_offsets{{{PROCESS}}})", "{{query}} lost"),
            unit="short",
        ),
    ),
}  # fmt: skip
NOT_SHOWN = {
    "txlog_exporter_errors_total": "an alert has it",
    "txlog_exporter_look_duration_seconds": "Prometheus has the time of a scrape",
    "txlog_exporter_look_timestamp_seconds": "txlog_up says the same",
    "txlog_exporter_looks_total": "txlog_up says the same",
    "txlog_maintain_idle_rounds_total": "an idle round is no event",
    "txlog_maintain_last_round_failures": "the panel of failures has the actions",
    "txlog_maintain_last_round_seconds": "the panel of steps says more",
    "txlog_maintain_partitions": "the store's own metrics say more",
    "txlog_maintain_rounds_total": "the time since a round says more",
    "txlog_query_batches_total": "the time since a micro-batch says more",
    "txlog_query_last_batch": "a number that only grows",
    "txlog_unmeasured_segments": "zero after a few looks",
}
"""Metrics without a panel, and why."""


def names_in(query: str) -> list[str]:
    """Return the metrics that a query reads."""
    found = [
        re.sub(r"_(bucket|sum|count)$", "", name) if name not in METRICS else name for name in _NAME.findall(query)
    ]
    return list(dict.fromkeys(found))


def dashboard() -> Json:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "txlog",
        "uid": "txlog",
        "description": "Stores, producers, consumers, maintenance and streaming queries of txlog. docs/monitor.md "
        "says what the numbers mean.",
        "tags": ["txlog"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("store", "Exporter of", "label_values(txlog_up, instance)"),
                _variable("topic", "Topic", f"label_values(txlog_log_end_offset{{{STORE}}}, topic)"),
                _variable("group", "Group", f"label_values(txlog_group_members{{{STORE}}}, group)"),
                _variable("process", "Process", "label_values(txlog_build_info, instance)"),
            ]
        },
        "panels": list(_panels()),
    }


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Without a label too: `.*` matches an absent one.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[Json]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": _at(0, top, WIDTH, 1),
            "panels": [],
        }
        top += 1
        left = height = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            number += 1
            height = panel.height
            yield _panel(panel, number, _at(left, top, panel.width, panel.height))
            left += panel.width
        top += height


def _at(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, number: int, position: Json) -> Json:
    metrics = [METRICS[name] for query, _ in panel.queries for name in names_in(query)]
    words = dict.fromkeys(metric.help for metric in metrics)
    is_stat = panel.kind == "stat"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(words),
        "datasource": _SOURCE,
        "gridPos": position,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": query,
                "legendFormat": legend or "__auto",
                "range": not is_stat,
                "instant": is_stat,
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit or _UNITS.get(metrics[0].unit, "short"),
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": _steps(panel)},
                "color": {"mode": "thresholds" if is_stat else "palette-classic"},
                "custom": {} if is_stat else _custom(panel),
            },
            "overrides": [],
        },
        "options": _STAT if is_stat else _SERIES,
    }


_STAT: Json = {
    "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
    "colorMode": "background",
    "graphMode": "none",
    "justifyMode": "auto",
    "orientation": "auto",
    "textMode": "value",
    "wideLayout": True,
    "percentChangeColorMode": "standard",
    "showPercentChange": False,
}
_SERIES: Json = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def _custom(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


def _steps(panel: Panel) -> list[Json]:
    if panel.red_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    good: list[Json] = [{"color": "green", "value": None}]
    return good if panel.red_from is None else [*good, {"color": "red", "value": panel.red_from}]


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
