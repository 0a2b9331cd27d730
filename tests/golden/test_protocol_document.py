"""PROTOCOL.md agrees with the code: its examples, fields, errors and features are the code's, and its rules are
cited."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from conf.site.hooks import GENERATED
from tests.golden.examples import PROTOCOL, examples, rendered
from txlog import errors
from txlog.core import features, records, schema
from txlog.core.records import Time

ROOT = PROTOCOL.parent
DOCUMENT = PROTOCOL.read_text()
HEADINGS = [match[1] for match in re.finditer(r"^#+ (.*)$", DOCUMENT, re.MULTILINE)]
STRUCTS = {
    name: kind
    for name, kind in {**vars(records), "StagedList": records.StagedList}.items()
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and not name.startswith("_")
}
STATED: dict[type[msgspec.Struct], tuple[str, ...]] = {records.StoreConstants: records.StoreConstants.__struct_fields__}
"""Fields that an object must hold although Python has a default, beside those that the object's type names."""
SHOWN_IN_WORDS = {
    "TransactionRow",
    "OffsetRow",
    "PendingOffsets",
    "GroupRow",
    "Heartbeat",
    "BatchMetadata",
    "RowRun",
    "OffsetRun",
}
RULES = re.findall(r"^\* \*\*([WRC]\d+[a-z]?)\*\*", DOCUMENT, re.MULTILINE)
INVARIANTS = [f"invariant {number}" for number in re.findall(r"^\| (\d+) \| \*\*", DOCUMENT, re.MULTILINE)]
FOLDERS = ("txlog", "spark_ext", "tests", "lab", "benchmarks")
SOURCES = {path: path.read_text() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
OF_OTHER_DOCUMENTS = re.compile(
    r"\bDESIGN\b|kafka-semantics|\b[Cc]ases? \d|[Pp]itfall|\b[Ss]ection \d|[Mm]odel m\d"
    r'|(?:#|"""|\() ?P\d+(?:, P\d+)*(?::|\)[."])|def test_(?:case_)?[mp]?\d+_',
    re.MULTILINE,
)
"""Numbers of a draft, and of a list of Kafka's behaviour. Neither is in this repository."""


def test_every_example_is_printed_from_the_golden_store() -> None:
    blocks = examples()
    assert rendered(DOCUMENT, blocks) == DOCUMENT, "run: python -m tests.golden.examples --write"
    assert {name for name in blocks if f"<!-- example: {name} -->" in DOCUMENT} == set(blocks)


def tables() -> dict[str, list[str]]:
    """Return the names in the first column of each table that follows a `<!-- fields: … -->`."""
    found = {}
    for match in re.finditer(r"<!-- fields: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)", DOCUMENT):
        cells = [line.split("|")[1] for line in match[2].splitlines()]
        found[match[1]] = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    return found


def cells(table: str, field: str) -> tuple[str, str]:
    """Return the cells for the type of a field, and for what it means if it is left out."""
    section = DOCUMENT.split(f"<!-- fields: {table} -->\n")[1].split("\n\n")[0]
    row = next(line for line in section.splitlines()[2:] if f"`{field}`" in line.split("|")[1])
    return row.split("|")[2].strip(), row.split("|")[3].strip()


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_every_field_of_every_object_stands_in_its_table_in_order(name: str) -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(STRUCTS[name])]
    if name in SHOWN_IN_WORDS:
        assert all(f"`{field}`" in DOCUMENT or field in DOCUMENT for field in fields)
    else:
        assert tables()[name] == fields


def absent(kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> str | None:
    """Return what a table says of a field that is left out; None if it is the absence that means something."""
    own: tuple[str, ...] = getattr(kind, "STATED", ())
    stated = STATED.get(kind, own)
    if field.required or field.encode_name in stated:
        return "damage"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return None if default is msgspec.UNSET else f"`{msgspec.json.encode(default).decode()}`"


@pytest.mark.parametrize("name", sorted(tables()))
def test_the_tables_say_what_a_field_means_that_is_left_out(name: str) -> None:
    kind = STRUCTS[name]
    types = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        said, found = cells(name, field.encode_name)
        expected = absent(kind, field)
        if found != "as in a commit record":
            assert found == expected if expected else found not in ("damage", ""), field.name
        if not said.startswith("as in"):
            assert (said == "time") == (types[field.name] == Time), field.name


def test_no_table_is_of_an_object_that_does_not_exist() -> None:
    assert set(tables()) <= set(STRUCTS)


def test_every_type_of_a_column_stands_in_the_table_of_types() -> None:
    types = DOCUMENT.split("\n## Types\n")[1].split("\n## ")[0]
    for name in (*schema.SCALAR_TYPES, "decimal(p,s)", "list", "map", "struct", *schema.RESERVED_PREFIXES):
        assert f"`{name}`" in types, name


def test_every_error_stands_beside_its_group() -> None:
    section = DOCUMENT.split("\n## Errors\n")[1].split("\n## ")[0]
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", section, re.MULTILINE)}
    root = errors.TxlogError
    groups = {group.__name__ for group in root.__subclasses__()}
    assert set(rows) == groups
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, root) and kind is not root and kind.__name__ not in groups:
            group = next(base.__name__ for base in kind.__mro__ if base.__name__ in groups)
            assert f"`{kind.__name__}`" in rows[group], kind


