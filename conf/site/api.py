"""The names that users call, a page for each subject; mkdocstrings fills in signatures and docstrings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from types import FunctionType, ModuleType

import pyspark_txlog
import txlog

SUBJECTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "store": (
        "Store",
        "`txlog.open` returns a `Store`: topics, and the clients that write and read them.",
        ("txlog.open", "txlog.Store", "txlog.client.store.TopicDescription", "txlog.TopicPartition"),
    ),
    "producer": (
        "Producer",
        "`Store.producer` returns a `Producer`, which writes rows with Kafka's verbs.",
        (
            "txlog.Producer",
            "txlog.client.producer.transaction_scope.TransactionScope",
            "txlog.client.producer.batches.RecordMetadata",
            "txlog.client.producer.batches.OnDelivery",
            "txlog.protocol.transactions.EndResult",
            "txlog.core.transactions.TxnVersion",
        ),
    ),
    "consumer": (
        "Consumer",
        "`Store.consumer` returns a `Consumer`, which reads rows with Kafka's verbs.",
        (
            "txlog.Consumer",
            "txlog.ConsumerGroupMetadata",
            "txlog.OffsetAndMetadata",
            "txlog.client.groups.OffsetAndTimestamp",
            "txlog.client.groups.Offsets",
            "txlog.client.groups.rebalance.Listener",
            "txlog.client.consumer.fetcher.Topics",
            "txlog.client.session.arguments.Milliseconds",
        ),
    ),
    "tables": (
        "Tables",
        "`Store.table` and `Store.snapshot` read topics as tables, without a consumer.",
        (
            "txlog.client.tables.table.TopicTable",
            "txlog.client.tables.table.Changes",
            "txlog.client.tables.snapshot.Snapshot",
            "txlog.client.tables.table.Where",
            "txlog.client.tables.positions.Position",
        ),
    ),
    "admin": (
        "Admin",
        "`Store.admin` returns an `Admin`: transactions, offsets, groups and partitions.",
        (
            "txlog.Admin",
            "txlog.client.admin.descriptions.TransactionDescription",
            "txlog.client.admin.descriptions.HangingTransaction",
            "txlog.client.admin.descriptions.ProducerDescription",
            "txlog.client.admin.descriptions.PartitionDescription",
            "txlog.client.admin.descriptions.SegmentDescription",
            "txlog.client.admin.descriptions.OffsetInfo",
            "txlog.client.admin.descriptions.GroupInfo",
            "txlog.client.admin.descriptions.GroupOffset",
            "txlog.client.admin.descriptions.MemberInfo",
            "txlog.client.admin.descriptions.OffsetReset",
            "txlog.client.offsets.OffsetSpec",
            "txlog.client.offsets.Kind",
            "txlog.protocol.expiry.ExpireResult",
        ),
    ),
    "spark": (
        "pyspark_txlog",
        "The package for Spark. `session` or `install` prepares a Spark session, and `TxLog` has what "
        '`format("txlog")` cannot express.',
        (
            "pyspark_txlog.session",
            "pyspark_txlog.install",
            "pyspark_txlog.uninstall",
            "pyspark_txlog.activate",
            "pyspark_txlog.TxLog",
            "pyspark_txlog.TopicTable",
            "pyspark_txlog.api.transactions.Transaction",
            "pyspark_txlog.native.write.Road",
            "pyspark_txlog.native.snapshot.Snapshot",
            "pyspark_txlog.committed_source_offsets",
            "pyspark_txlog.create_views",
            "pyspark_txlog.sink.committed_offsets.SourceOffset",
            "pyspark_txlog.ProgressMetrics",
            "pyspark_txlog.TxlogDataSource",
            "pyspark_txlog.DefaultSource",
        ),
    ),
    "metrics": (
        "Metrics",
        "`txlog.metrics` gives the numbers of a process to Prometheus or OpenTelemetry ([all metrics](../metrics.md)).",
        ("txlog.metrics",),
    ),
    "engine": (
        "For engines",
        "An engine reads and writes topics through `txlog.engine` ([Write an engine](../../engine.md)).",
        ("txlog.engine",),
    ),
    "testing": (
        "For tests",
        "`txlog.testing` has a store that counts requests.",
        ("txlog.testing.counting_store",),
    ),
}
"""File name -> title, introduction, and what the page describes."""
MADE_BY_USERS = (
    "pyspark_txlog.ProgressMetrics",
    "txlog.OffsetAndMetadata",
    "txlog.TopicPartition",
    "txlog.client.offsets.OffsetSpec",
    "txlog.core.transactions.TxnVersion",
    "pyspark_txlog.TxLog",
)
"""Classes that a program calls itself. The others come from calls, so that the page leaves out how they are made."""
INTERNAL = ("carry_sources",)
"""Methods of `Transaction` for those who commit micro-batches themselves."""

_INDEX = """# Python API

A program imports `txlog`, and on Spark `pyspark_txlog`. Everything else comes from a call of these. The names of errors are in the package, too:
`txlog.ProducerFencedError`.
"""


def _index() -> str:
    lines = [_INDEX]
    for name, (title, said, paths) in SUBJECTS.items():
        imported = ", ".join(f"`{path}`" for path in paths if _is_imported(path))
        lines.append(f"- **[{title}]({name}.md).** {said}{f' Names: {imported}.' if imported else ''}")
    lines.append("")
    errors = [each for each in txlog.__all__ if each.endswith("Error")]
    lines += ["## Errors", "", "All errors are subclasses of `txlog.TxlogError`.", ""]
    lines += [f"- [`txlog.{each}`](../errors.md#{each.lower()})" for each in errors]
    return "\n".join([*lines, ""])


def _subject(name: str) -> str:
    title, said, paths = SUBJECTS[name]
    lines = [f"# {title}", "", said, ""]
    for path in paths:
        lines += [f"::: {path}", "    options:"]
        lines += [f"      {option}: {json.dumps(value)}" for option, value in _options(path, name).items()]
        lines.append("")
    return "\n".join(lines)


def _options(path: str, subject: str) -> dict[str, object]:
    """Return what mkdocstrings does differently for this name."""
    found = resolve_name(path)
    options: dict[str, object] = {
        "show_root_full_path": _is_imported(path) or subject == "testing",
        "merge_init_into_class": path in MADE_BY_USERS or subject == "testing",
        # The value of an alias of a type is its meaning.
        "show_attribute_values": not isinstance(found, type | FunctionType | ModuleType),
    }
    if path == "pyspark_txlog.api.transactions.Transaction":
        options["filters"] = ["!^_", *(f"!^{name}$" for name in INTERNAL)]
    if path == "txlog.engine":
        options["members"] = sorted(
            name for name, value in vars(found).items() if name[0] != "_" and not isinstance(value, ModuleType)
        )
    elif isinstance(found, ModuleType) and hasattr(found, "__all__"):
        options["members"] = found.__all__
    if path == "pyspark_txlog.TxlogDataSource":
        options["members"] = False
    return options


def _is_imported(path: str) -> bool:
    """Return whether programs import the name from its package."""
    package, _, name = path.partition(".")
    return name in {"txlog": txlog, "pyspark_txlog": pyspark_txlog}[package].__all__


PAGES: dict[str, Callable[[], str]] = {
    "reference/api/index.md": _index,
    **{f"reference/api/{name}.md": partial(_subject, name) for name in SUBJECTS},
}
"""Page -> the function that returns its Markdown."""
