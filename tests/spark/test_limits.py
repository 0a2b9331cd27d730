"""Does a batch keep its limits for any backlog? No Spark needed."""

from hypothesis import given, strategies as st

from pyspark_txlog.source.stream_source import at_most, available, is_due
from txlog.core.names import TopicPartition

backlogs = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), max_size=8)


@given(backlog=backlogs, limit=st.integers(1, 2**41))
def test_a_batch_is_bounded_fair_and_moves_on(backlog, limit):
    starts = {TopicPartition("orders", number): start for number, (start, _) in enumerate(backlog)}
    ends = {TopicPartition("orders", number): sum(each) for number, each in enumerate(backlog)}
    chosen = at_most(starts, ends, limit)
    assert chosen.keys() == ends.keys()
    assert all(starts[tp] <= chosen[tp] <= ends[tp] for tp in ends)
    assert all(chosen[tp] > starts[tp] for tp in ends if ends[tp] > starts[tp])
    taken = available(starts, chosen)
    assert taken <= limit + len(ends)
    assert available(starts, ends) > limit or chosen == ends


@given(backlog=backlogs, limit=st.integers(1, 2**41))
def test_a_backlog_comes_to_an_end(backlog, limit):
    starts = {TopicPartition("orders", number): start for number, (start, _) in enumerate(backlog)}
    ends = {TopicPartition("orders", number): sum(each) for number, each in enumerate(backlog)}
    for _ in range(200):
        if starts == ends or limit < available(starts, ends) // 100:
            return
        starts = at_most(starts, ends, limit)
    raise AssertionError(f"{available(starts, ends)} offsets are left")


def test_a_batch_is_due_when_there_is_enough_or_any_has_waited_long_enough():
    due = {(offsets, waited): is_due(offsets, waited, 10, 100) for offsets in (0, 1, 9, 10) for waited in (99, 100)}
    assert due == {
        **{(offsets, 99): offsets == 10 for offsets in (0, 1, 9, 10)},
        **{(offsets, 100): offsets > 0 for offsets in (0, 1, 9, 10)},
    }
