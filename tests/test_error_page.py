"""Has the reference of errors every error and every message, and can each be found?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from conf.site.errors import anchors_of, kafka_codes, page, sections
from conf.site.messages import CLASSES, NOT_LISTED, NOTE, PACKAGES
from txlog.errors import TxlogError

NAMES = {*(kind.__name__ for kind in CLASSES), NOTE}


@pytest.fixture(scope="module")
def text() -> str:
    return page()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_has_meaning_cause_and_remedy(kind: type[TxlogError], text: str) -> None:
    parts = sections(kind)
    assert all(len(parts[name].split()) >= 3 for name in ("Meaning", "Cause", "What to do"))
    part = text.partition(f"\n## {kind.__name__} {{")[2].partition("\n## ")[0]
    assert parts["Meaning"] in part
    assert "* **Cause:** " in part
    assert "* **What to do:** " in part


def test_kafkas_names_are_there(text: str) -> None:
    codes = kafka_codes()
    assert set(codes) == {kind.__name__ for kind in CLASSES} - {"TxlogError"}
    for name, code in codes.items():
        assert f"\n* **Kafka:** {code}\n" in text or not code, name
    assert codes["ProducerFencedError"] == "PRODUCER_FENCED"


def test_every_text_of_the_source_is_there(text: str) -> None:
    # The page shows one text for each variant of a message; here each constant part of the source must be in one of
    # them.
    words = " ".join(text.split())
    missing = [(where, part) for where, part in _constant_parts() if part not in words]
    assert missing == []


def test_a_helpers_reason_is_part_of_the_message(text: str) -> None:
    assert "`where = <text>: <found>: a comparison with NULL is never true; use IS NULL`" in text.replace(
        "<expression>", "<sql>"
    )
    assert (
        "group '<group>': member '<member_id>' of generation <generation> may not commit: another member reads" in text
    )


def test_the_reasons_for_the_python_data_source_are_there(text: str) -> None:
    notes = text.partition("\n## Notes of Spark {")[2]
    assert (
        "### `the option 'metadata' does not read rows` { #note-the-option-metadata-does-not-read-rows .message }"
        in notes
    )


def test_the_page_lists_what_a_user_can_meet(text: str) -> None:
    shown = re.sub(
        r"<style>.*?</style>|</?(?:form|label|textarea|button|div|script)\b[^>]*>|\{ #[^}]*\}",
        " ",
        text,
        flags=re.DOTALL,
    )
    assert len(re.findall(r"\S*\w\S*", shown)) < 20_000
    assert "was to be stopped by" not in text, "no message of the test kit"
    assert all(
        (package.parent / name).exists() for name in NOT_LISTED for package in PACKAGES if name.startswith(package.name)
    )


def test_a_page_that_a_text_names_is_a_link(text: str) -> None:
    assert " See [After a lost checkpoint](../lost-checkpoint.md).\n" in text


def test_anchors_are_unique_and_readable(text: str) -> None:
    anchors = re.findall(r"^##+ .* \{ #([\w-]+)(?: \.message)? \}$", text, re.MULTILINE)
    assert len(anchors) == len(re.findall(r"^##+ ", text, re.MULTILINE))
    assert len(set(anchors)) == len(anchors)
    assert "storage-option-must-be-true-or-false-found" in " ".join(anchors)


def test_an_anchor_comes_from_the_text_alone() -> None:
    texts = [
        "topic '<name>' exists already",
        "topic '<topic>' has <n> rows. hint: look",
        "topic '<topic>' has <n> rows",
    ]
    anchors = anchors_of(texts)
    assert anchors[texts[0]] == "topic-exists-already" == anchors_of(texts[:1])[texts[0]]
    assert len(set(anchors.values())) == 3
    assert anchors == anchors_of(texts[::-1])


def _constant_parts() -> Iterator[tuple[str, str]]:
    """Yield the longest constant part of each text that is raised as an error of txlog, with its place."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if f"{package.name}/{path.relative_to(package).as_posix()}".startswith(NOT_LISTED):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    called = node.exc.func
                    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                    first = node.exc.args[0]
                    if name in NAMES and isinstance(first, ast.JoinedStr | ast.Constant):
                        parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                        texts = [
                            each.value
                            for each in parts
                            if isinstance(each, ast.Constant) and isinstance(each.value, str)
                        ]
                        longest = " ".join(max(texts, key=len, default="").split())
                        for part in re.split(r"\.? ?hint:(?: |$)", longest):
                            yield f"{path.name}:{node.lineno}", part.strip().removesuffix(".")
