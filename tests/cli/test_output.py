"""Tables, fields and documents: in a pipe, at a terminal, as JSON."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest

from txlog.cli.output import Output, OutputFormat, cell_of, encode_document, struct_table, tabulate

TEXT = Output(OutputFormat.TEXT)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Terminal:
    """Make the standard output a narrow terminal. (As a fixture it would fail: pytest sets its own output before the
    test.)"""
    found = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "20", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", found)
    return found


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    offset: int
    metadata: str = ""


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    flag: bool = False
    none: int = -1
    sizes: tuple[int, ...] = ()
    inner: Inner | None = None
    parts: tuple[Inner, ...] = ()


def test_a_plain_table_is_aligned_and_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    TEXT.table(("name", "rows", "note"), [("a", 7, None), ("b" * 300, 12345, "x"), ("", None, "")], empty="none")
    header, first, long, last = capsys.readouterr().out.splitlines()
    assert header == f"{'NAME':<300}   ROWS  NOTE"
    assert first == f"{'a':<300}      7  -"
    assert long == f"{'b' * 300}  12345  x"
    assert last == f"{'-':<300}      -  -"


def test_an_empty_table_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    TEXT.table(("name",), [], empty="There is nothing.")
    assert capsys.readouterr().out == "There is nothing.\n"


def test_fields_and_headings(capsys: pytest.CaptureFixture[str]) -> None:
    TEXT.heading("Ends")
    TEXT.fields([("log start", 0), ("end", None)])
    assert capsys.readouterr().out == "\nEnds\nlog start  0\nend        -\n"


def test_a_terminal_gets_colours_and_whole_values(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    TEXT.table(("state", "object"), [("aborted", "0" * 60), ("[red]no markup[/red]", "x")], empty="")
    TEXT.fields([("state", "open")])
    TEXT.heading("More")
    text = screen.getvalue()
    assert "\x1b[31maborted" in text
    assert "\x1b[33mopen" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "0" * 60 in plain
    assert "[red]no markup[/red]" in plain


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, NO_COLOR="1")
    TEXT.table(("state",), [("aborted",)], empty="")
    assert "\x1b[31m" not in screen.getvalue()


def test_structs_are_taken_apart() -> None:
    part = Inner(offset=3)
    value = Outer(name="a", count=0, sizes=(1, 2), inner=Inner(offset=5, metadata="m"), parts=(part,))
    cells, tables = tabulate(value)
    assert cells == {"name": "a", "count": 0, "sizes": "[1,2]", "inner.offset": 5, "inner.metadata": "m"}
    assert tables == {"parts": [part]}
    assert tabulate(Outer(name="a", count=1))[0] == {"name": "a", "count": 1}
    assert tabulate(Outer(name="a", count=1), complete=True)[0]["none"] == -1


def test_a_table_of_structs_shows_what_any_of_them_says() -> None:
    columns, rows = struct_table([Outer(name="a", count=1), Outer(name="b", count=2, none=7, parts=(Inner(offset=1),))])
    assert columns == ["name", "count", "none", "parts"]
    assert rows == [["a", 1, -1, "[]"], ["b", 2, 7, '[{"offset":1,"metadata":""}]']]


def test_cells() -> None:
    assert [cell_of(value) for value in ("x", 7, "", None, True, [1], {"a": 1}, 0.5)] == [
        "x",
        7,
        None,
        None,
        "true",
        "[1]",
        '{"a":1}',
        "0.5",
    ]


def test_documents_are_json_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert encode_document(Inner(offset=3)) == '{\n  "offset": 3,\n  "metadata": ""\n}\n'
    Output(OutputFormat.JSON).show([], lambda out: out.line("text"))
    TEXT.show([], lambda out: out.line("text"))
    assert capsys.readouterr().out == "[]\ntext\n"
