"""The dashboard and the alert rules: they name existing metrics and labels, and Grafana and Prometheus can load
them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from conf import dashboard
from txlog.metrics.table import METRICS

CONF = Path(__file__).parent.parent / "conf"

SHOWN: dict[str, Any] = json.loads((CONF / "grafana.json").read_text())
PANELS = [panel for panel in SHOWN["panels"] if panel["type"] != "row"]
RULES = yaml.safe_load((CONF / "alerts.yml").read_text())["groups"][0]["rules"]
OF_PROMETHEUS = {"instance", "job", "le"}
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def walk(node: Any) -> Iterator[Any]:
    """Yield a query and all its parts."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below] if below is not None else []:
            yield from walk(each)


def read(query: str) -> tuple[set[str], set[str]]:
    """Return the metrics and the labels that a query names. Raises ValueError if Prometheus could not parse it."""
    nodes = list(walk(promql_parser.parse(query.replace("$__rate_interval", "5m"))))
    selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
    labels = {matcher.name for selector in selectors for matcher in selector.matchers.matchers}
    for node in nodes:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels |= set(node.modifier.labels)
    return {selector.name or "" for selector in selectors}, labels


def metric_of(name: str) -> str:
    """Return the metric of a series: a histogram has series of its own for buckets."""
    base = name.removesuffix("_bucket")
    return base if name not in METRICS and base in METRICS and METRICS[base].kind == "histogram" else name


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_a_query_names_what_exists(query: str) -> None:
    names, labels = read(query)
    assert names
    metrics = {name: METRICS[metric_of(name)] for name in names}
    known = {label for metric in metrics.values() for label in metric.labels}
    assert labels <= known | OF_PROMETHEUS
    for name, metric in metrics.items():
        # A counter only grows, and restarts at zero: its value alone means nothing.
        assert (metric.kind != "gauge") == any(f"{call}({name}" in query for call in ("rate", "increase"))


def test_the_check_finds_mistakes() -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        read("sum by (topic (txlog_up)")
    assert read('sum by (topik) (rate(txlog_upp{job="a"}[5m]))') == ({"txlog_upp"}, {"topik", "job"})


def test_every_metric_is_shown_or_left_out_for_a_reason() -> None:
    shown = {metric_of(name) for query in QUERIES for name in read(query)[0]}
    assert shown.isdisjoint(dashboard.NOT_SHOWN)
    assert shown | dashboard.NOT_SHOWN.keys() == METRICS.keys()


def test_the_file_is_what_the_script_writes() -> None:
    assert (CONF / "grafana.json").read_text() == dashboard.text(), "run `python conf/dashboard.py`"


def test_panels_fill_the_grid_without_overlap() -> None:
    cells: Counter[tuple[int, int]] = Counter()
    for panel in SHOWN["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= dashboard.WIDTH
        cells.update((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
    assert set(cells.values()) == {1}
    assert {y for _, y in cells} == set(range(max(y for _, y in cells) + 1)), "no row of the grid is empty"


def test_panels_are_complete() -> None:
    ids = [panel["id"] for panel in SHOWN["panels"]]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    (source, *variables) = SHOWN["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    for one in [*PANELS, *variables, *(target for panel in PANELS for target in panel["targets"])]:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = {variable["name"] for variable in variables}
    used = {name for query in QUERIES for name in names if f"${name}" in query}
    assert used == names
    for panel in PANELS:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        (kind,) = {METRICS[metric_of(name)].unit for target in panel["targets"] for name in read(target["expr"])[0]}
        expected = {"seconds": {"s", "percentunit"}, "bytes": {"bytes", "Bps"}}
        assert unit in expected.get(kind, {"short", "ops", "reqps", "rowsps"}), panel["title"]
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_alerts_are_complete() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    page = (CONF.parent / "docs" / "monitor.md").read_text()
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary"}
        shown = f"| `{rule['alert']}` | `{rule['expr']}` | {rule.get('for', '0m')} | {rule['labels']['severity']} | "
        assert shown in page, "the page says when it fires and what it means"
