"""`txlog maintain`: do the maintenance that is due, once or repeatedly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.errors import exit_status
from txlog.cli.interrupts import Interrupts
from txlog.cli.options import Session, option
from txlog.cli.output import Output, encode_line, write
from txlog.core.cleaning import DEFAULT_MIN_SEGMENTS, DEFAULT_TARGET_BYTES
from txlog.errors import InvalidRequestError, RetriableError
from txlog.logs import not_printed
from txlog.metrics import Registry, enabled
from txlog.text import count_text, duration_text, time_text

if TYPE_CHECKING:
    from txlog.maintenance.maintain import Maintainer, MaintainReport

_INTERVAL_MS = 60_000
_JITTER_MS = 10_000
_HOST = "127.0.0.1"


def maintain(
    session: Session,
    once: Annotated[bool, option("--once", "Run one round, then end.")] = False,
    daemon: Annotated[bool, option("--daemon", "Repeat rounds until a signal ends the program.")] = False,
    interval_ms: Annotated[
        int, option("--interval-ms MS", "With --daemon: the pause between two rounds.")
    ] = _INTERVAL_MS,
    jitter_ms: Annotated[
        int,
        option("--jitter-ms MS", "With --daemon: a random extra pause up to this, so that several daemons take turns."),
    ] = _JITTER_MS,
    target_bytes: Annotated[
        int, option("--target-bytes BYTES", "Target size of a merged file.", min=1)
    ] = DEFAULT_TARGET_BYTES,
    merge_min_segments: Annotated[
        int, option("--merge-min-segments N", "Merge a partition if it has at least this number of sealed segments.")
    ] = DEFAULT_MIN_SEGMENTS,
    offsets_retention_ms: Annotated[
        int,
        option(
            "--offsets-retention-ms MS",
            "Forget consumer groups that have no member and committed nothing for this long. -1: never.",
        ),
    ] = -1,
    vacuum_interval_ms: Annotated[
        int | None,
        option(
            "--vacuum-interval-ms MS",
            "With --daemon: the time between two vacuums (default: an hour, or a fourth of "
            "delete.grace.ms if that is less).",
        ),
    ] = None,
    skip: Annotated[list[str] | None, option("--skip STEP", "Leave out this step; may be repeated.")] = None,
    metrics_file: Annotated[
        str | None, option("--metrics-file PATH", "Write Prometheus metrics to this file after each round.")
    ] = None,
    metrics_port: Annotated[
        int | None, option("--metrics-port PORT", "With --daemon: serve Prometheus metrics there, at /metrics.")
    ] = None,
    metrics_host: Annotated[
        str, option("--metrics-host HOST", "The address to serve them at. 0.0.0.0: for other machines, too.")
    ] = _HOST,
) -> None:
    """Do all maintenance that is due, and report what was done, what was left and why.

    This command has no dry run: --once or --daemon already asks for the work, and it usually runs unattended. Each
    topic's settings decide what it removes.

    The steps run in this order: transactions (finish decided ones, abort overdue ones, delete idle ids), groups,
    deletions, producers, seal, publish, retention, merge, compact, vacuum. Vacuum deletes objects that nothing has
    needed for delete.grace.ms. The command is safe beside writers, readers and other daemons. A signal ends it after
    the current step. A second signal ends it at once, which is safe too.
    """
    if once == daemon:
        raise InvalidRequestError("give either --once for one round or --daemon for one round after another")
    for name, value in (("--interval-ms", interval_ms), ("--jitter-ms", jitter_ms)):
        if value < 0:
            raise InvalidRequestError(f"{name} {value}: expected milliseconds, at least 0")
    if metrics_port is not None and not daemon:
        raise InvalidRequestError(
            "--metrics-port needs --daemon: with --once the program ends before its metrics can be read. "
            "hint: --metrics-file keeps them"
        )
    # Local imports, because they load pyarrow.
    from txlog.maintenance.maintain import Maintainer, MaintainPolicy
    from txlog.maintenance.metrics import RoundMetrics

    policy = MaintainPolicy(
        merge_target_bytes=target_bytes,
        merge_min_segments=merge_min_segments,
        offsets_retention_ms=offsets_retention_ms,
        vacuum_interval_ms=vacuum_interval_ms,
        skip=frozenset(skip or ()),
    )
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        # The report has what failed.
        stack.enter_context(not_printed("maintenance_failed"))
        registry = Registry()
        if metrics_port is not None or metrics_file is not None:
            # A local import, because prometheus-client is an extra.
            from txlog.metrics.prometheus import Server, write_file

            # Before the store is opened: an open store counts nothing.
            registry = stack.enter_context(enabled())
        metrics = RoundMetrics(registry)

        def add(report: MaintainReport | None) -> None:
            if report is None:
                metrics.fail()
            else:
                metrics.add(report)
            if metrics_file is not None:
                write_file(registry, metrics_file)

        runtime = session.store.runtime
        maintainer = Maintainer(
            runtime,
            policy,
            should_stop=lambda: interrupts.received is not None,
            workers=session.workers(runtime),
        )
        if metrics_port is not None:
            server = stack.enter_context(Server(registry, metrics_port, metrics_host))
            session.out.note(f"Metrics at {server.url}")
        if once:
            report = maintainer.run()
            add(report)
            session.out.show(report, lambda out: show_round(out, report))
            if maintainer.first_error is not None:
                raise typer.Exit(exit_status(maintainer.first_error))
            interrupts.check()
        else:
            _loop(session, maintainer, interrupts, add, interval_ms, jitter_ms)


def _loop(
    session: Session,
    maintainer: Maintainer,
    interrupts: Interrupts,
    add: Callable[[MaintainReport | None], None],
    interval_ms: int,
    jitter_ms: int,
) -> None:
    """Run rounds until a signal comes, and `add` each to the metrics.

    If the store cannot be reached for a while, the loop goes on, and adds None.
    """
    clock, ids = session.store.runtime.clock, session.store.runtime.ids
    left: set[str] = set()
    rounds = 0
    while interrupts.received is None:
        try:
            report = maintainer.run()
        except RetriableError as error:
            session.out.note(f"{time_text(clock.now_ms())}  {error}; the next round tries again")
            add(None)
        else:
            rounds += 1
            add(report)
            left = _tell(session.out, report, left)
        # The jitter of an id generator is between one half and one and a half of its argument.
        interrupts.sleep(clock, interval_ms + ids.jitter(jitter_ms) - jitter_ms // 2)
    session.out.note(
        f"{time_text(clock.now_ms())}  Ended by {interrupts.received.name} after {count_text(rounds, 'round')}."
    )


def _tell(out: Output, report: MaintainReport, told: set[str]) -> set[str]:
    """Print a line for each thing that a round did, failed at, or left, unless the previous round left it too.

    In JSON mode, print one line for each round.
    """
    if out.is_json:
        write(encode_line(report))
        out.flush()
        return told
    left = set()
    for step in report.steps:
        for kind, mark in (("done", ""), ("left", "left: "), ("failed", "FAILED: ")):
            for action in getattr(step, kind):
                place = "" if action.topic is None else f" {action.topic}-{action.partition}"
                known = f"{step.step} {action.topic} {action.partition}"
                if kind == "left":
                    left.add(known)
                if kind != "left" or known not in told:
                    out.line(f"{time_text(report.ended_at)}  {step.step}{place}: {mark}{action.text}")
    out.flush()
    return left


def show_round(out: Output, report: MaintainReport) -> None:
    """Show people what a round did, left and failed at."""
    out.fields(
        [
            ("store", report.store),
            ("partitions", report.partitions),
            ("took", duration_text(max(0, report.ended_at - report.started_at))),
        ]
    )
    if not report.is_whole:
        out.line("A signal ended the round before all steps had their turn.")
    for kind, title in (("done", "Done"), ("left", "Left"), ("failed", "Failed")):
        rows = [
            (step.step, action.topic, action.partition, action.text)
            for step in report.steps
            for action in getattr(step, kind)
        ]
        unnamed = sum(step.counts.get(kind, 0) for step in report.steps) - len(rows)
        out.section(title, ("step", "topic", "partition", "what"), rows)
        if kind == "done" and not rows:
            was_due = not report.is_whole or any(step.left or step.failed for step in report.steps)
            out.line()
            out.line("Nothing was done." if was_due else "Nothing was due.")
        if unnamed:
            out.line(f"... and {unnamed:,} more.")
