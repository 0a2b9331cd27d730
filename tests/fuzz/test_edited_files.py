"""A hostile writer of a Parquet file can write digests and CRCs that fit.

Its bytes give rows or an error of txlog's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from tests.effort import cases
from tests.fuzz.edited_files import FILES, GOLDEN, SHORT_BOUND, Opener

SMALLEST = min(FILES, key=lambda path: len(GOLDEN[path]))
INLINE_0, INLINE_1, ONE = (
    next(path for path in FILES if path.startswith(f"orders/{folder}"))
    for folder in ("0/rows/29-0", "0/rows/35-0", "1/rows/110-0")
)


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    one = Opener()
    yield one
    one.close()


def test_without_edits_there_are_rows(opener: Opener) -> None:
    assert {opener.open(path, []).end for path in FILES} == {"rows"}


@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_other_bytes(opener: Opener, path: str, edits: list[tuple[int, int]]) -> None:
    """Footers are also edited: Thrift of any kind."""
    answer = opener.open(path, edits)
    assert answer.end in ("rows", "error") or answer == SHORT_BOUND, answer.text


@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_every_byte(opener: Opener, bits: int) -> None:
    """This needs no luck to find what a file's footer can do."""
    data = GOLDEN[SMALLEST]
    found = {at: opener.open(SMALLEST, [(at, data[at] ^ bits)]) for at in cases(range(len(data) - 8))}
    wrong = {at: answer for at, answer in found.items() if answer.end not in ("rows", "error")}
    assert all(answer == SHORT_BOUND for answer in wrong.values()), wrong
    assert "error" in {answer.end for answer in found.values()}


@pytest.mark.parametrize(
    ("path", "edits", "words"),
    [
        # pyarrow ended the process: no handler for exceptions of C++ around the metadata of a column.
        (INLINE_0, [(3699, 120)], "Definition level histogram size mismatch"),
        (ONE, [(7831, 111)], "Definition level histogram size mismatch"),
        (INLINE_1, [(3535, 66)], "Repetition level histogram size mismatch"),
        (INLINE_1, [(3547, 65)], "and the schema says"),
        (ONE, [(9863, 4)], "and the schema says"),
        (INLINE_0, [(3803, 0)], "and the schema says"),
        # The name of the writer is not valid UTF-8.
        (INLINE_1, [(7568, 145)], "the name of its writer"),
    ],
)
def test_footers_that_ended_the_process(opener: Opener, path: str, edits: list[tuple[int, int]], words: str) -> None:
    answer = opener.open(path, edits)
    assert answer.end == "error", answer
    assert words in answer.text


def test_a_bound_that_is_shorter_than_its_type(opener: Opener) -> None:
    """The one known death (docs/reliability.md): pyarrow gives no access to the bytes of a bound before it decodes
    them."""
    answer = opener.open(INLINE_1, [(5105, 22), (4881, 133)])
    assert answer == SHORT_BOUND or answer.end == "error", answer
    assert opener.open(INLINE_1, []).end == "rows"
