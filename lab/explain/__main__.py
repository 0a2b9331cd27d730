"""Write the drawings and tables of the explanation pages again: `python -m lab.explain`.

With `--deliveries 50` it only kills the programs of docs/delivery.md, each 50 times, and writes the table of that page.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lab.explain import deliveries, pages
from lab.explain.costs import Prices
from lab.explain.deliveries import Outcome, Program


def main() -> None:
    """Run everything, and replace what has changed."""
    parser = argparse.ArgumentParser(prog="python -m lab.explain", description=__doc__, allow_abbrev=False)
    kills = "kill each program of docs/delivery.md so often, a query of Spark a fifth of it, and do nothing else"
    parser.add_argument("--deliveries", type=int, metavar="KILLS", help=kills)
    parser.add_argument("--seed", type=int, default=0, help="the seed that chooses the moments of these kills")
    chosen = parser.parse_args()
    if chosen.deliveries is not None:
        outcomes = [_kill(program, chosen.deliveries, chosen.seed) for program in deliveries.programs()]
        _replace(deliveries.PAGE, pages.delivery_blocks(outcomes))
        return
    found = pages.traces()
    pages.DRAWINGS.mkdir(exist_ok=True)
    for name, text in pages.commit_drawings(found).items():
        (pages.DRAWINGS / name).write_text(text, encoding="utf-8")
    blocks = pages.commit_blocks(found) | pages.isolation_blocks() | pages.cost_blocks(Prices())
    for page in ("how-a-commit-works.md", "isolation.md", "costs.md"):
        _replace(pages.DOCS / page, blocks)


def _kill(program: Program, kills: int, seed: int) -> Outcome:
    """Kill a program of docs/delivery.md at random.

    Raises AssertionError if the program does not keep what the page promises.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcome = deliveries.at_random(program, Path(folder), -(-kills // 5) if program.is_query else kills, seed)
    print(outcome, flush=True)
    assert outcome.is_kept
    return outcome


def _replace(page: Path, blocks: dict[str, str]) -> None:
    page.write_text(pages.replaced(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
