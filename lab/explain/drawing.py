"""How does a step of a commit look? A small SVG without any text outside the measured facts of the step.

The drawing follows the light or dark scheme of the system. It paints its background, so it can also be read on a page
with the other scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lab.explain.commits import LEVELS, Slot, Step

WIDTH, BOX, GAP, LEFT = 560, 132, 4, 10
LANE, BOX_HEIGHT = 90, 42
SHOWN_SLOTS = 4
STYLE = """
 .page{fill:#fff;stroke:#d0d4da}.text{fill:#1f2328}.faint{fill:#59636e}.old{fill:#eef1f4;stroke:#8c959f}
 .row{fill:#fff3c4;stroke:#b58100}.commit{fill:#d3f4dc;stroke:#1a7f37}.abort{fill:#ffe0dd;stroke:#cf222e}
 .table{fill:#ddf0ff;stroke:#0969da}.lso{stroke:#8250df;fill:#8250df}.leo{stroke:#59636e;fill:#59636e}
 @media (prefers-color-scheme:dark){
 .page{fill:#161b22;stroke:#3d444d}.text{fill:#e6edf3}.faint{fill:#9da7b3}.old{fill:#2a313a;stroke:#656d76}
 .row{fill:#4d3a08;stroke:#d4a72c}.commit{fill:#12432a;stroke:#3fb950}.abort{fill:#5a1e20;stroke:#f85149}
 .table{fill:#0c3360;stroke:#4493f8}.lso{stroke:#be8fff;fill:#be8fff}.leo{stroke:#9da7b3;fill:#9da7b3}}
 text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}.name{font-weight:600}.small{font-size:13px}
 .line{stroke-width:1.5;fill:none}.mark{stroke:none}.box{stroke-width:1}.new{stroke-width:3}
""".strip()


def drawing(step: Step, number: int) -> str:
    """Return the SVG of a step: the commit records of each folder, where readers stand, and what they see."""
    folders = sorted({slot.folder for slot in step.slots}, key=lambda folder: (not folder.startswith("__"), folder))
    parts: list[str] = []
    top = 12
    for folder in folders:
        parts += _lane(step, folder, top)
        top += LANE
    for level in LEVELS:
        top += 18
        topics = step.shown[level]
        parts.append(_text(LEFT, top, level, "faint"))
        parts.append(
            _text(
                LEFT + 160,
                top,
                f"shows the new rows of {' and '.join(topics)}" if topics else "shows no new row",
                "text",
            )
        )
    height = top + 14
    what = f"step {number}: {step.label} in {step.path}" if number else "before the transaction"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">\n'
        f"<title>{escape(what)}</title>\n<style>\n{STYLE}\n</style>\n"
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _lane(step: Step, folder: str, top: int) -> list[str]:
    slots = [slot for slot in step.slots if slot.folder == folder]
    shown = slots[-SHOWN_SLOTS:]
    parts = [_text(LEFT, top + 14, folder, "text name")]
    y = top + 24
    left = LEFT
    edges: dict[int, int] = {}
    for slot in shown:
        edges[slot.base] = left
        parts += _box(slot, left, y, is_last=slot is slots[-1] and f"{slot.folder}/{slot.base:020d}.batch" == step.path)
        left += BOX + GAP
        edges[slot.end] = left
    if folder in step.ends:
        parts += _ends(step.ends[folder], edges, y)
    return parts


def _box(slot: Slot, x: int, y: int, *, is_last: bool) -> list[str]:
    kind = "old" if not slot.is_new else _colour(slot)
    offsets = f"{slot.base}" if slot.end == slot.base + 1 else f"{slot.base} to {slot.end - 1}"
    return [
        f'<rect class="box {kind}{" new" if is_last else ""}" x="{x}" y="{y}" width="{BOX}" '
        f'height="{BOX_HEIGHT}" rx="4"/>',
        _text(x + 6, y + 17, offsets, "faint small"),
        _text(x + 6, y + 34, slot.label, "text small"),
    ]


def _colour(slot: Slot) -> str:
    if slot.folder.startswith("__"):
        return "table"
    return "commit" if "COMMIT" in slot.label else "abort" if "ABORT" in slot.label else "row"


def _ends(ends: tuple[int, int], edges: dict[int, int], y: int) -> list[str]:
    stable, end = ends
    marks = [("LSO = LEO", stable, "lso")] if stable == end else [("LSO", stable, "lso"), ("LEO", end, "leo")]
    parts = []
    for name, offset, kind in marks:
        x = edges[offset] - GAP // 2
        parts.append(f'<path class="line {kind}" d="M{x} {y - 4}V{y + BOX_HEIGHT + 5}"/>')
        after = x + 5 + 9 * 8 < WIDTH
        anchor = "start" if after else "end"
        parts.append(
            _text(x + 5 if after else x - 5, y + BOX_HEIGHT + 14, f"{name} {offset}", f"{kind} small mark", anchor)
        )
    return parts


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x}" y="{y}" class="{kind}"{where}>{escape(text)}</text>'


def drawings(name: str, steps: Sequence[Step]) -> dict[str, str]:
    """Return each drawing by its file name."""
    return {f"{name}-{number}.svg": drawing(step, number) for number, step in enumerate(steps)}
