"""The base of every test: the same examples on every run, and no influence of the developer's environment."""

from __future__ import annotations

import atexit
import os
import signal
from importlib.metadata import version
from typing import Any

import pytest

from tests.effort import load_profile
from tests.jvm import begin_quickly
from txlog.client.producer import at_exit
from txlog.client.transactions.coordinator import Coordinator

load_profile()

# Settings in the developer's shell must not change what a test sees.
for name in ("TXLOG_CONFIG", "TXLOG_STORE"):
    os.environ.pop(name, None)

begin_quickly()

# A shell that runs the tests in the background ignores Ctrl-C, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

APART = ("storm", "exhaustive", "kafka", "cluster", "engines", "page", "schedulers")
"""Markers of tests that only run if `-m` names them. Each set has its own make target."""
FIRST = (
    "spark", "streams", "drivers",
    "test_explore_protocol.py", "test_faults.py", "test_object_stores.py", "test_crash.py", "test_kill.py",
    "test_machine.py",
)  # fmt: skip
"""Groups of tests that take a minute or more. They start first, because the last one would otherwise run alone at the
end."""


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small transactions of one partition have a decision, too, so that a test of decisions can be small."""
    monkeypatch.setattr(Coordinator, "_in_one_phase", lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    # Spark 4.0 and 4.1 leave sockets of a session to the garbage collector.
    if version("pyspark").startswith(("4.0.", "4.1.")):
        for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-format",
        choices=("native", "python"),
        default="native",
        help='how format("txlog") works in the tests of Spark: after install(), or with the Python data source alone',
    )


# This hook must run first, because xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unasked = [marker for marker in APART if marker not in config.option.markexpr]
    left = [item for item in items if any(item.get_closest_marker(marker) for marker in unasked)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    # Three processes share the tests (`make test`). Two have Spark, with one session each; one has the tests that start
    # their own drivers. When these are done, all three take the other files one by one.
    needs_spark = {item.path for item in items if item.get_closest_marker("spark")}
    has_session = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}

    def group(item: pytest.Item) -> str:
        if item.path not in needs_spark:
            return item.path.name
        if item.path not in has_session:
            return "drivers"
        return "streams" if "stream" in item.path.name else "spark"

    items.sort(key=lambda item: FIRST.index(group(item)) if group(item) in FIRST else len(FIRST))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the lives of a harness have had, which tests record as `events`."""
    for report in (each for found in terminalreporter.stats.values() for each in found):
        for name, events in getattr(report, "user_properties", ()):
            if name == "events" and report.when == "call":
                terminalreporter.section(report.nodeid)
                for event, count in events.items():
                    terminalreporter.write_line(f"{count:8,} {event}")


# Tests leave producers open as a crash would. Tests that run whole programs check the message at a program's end.
atexit.unregister(at_exit.end_producers)
