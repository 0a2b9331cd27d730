"""How is a page written as HTML that needs no script, no network and no other file?

Every text of the store goes through `_text`: it cannot be markup, and no character in it is invisible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from txlog.drawing.values import LEGEND, Cell, Columns, Lanes, Page, Section, Table, visible
from txlog.text import count_text, shorten

MAX_ROWS = 500
"""Rows of a table. The note below it tells how many are left out."""
_LONGEST = 300
_OPEN_ROWS = 12
"""A longer table is folded."""

_COLOURS = {
    "ground": ("#ffffff", "#15181d"),
    "panel": ("#f6f7f9", "#1d2127"),
    "text": ("#1b1f24", "#e6e9ee"),
    "quiet": ("#5b6470", "#9aa4b2"),
    "grid": ("#d5dae1", "#3a414c"),
    "committed": ("#2f74c0", "#5b9fe6"),
    "aborted": ("#c8452d", "#ef7a5f"),
    "open": ("#e0a100", "#f2c14e"),
    "control": ("#9aa3ae", "#6b7480"),
    "unread": ("#c9ced6", "#4a515c"),
    "deleted": ("#e3e6eb", "#2c323b"),
    "sealed": ("#7fa8b8", "#5d8696"),
    "merged": ("#2b8a78", "#3fb39d"),
    "compacted": ("#7b5ea7", "#a88ad6"),
    "tail": ("#d98a3d", "#e8a765"),
    "lso": ("#1b1f24", "#ffffff"),
    "end": ("#8a929d", "#8a929d"),
    "ongoing": ("#e0a100", "#f2c14e"),
    "prepare": ("#7b5ea7", "#a88ad6"),
    "timeout": ("#8c1d40", "#ff5c8a"),
    "lag": ("#d98a3d", "#e8a765"),
    "published": ("#2b8a78", "#3fb39d"),
    "discarded": ("#9aa3ae", "#6b7480"),
    "failed": ("#c8452d", "#ef7a5f"),
}
"""Role -> its colour in light and in dark."""


def _variables(which: int) -> str:
    return "".join(f"--tx-{role}:{colours[which]};" for role, colours in _COLOURS.items())


_STYLE = (
    f"""
.txlog {{{_variables(0)}color-scheme:light dark}}
@media (prefers-color-scheme: dark) {{.txlog {{{_variables(1)}}}}}
"""
    + """
.txlog {background:var(--tx-ground);color:var(--tx-text);font:15px/1.5 system-ui,sans-serif;padding:1px 1rem;
  overflow-wrap:anywhere}
.txlog h1 {font-size:1.5rem;margin:1rem 0 0;line-height:1.25}
.txlog h2 {font-size:1.15rem;margin:2rem 0 .3rem}
.txlog h3 {font-size:1rem;margin:1.2rem 0 .2rem}
.txlog p {margin:.2rem 0 .6rem;color:var(--tx-quiet)}
.txlog .warning {color:var(--tx-text);border-left:4px solid var(--tx-failed);padding:.3rem .7rem;
  background:var(--tx-panel)}
.txlog dl {display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0}
.txlog dl div {background:var(--tx-panel);border-radius:6px;padding:.5rem .7rem}
.txlog dt {color:var(--tx-quiet);font-size:.8rem}
.txlog dd {margin:0;font-size:1.05rem;font-weight:600}
.txlog .scroll {overflow-x:auto;max-width:100%}
.txlog svg {display:block;width:100%;min-width:760px;max-width:1180px;height:auto}
.txlog svg text {font:10px system-ui,sans-serif}
.txlog ul {list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.3rem 0;font-size:.85rem}
.txlog ul i {display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.txlog ul i.line {width:3px;height:1.1em;vertical-align:-.2em;border-radius:0}
.txlog summary {cursor:pointer;color:var(--tx-quiet);font-size:.85rem}
.txlog .scroll table {width:max-content}
.txlog table {border-collapse:collapse;font-size:.85rem;margin:.3rem 0;color:inherit}
.txlog th,.txlog td {text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid var(--tx-grid);
  vertical-align:top;max-width:26rem;min-width:2.5rem;overflow-wrap:anywhere;background:none}
.txlog th {color:var(--tx-quiet);font-weight:500;white-space:nowrap}
.txlog td {unicode-bidi:isolate}
.txlog td.n,.txlog th.n {text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
"""
)

Draw = Callable[[Lanes | Columns], str]


def document(page: Page, draw: Draw) -> str:
    """Return the page as a complete HTML document."""
    title = _text(page.title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"<style>html,body{{margin:0}}body.txlog{{min-height:100vh;box-sizing:border-box}}{_STYLE}</style></head>"
        f'<body class="txlog"><h1>{title}</h1><p>{_text(page.subtitle)}</p>{_body(page, draw)}</body></html>\n'
    )


def fragment(sections: Sequence[Section], draw: Draw) -> str:
    """Return sections as a part of another document, such as a notebook."""
    return f'<div class="txlog"><style>{_STYLE}</style>{"".join(_section(each, draw) for each in sections)}</div>'


def table(shown: Table, title: str) -> str:
    """Return a plain table."""
    return f"<table><caption>{_text(title)}</caption>{_rows(shown)}</table>"


def _body(page: Page, draw: Draw) -> str:
    warnings = "".join(f'<p class="warning">{_text(each)}</p>' for each in page.warnings)
    figures = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in page.figures)
    summary = f"<dl>{figures}</dl>" if figures else ""
    return warnings + summary + "".join(_section(each, draw) for each in page.sections)


def _section(section: Section, draw: Draw) -> str:
    note = f"<p>{_text(section.note)}</p>" if section.note else ""
    drawing = ""
    if section.drawing is not None:
        drawing = f'<div class="scroll" tabindex="0">{draw(section.drawing)}</div>{_legend(section.legend)}'
    table = "" if section.table is None else _table(section.table, section.title)
    level = 3 if section.is_part else 2
    return f"<section><h{level}>{_text(section.title)}</h{level}>{note}{drawing}{table}</section>"


def _legend(kinds: Sequence[str]) -> str:
    return f"<ul>{''.join(_key(kind) for kind in kinds)}</ul>"


def _key(kind: str) -> str:
    line = ' class="line"' if kind in ("lso", "end") else ""
    return f'<li><i{line} style="background:var(--tx-{kind})"></i>{escape(LEGEND[kind])}</li>'


def _table(shown: Table, title: str) -> str:
    if not shown.rows:
        return "<p>None.</p>"
    left = len(shown.rows) - MAX_ROWS
    more = f"<p>{left:,} further rows are left out.</p>" if left > 0 else ""
    unfolded = " open" if len(shown.rows) <= _OPEN_ROWS else ""
    return (
        f"<details{unfolded}><summary>Table: {_text(title)}, {count_text(len(shown.rows), shown.noun)}</summary>"
        f'<div class="scroll" tabindex="0"><table>{_rows(shown)}</table></div>{more}</details>'
    )


def _rows(shown: Table) -> str:
    classes = [
        ' class="n"' if all(isinstance(row[at], int | None) for row in shown.rows) else ""
        for at in range(len(shown.columns))
    ]
    heads = "".join(
        f'<th scope="col"{kind}>{_text(each)}</th>' for kind, each in zip(classes, shown.columns, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown.rows[:MAX_ROWS])
    return f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"


def _cell(value: Cell) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{'-' if value is None else _text(value)}</td>"


def _text(text: str) -> str:
    return escape(shorten(visible(text), _LONGEST))
