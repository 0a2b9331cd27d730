"""Which metrics exist, with which kind, unit and labels?

Names follow Prometheus: base units, and `_total` for counters. OpenTelemetry gets the same names with its own rules
(`Metric.instrument`). Labels are bounded. A topic is a label, and a transactional.id is not, because programs draw new
ones. `job` and `instance` are Prometheus's own labels. Only metrics of a store and its groups have the label
`partition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Source: TypeAlias = Literal["process", "maintain", "store", "exporter", "spark"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of every histogram."""

_UNITS = {"seconds": "s", "bytes": "By"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, as users see it."""

    name: str
    kind: Kind
    source: Source
    help: str
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit in the name: `seconds`, `bytes`, or nothing."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in _UNITS else ""

    @property
    def instrument(self) -> str:
        """The name for OpenTelemetry. Its exporters for Prometheus make the same name of it."""
        return self.name.removesuffix("_total").replace("_", ".", 1)

    @property
    def instrument_unit(self) -> str:
        """The unit for OpenTelemetry, in UCUM."""
        return _UNITS.get(self.unit, "1")


_TP = ("topic", "partition")
_GROUP = ("group", "topic", "partition")


def _table(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _process(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(name=f"txlog_{name}", kind=kind, source="process", help=help_text, labels=labels)


def _maintain(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(name=f"txlog_maintain_{name}", kind=kind, source="maintain", help=help_text, labels=labels)


def _store(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name=f"txlog_{name}", kind="gauge", source="store", help=help_text, labels=labels)


def _exporter(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(name=f"txlog_exporter_{name}", kind=kind, source="exporter", help=help_text, labels=labels)


def _query(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(name=f"txlog_query_{name}", kind=kind, source="spark", help=help_text, labels=("query", *labels))


METRICS: dict[str, Metric] = _table(
    _process("build_info", "gauge", "Always 1; the label is the version of txlog.", "version"),
    _process("storage_requests_total", "counter",
        "Calls of the object store. The outcome is ok, missing (no such object), conflict (the name is taken), "
        "unknown (the write may still land) or error. The topic is empty for objects of no topic, such as txlog.json.",
        "verb", "outcome", "topic"),
    _process("storage_request_duration_seconds", "histogram", "How long a call of the object store took.", "verb"),
    _process("storage_read_bytes_total", "counter", "Bytes that came from the object store.", "topic"),
    _process("storage_written_bytes_total", "counter", "Bytes that went to the object store.", "topic"),
    _process("retries_total", "counter",
        "What was tried again: a request, a whole call, or a batch of a producer.", "level"),
    _process("produced_rows_total", "counter",
        "Rows that this process has written: in the log, or staged in a transaction. Rows of "
        "aborted transactions count.",
        "topic"),
    _process("produced_bytes_total", "counter",
        "Size of these rows: in Arrow's memory, or for a write of Spark in its files.", "topic"),
    _process("consumed_rows_total", "counter", "Rows that this process has read from a topic and returned.", "topic"),
    _process("consumed_bytes_total", "counter", "Size of these rows in Arrow's memory.", "topic"),
    _process("transactions_total", "counter",
        "Calls of this process that ended a transaction. The outcome is committed, aborted, skipped (its txn.version "
        "was committed before), failed or unknown. After unknown, the next call counts too.", "outcome"),
    _process("transaction_end_duration_seconds", "histogram",
        "How long the decision to commit or abort took, with its retries.", "verb"),
    _process("fenced_producers_total", "counter",
        "Producers of this process that were fenced by another instance of their transactional.id."),
    _maintain("rounds_total", "counter",
        "Rounds of maintenance that ended. One that fails because the store does not answer counts."),
    _maintain("idle_rounds_total", "counter", "Rounds in which nothing was due."),
    _maintain("step_seconds_total", "counter", "Time that a step took, over all rounds.", "step"),
    _maintain("actions_total", "counter", "What a step has done, left, and failed at.", "step", "result"),
    _maintain("work_total", "counter",
        "How much a step has done. The label `what` is the unit; names that begin with bytes count bytes.",
        "step", "what"),
    _maintain("last_round_timestamp_seconds", "gauge", "When the last round ended that reached the store."),
    _maintain("last_round_seconds", "gauge", "How long the last round took."),
    _maintain("last_round_failures", "gauge", "What failed in the last round. 1 if the store did not answer."),
    _maintain("partitions", "gauge", "Partitions that the last round looked at."),
    _store("up",
        "1 if the last look reached the store, otherwise 0. With 0 all other metrics of the store are absent."),
    _store("topic_up", "1 if all partitions of the topic could be read, 0 if one is damaged.", "topic"),
    _store("log_start_offset", "The first offset that readers can still read.", *_TP),
    _store("last_stable_offset", "Readers of committed rows read up to here.", *_TP),
    _store("log_end_offset", "The offset of the next row.", *_TP),
    _store("lso_hold_offsets",
        "Offsets that readers of committed rows wait for, because a transaction is open.", *_TP),
    _store("lso_hold_seconds", "How long the oldest of these transactions has been open. 0 without one.", *_TP),
    _store("open_transactions",
        "Transactions in each state that is not final. An id may stay in PREPARE_COMMIT or PREPARE_ABORT until its "
        "next transaction, although the rows are visible.", "state"),
    _store("oldest_open_transaction_seconds", "Age of the oldest transaction in state ONGOING. 0 without one."),
    _store("overdue_transactions", "Open transactions that are past their time-out."),
    _store("group_lag_offsets",
        "Offsets up to the last stable one that the group has not consumed; markers and aborted rows count.", *_GROUP),
    _store("group_lag_seconds", "How long the oldest of these offsets has waited. 0 without one.", *_GROUP),
    _store("group_members", "Members of the group whose sessions are not over.", "group"),
    _store("segments",
        "Segments of a partition. The state is sealed, or unsealed (its batches have no index yet).", *_TP, "state"),
    _store("tail_batches",
        "Batches in unsealed segments. To open the partition costs a request for each of them.", *_TP),
    _store("files", "Data files from the log start on.", *_TP),
    _store("small_files", "Files of less than half the size that a merge aims at.", *_TP),
    _store("log_size_bytes", "Size of the data files, and of rows in commit records.", *_TP),
    _store("unmeasured_segments",
        "Sealed segments whose files and bytes do not count yet. The exporter reads a limited "
        "number of indexes a look.",
        *_TP),
    _store("publication_lag_offsets",
        "Offsets up to the last stable one that the topic's table in this format does not show yet.",
        "topic", "format"),
    _store("publication_lag_seconds",
        "How long the oldest of these offsets has waited. 0 if the table shows all committed rows.", "topic", "format"),
    _store("maintenance_last_run_timestamp_seconds", "When a job of maintenance last ended with work done.", "step"),
    _store("maintenance_last_run_rows", "Rows that this run of the job wrote.", "step"),
    _store("maintenance_last_run_failures", "Partitions at which this run of the job failed.", "step"),
    _exporter("looks_total", "counter", "Looks at the store. The outcome is ok or failed.", "outcome"),
    _exporter("errors_total", "counter",
        "What could not be read. The scope is store (it did not answer), topic (a part of it is damaged) or internal "
        "(another part of the store is damaged).",
        "scope"),
    _exporter("look_timestamp_seconds", "gauge", "When the last look that reached the store ended."),
    _exporter("look_duration_seconds", "gauge", "How long the last look took."),
    _exporter("look_requests", "gauge", "Calls of the object store that the last look made."),
    _query("batches_total", "counter", "Micro-batches of a streaming query that ended."),
    _query("input_rows_total", "counter", "Rows that these micro-batches read, from all sources."),
    _query("batch_duration_seconds", "histogram", "How long a micro-batch took."),
    _query("last_batch", "gauge",
        "Number of the last micro-batch that ended. A txlog sink has committed it as the "
        "txn.version of its transaction."),
    _query("last_batch_timestamp_seconds", "gauge", "When the last micro-batch began."),
    _query("lag_offsets", "gauge",
        "Offsets of the txlog sources after the last micro-batch, up to the end of the log when it was planned."),
    _query("lag_seconds", "gauge", "How long the oldest of these offsets has waited. 0 without one."),
    _query("lost_offsets", "gauge", "Offsets that were removed before this run of the query read them."),
    _query("ended_total", "counter", "Runs of a query that ended. The outcome is stopped or failed.", "outcome"),
)  # fmt: skip
