"""What do metrics say about rounds of maintenance? Counters belong to one process and begin at 0."""

from __future__ import annotations

from txlog.maintenance.maintain import STEPS, MaintainReport
from txlog.metrics import Registry

_PREFIX = "txlog_maintain_"
_KINDS = ("done", "left", "failed")


class RoundMetrics:
    """Counts the rounds of one process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # A counter that is there from the beginning shows its first increase.
        self._add("rounds_total", 0)
        self._add("idle_rounds_total", 0)
        for step in STEPS:
            self._add("step_seconds_total", 0, step)
            for kind in _KINDS:
                self._add("actions_total", 0, step, kind)

    def add(self, report: MaintainReport) -> None:
        """Add a round that has ended."""
        self._add("rounds_total", 1)
        self._add("idle_rounds_total", int(report.is_idle))
        for step in report.steps:
            self._add("step_seconds_total", step.took_ms / 1000, step.step)
            for name, count in step.counts.items():
                self._add("actions_total" if name in _KINDS else "work_total", count, step.step, name)
        last = {
            "last_round_timestamp_seconds": report.ended_at / 1000,
            "last_round_seconds": max(0, report.ended_at - report.started_at) / 1000,
            "last_round_failures": report.failures,
            "partitions": report.partitions,
        }
        self._registry.replace({f"{_PREFIX}{name}": {(): value} for name, value in last.items()})

    def fail(self) -> None:
        """Add a round that ended at once, because the store did not answer. The time of the last round stays."""
        self._add("rounds_total", 1)
        self._registry.replace({f"{_PREFIX}last_round_failures": {(): 1}})

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._registry.add(f"{_PREFIX}{name}", amount, *labels)
