"""Write the drawings and tables of the explanation pages again: `python -m lab.explain`."""

from __future__ import annotations

from lab.explain import pages
from lab.explain.costs import Prices


def main() -> None:
    """Run everything, and replace what has changed."""
    found = pages.traces()
    pages.DRAWINGS.mkdir(exist_ok=True)
    for name, text in pages.commit_drawings(found).items():
        (pages.DRAWINGS / name).write_text(text, encoding="utf-8")
    blocks = pages.commit_blocks(found) | pages.isolation_blocks() | pages.cost_blocks(Prices())
    for page in ("how-a-commit-works.md", "isolation.md", "costs.md"):
        path = pages.DOCS / page
        path.write_text(pages.replaced(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
