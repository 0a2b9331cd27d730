"""Does a stream read back its own checkpoint unchanged, and refuse everything else? No Spark needed."""

import json

import pytest
from hypothesis import given, strategies as st

from pyspark_txlog.stream_offsets import SOURCE_KEY, StreamOffset, is_stream_offset
from txlog.core.names import MAX_OFFSET, TopicPartition
from txlog.errors import InvalidRequestError

partitions = st.builds(
    TopicPartition,
    st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."}),
    st.integers(0, 2**31 - 1),
)
offsets = st.dictionaries(partitions, st.integers(0, MAX_OFFSET), max_size=6)


@given(ends=offsets, starts=st.none() | offsets, group_id=st.none() | st.text(max_size=5))
def test_an_offset_comes_back_from_its_text(ends, starts, group_id):
    offset = StreamOffset(store_id="9f3c", group_id=group_id, ends=ends, starts=starts)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(text) == offset
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert is_stream_offset(json.loads(text))


@given(ends=offsets)
def test_equal_offsets_are_equal_texts(ends):
    backwards = dict(reversed(ends.items()))
    texts = {
        json.dumps(StreamOffset(store_id="s", group_id=None, ends=each, starts=None).to_json())
        for each in (ends, backwards)
    }
    assert len(texts) == 1


def test_the_text_is_that_of_kafkas_source_and_one_more_key():
    ends = {TopicPartition("orders", 10): 7, TopicPartition("orders", 2): 5}
    offset = StreamOffset(store_id="9f3c", group_id="audit", ends=ends, starts={TopicPartition("orders", 2): 0})
    assert json.dumps(offset.to_json()) == (
        '{"orders": {"2": 5, "10": 7}, "txlog:source": {"group.id": "audit", "store": "9f3c", '
        '"start": {"orders": {"2": 0}}}}'
    )


def test_only_the_beginning_of_a_query_is_unresolved():
    def offset(ends, starts):
        return StreamOffset(store_id="s", group_id=None, ends=ends, starts=starts)

    orders = {TopicPartition("orders", 0): 0}
    assert offset({}, None).is_unresolved
    assert not any(each.is_unresolved for each in (offset({}, {}), offset(orders, None), offset(orders, orders)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"orders": {"0": 5}}',
        '{"orders": {"0": 5}, "txlog:source": "9f3c"}',
        '{"orders": {"0": 5}, "txlog:source": {"store": null}}',
        '{"orders": {"0": 5}, "txlog:source": {"store": "s", "group.id": 3}}',
        '{"orders": {"0": 5}, "txlog:source": {"store": "s", "start": 3}}',
        '{"orders": {"0": -1}, "txlog:source": {"store": "s"}}',
        '{"orders": {"0": true}, "txlog:source": {"store": "s"}}',
        '{"orders": {"00": 1}, "txlog:source": {"store": "s"}}',
        '{"orders": {"x": 1}, "txlog:source": {"store": "s"}}',
        '{"orders": [1], "txlog:source": {"store": "s"}}',
        '{"a:b": {"0": 1}, "txlog:source": {"store": "s"}}',
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text):
    with pytest.raises(InvalidRequestError, match=SOURCE_KEY):
        StreamOffset.from_json(text)