def test_every_feature_stands_in_the_table_of_features() -> None:
    section = DOCUMENT.split("\n## Features\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == set(features.KNOWN_FEATURES)


def test_rules_are_numbered_once_and_without_gaps() -> None:
    for letter in "WRC":
        numbers = [int(rule[1:]) for rule in RULES if rule[0] == letter and rule[1:].isdecimal()]
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), letter


def cited(text: str) -> set[str]:
    """Return the rules that a text names.

    `W10 to W15` names only its two ends, because a range does not point to a line.
    """
    rules = set(re.findall(r"\b[WRC]\d{1,2}[a-z]?\b", text))
    numbers = re.findall(r"\b[Ii]nvariants? ([1-9]\d*(?:(?:,| and|, and| to) \d+)*)", text)
    return rules | {f"invariant {number}" for found in numbers for number in re.findall(r"\d+", found)}


def is_shipped(path: Path) -> bool:
    """Return whether users run the file, which is not a test, the laboratory or the kit for tests."""
    parts = path.relative_to(ROOT).parts
    return parts[0] in ("txlog", "spark_ext") and "testing" not in parts


def test_every_rule_that_is_cited_exists() -> None:
    for path, text in {**SOURCES, **{page: page.read_text() for page in PAGES}}.items():
        assert cited(text) <= {*RULES, *INVARIANTS}, f"{path.name} cites {cited(text) - {*RULES, *INVARIANTS}}"


@pytest.mark.parametrize("where", ["shipped code", "a test, mutant or scenario"])
def test_every_rule_is_cited_where_it_is_kept_and_where_it_is_tested(where: str) -> None:
    texts = [
        text
        for path, text in SOURCES.items()
        if is_shipped(path) == (where == "shipped code") and path != Path(__file__)
    ]
    missing = {*RULES, *INVARIANTS} - cited("\n".join(texts))
    assert not missing, f"{sorted(missing)} stand in PROTOCOL.md, and no comment or docstring of {where} names them"


def test_no_text_cites_a_document_that_is_not_here() -> None:
    others = [path for folder in ("tests", "lab") for path in (ROOT / folder).rglob("*.md")]
    here = {path.name for path in (*PAGES, *ROOT.glob("*.md"), *others, *map(Path, GENERATED))}
    for path, text in {**SOURCES, **{page: page.read_text() for page in PAGES}}.items():
        if path != Path(__file__):
            found = OF_OTHER_DOCUMENTS.search(text)
            assert found is None, (
                f"{path.name} cites {found and found[0]!r}: say what it means, or name the rule of PROTOCOL.md"
            )
            assert set(re.findall(r"([\w-]+\.md)\b", text)) <= here, path.name


def test_every_section_that_is_cited_exists() -> None:
    for path, text in {**SOURCES, **{page: page.read_text() for page in PAGES}}.items():
        for section in re.findall(r'PROTOCOL\.md\)?, "([^"{}]+)"', text):
            assert " ".join(section.split()) in HEADINGS, f"{path.name} cites {section!r}"


def test_every_link_leads_to_a_heading() -> None:
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADINGS}
    links = set(re.findall(r"\]\(#([^)]*)\)", DOCUMENT))
    assert links <= anchors, links - anchors


def test_every_invariant_names_tests_that_exist() -> None:
    section = DOCUMENT.split("\n## Invariants\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row[0].strip("| ")) for row in rows] == list(range(1, 19))
    for row in rows:
        guards = re.findall(r"`(tests/[\w/]+\.py|benchmarks/[\w/]+\.py)`", row[-1])
        assert guards or "not yet implemented" in row[-1], row[0]
        for guard in guards:
            assert Path(ROOT, guard).is_file(), guard
