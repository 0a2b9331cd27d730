"""Which parts of the explanation pages come from a run? Tables and drawings, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lab.explain import costs
from lab.explain.anomalies import observed
from lab.explain.commits import LEVELS, TOPICS, Level, Step, Trace, trace
from lab.explain.costs import MONTH_S, Bill, Prices
from lab.explain.deliveries import Outcome
from lab.explain.drawing import drawings

DOCS = Path(__file__).parents[2] / "docs"
DRAWINGS = DOCS / "drawings"
_BLOCK = re.compile(r"(?<=<!-- measured: )([a-z-]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
_VERBS = {"put_if_absent": "PUT if absent", "write_file": "PUT", "get": "GET", "get_range": "GET", "list": "LIST"}


def replaced(page: str, blocks: Mapping[str, str]) -> str:
    """Return the page with its measured blocks. A block that is not in `blocks` stays."""
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{blocks.get(found[1], found[3])}", page)


def names(page: str) -> list[str]:
    """Return the names of the measured blocks of a page."""
    return [found[1] for found in _BLOCK.finditer(page)]


def traces() -> dict[str, Trace]:
    """Return the commits of how-a-commit-works.md."""
    return {
        "staged": trace(),
        "eager": trace(staged=False),
        "aborted": trace(staged=False, commit=False),
        "offsets": trace(offsets=True),
    }


def commit_drawings(found: Mapping[str, Trace]) -> dict[str, str]:
    """Return the drawings by file name."""
    return {**drawings("commit-staged", found["staged"].steps), **drawings("commit-eager", found["eager"].steps)}


def commit_blocks(found: Mapping[str, Trace]) -> dict[str, str]:
    """Return the blocks of how-a-commit-works.md."""
    blocks = {f"steps-{name}": _steps(each.steps) for name, each in found.items()}
    return {**blocks, **{f"requests-{name}": _requests(found[name]) for name in ("staged", "eager", "offsets")}}


def isolation_blocks() -> dict[str, str]:
    """Return the blocks of isolation.md."""
    rows = [[name, *("**possible**" if at[level] else "no" for level in _ORDER)] for name, at in observed().items()]
    return {"anomalies": _table(["anomaly", *(f"`{level}`" for level in _ORDER[:2]), "snapshot"], rows)}


def delivery_blocks(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return the block of delivery.md."""
    rows = [
        [each.program.role, each.program.delivery]
        + [f"{count:,}" for count in (each.kills, each.rows, each.lost, each.doubled)]
        for each in outcomes
    ]
    return {"deliveries": _table(["program", "promises", "kills", "rows", "lost", "doubled"], rows)}


_ORDER: tuple[Level, ...] = ("read_uncommitted", "read_committed", "snapshot")


def cost_blocks(prices: Prices, *names: str) -> dict[str, str]:
    """Return the blocks of costs.md, by default all of them."""
    return {name: _COSTS[name](prices) for name in names or _COSTS}


def _prices(prices: Prices) -> str:
    rows = [
        ["1,000 requests PUT, COPY, POST, LIST", _usd(prices.put_1000)],
        ["1,000 requests GET, HEAD", _usd(prices.get_1000)],
        ["DELETE", "0"],
        ["1 GB for a month", _usd(prices.gb_month)],
    ]
    return _table(["what", f"US dollars in {prices.region}"], rows)


def _writes(prices: Prices) -> str:
    rows = [
        [name, *_counts(bill), _usd(bill.usd(prices) * 10_000), _usd(bill.usd(prices) * MONTH_S)]
        for name, bill in costs.writes().items()
    ]
    return _table(["a commit of 100 rows", "PUT, LIST", "GET, HEAD", "1 million rows", "a month, 1 commit/s"], rows)


def _rows(prices: Prices) -> str:
    rows = [
        [f"{count:,}", *_counts(bill), f"{10**6 // count:,}", _usd(bill.usd(prices) * 10**6 / count)]
        for count, bill in costs.rows_a_commit().items()
    ]
    return _table(["rows a transaction", "PUT, LIST", "GET, HEAD", "transactions", "1 million rows"], rows)


def _reads(prices: Prices) -> str:
    heads = [f"after {costs.READ_COMMITS:,} transactions of 100 rows", "PUT, LIST", "GET, HEAD", "US dollars"]
    return _table(heads, [[name, *_counts(bill), _usd(bill.usd(prices))] for name, bill in costs.reads().items()])


def _idle(prices: Prices) -> str:
    return _hours("an hour without new rows", costs.idle_hours(), prices)


def _example(prices: Prices) -> str:
    """Return the table of a whole store, with its sum."""
    hour = costs.example_hour()
    hour["all"] = sum(hour.values(), Bill(0, 0))
    return _hours("an hour", hour, prices)


def _hours(head: str, bills: Mapping[str, Bill], prices: Prices) -> str:
    rows = [[name, *_counts(bill), _usd(bill.usd(prices) * MONTH_S / 3600)] for name, bill in bills.items()]
    return _table([head, "PUT, LIST", "GET, HEAD", "a month"], rows)


_COSTS: dict[str, Callable[[Prices], str]] = {
    "prices": _prices,
    "writes": _writes,
    "rows": _rows,
    "reads": _reads,
    "idle": _idle,
    "example": _example,
}
"""How a block of costs.md is made."""


def _steps(steps: tuple[Step, ...]) -> str:
    heads = ["step", "new object", "contents", *(f"`{topic}/0` LSO, LEO" for topic in TOPICS)]
    heads += [*(f"`{level}`" if level != "snapshot" else level for level in LEVELS), "after a crash here"]
    return _table(heads, [_step_row(number, step) for number, step in enumerate(steps)])


def _step_row(number: int, step: Step) -> list[str]:
    if step.successor != step.sweep or step.successor not in {(), TOPICS}:
        raise AssertionError(f"{step.path}: recovered to {step.successor} and {step.sweep}")
    ends = [f"{stable}, {end}" for stable, end in step.ends.values()]
    shown = ["both" if step.shown[level] == TOPICS else " ".join(step.shown[level]) or "-" for level in LEVELS]
    after = "new rows in both topics" if step.successor else "no new row"
    return [str(number), f"`{_short(step.path)}`" if number else "-", step.label or "-", *ends, *shown, after]


def _requests(found: Trace) -> str:
    lines = [f"{_VERBS[verb]:<14} {_short(path)}" for verb, path in found.requests]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _short(path: str) -> str:
    """Return the path with the leading zeros of its number left out, as in `orders/0/…2.batch`."""
    return re.sub(r"(?<![0-9])0{10,}(?=[0-9])", "…", path)


def _counts(bill: Bill) -> list[str]:
    return [f"{each:,.2f}" if each < 100 and each != round(each) else f"{each:,.0f}" for each in (bill.puts, bill.gets)]


def _usd(dollars: float) -> str:
    if dollars >= 100:
        return f"{dollars:,.0f}"
    digits = next((each for each in range(2, 9) if round(dollars, each) >= 10 ** (1 - each)), 8)
    return f"{dollars:.{digits}f}"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] + ["---:" if _is_number(cell) else "---" for cell in rows[-1][1:]], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[0-9.,]+", cell) is not None
