"""How do metrics of maintenance reach Prometheus?

They are text in Prometheus's exposition format, version 0.0.4. A file serves the textfile collector of node_exporter; a
port serves scrapes. Counters belong to one process and begin at 0. The size of a store is in its own tables
(`metadata=partitions`).
"""

from __future__ import annotations

import http.server
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from txlog.errors import InvalidRequestError
from txlog.maintenance.maintain import STEPS, MaintainReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "txlog_maintain_"
_HELP = {
    "rounds_total": ("counter", "Rounds of maintenance that ended."),
    "idle_rounds_total": ("counter", "Those in which nothing was due."),
    "step_seconds_total": ("counter", "Seconds that a step took, over all rounds."),
    "actions_total": ("counter", "What a step did, left, and failed at."),
    "work_total": ("counter", "How much of what a step did; names that begin with bytes count bytes."),
    "last_round_timestamp_seconds": ("gauge", "When the last round ended."),
    "last_round_seconds": ("gauge", "How long it took."),
    "last_round_failures": ("gauge", "What failed in it."),
    "partitions": ("gauge", "Partitions that it looked at."),
}
_KINDS = ("done", "left", "failed")


@dataclass(slots=True)
class Metrics:
    """Sums over the rounds of one process. Thread-safe."""

    rounds: int = 0
    idle_rounds: int = 0
    _seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _last: MaintainReport | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, report: MaintainReport) -> None:
        """Add a round that has ended."""
        with self._lock:
            self.rounds += 1
            self.idle_rounds += report.is_idle
            self._last = report
            for step in report.steps:
                self._seconds[step.step] += step.took_ms / 1000
                for name, count in step.counts.items():
                    self._counts[step.step, name] = self._counts.get((step.step, name), 0) + count

    def text(self) -> str:
        """Return all metrics in Prometheus's format."""
        with self._lock:
            samples: dict[str, list[tuple[str, float]]] = {
                "rounds_total": [("", self.rounds)],
                "idle_rounds_total": [("", self.idle_rounds)],
                "step_seconds_total": [(f'step="{step}"', seconds) for step, seconds in self._seconds.items()],
                "actions_total": [
                    (f'step="{step}",result="{kind}"', self._counts.get((step, kind), 0))
                    for step in STEPS
                    for kind in _KINDS
                ],
                "work_total": [
                    (f'step="{step}",what="{what}"', count)
                    for (step, what), count in sorted(self._counts.items())
                    if what not in _KINDS
                ],
            }
            if (last := self._last) is not None:
                samples["last_round_timestamp_seconds"] = [("", last.ended_at / 1000)]
                samples["last_round_seconds"] = [("", max(0, last.ended_at - last.started_at) / 1000)]
                samples["last_round_failures"] = [("", last.failures)]
                samples["partitions"] = [("", last.partitions)]
        lines = []
        for name, (kind, words) in _HELP.items():
            if found := samples.get(name):
                lines += [f"# HELP {_PREFIX}{name} {words}", f"# TYPE {_PREFIX}{name} {kind}"]
                lines += [f"{_PREFIX}{name}{f'{{{labels}}}' if labels else ''} {value}" for labels, value in found]
        return "\n".join(lines) + "\n"


def write_metrics(path: str | os.PathLike[str], metrics: Metrics) -> None:
    """Replace the file atomically, as the textfile collector requires.

    Raises InvalidRequestError if it cannot be written.
    """
    target = Path(path)
    # The collector reads *.prom only, so it skips this name.
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(metrics.text(), encoding="utf-8")
        scratch.replace(target)
    except OSError as error:
        raise InvalidRequestError(
            f"--metrics-file {str(target)!r} cannot be written: {error.strerror or error}"
        ) from None


class MetricsServer:
    """Serve `/metrics` inside the `with` block. `port` 0 takes any free port."""

    def __init__(self, metrics: Metrics, port: int, host: str = "") -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/", "/metrics"):
                    self.send_error(404, "only /metrics is here")
                    return
                body = metrics.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Log nothing: a line for each scrape is not useful."""

        try:
            self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidRequestError(f"--metrics-port {port} cannot be listened on: {error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="txlog-metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
