"""The tool that acts before a line of txlog acts at each line, once, and only there."""

from __future__ import annotations

from tests.lines.at_line import Line, at_line, interrupted, lines_of
from txlog.core.names import TopicPartition


def call() -> str:
    return str(TopicPartition("a", 1)) + str(TopicPartition("b", 2))


def test_lists_the_lines_of_the_package_alone() -> None:
    lines = lines_of(call, times=9)
    assert lines
    assert {line.file for line in lines} == {"core/names.py"}
    assert max(line.nth for line in lines) == 2


def test_interrupts_before_each_line_that_runs() -> None:
    assert all(interrupted(line, call) for line in lines_of(call, times=9))
    assert not interrupted(Line("core/names.py", 1, 1), call)


def test_acts_once_and_goes_on() -> None:
    acts = []
    line = lines_of(call)[0]
    with at_line(line, lambda: acts.append(1)):
        call()
        call()
    assert acts == [1]
