"""How large is what the wheel ships? Count lines of code: without blank lines, comments and docstrings.

    python scripts/code_lines.py            # one line for each room, and the sum
    python scripts/code_lines.py --modules  # one line for each module, the largest first

`tests/test_package.py` keeps the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What [tool.hatch.build.targets.wheel] in pyproject.toml packages.
PACKAGES = (ROOT / "txlog", ROOT / "spark_ext" / "pyspark_txlog")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Count the lines of `source` that hold code, also those of a long text other than a docstring."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    written = source.splitlines()
    return sum(1 for line in lines.difference(_docstring_lines(source)) if written[line - 1].strip())


def _docstring_lines(source: str) -> Iterator[int]:
    """Yield the lines of texts that are whole statements: docstrings, and those below an attribute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)


def shipped() -> dict[str, int]:
    """Return the lines of code of each module in the wheel, by its path from the repository."""
    return {
        module.relative_to(ROOT).as_posix(): code_lines(module.read_text(encoding="utf-8"))
        for package in PACKAGES
        for module in sorted(package.rglob("*.py"))
    }


def room(module: str) -> str:
    """Return the folder, or the package, that `module` belongs to: `txlog/core`, `pyspark_txlog/native`."""
    folders = module.removeprefix("spark_ext/").split("/")[:-1]
    return "/".join(folders[:2])


def rooms(modules: dict[str, int]) -> dict[str, int]:
    """Return the sum for each room, the largest first."""
    sums: Counter[str] = Counter()
    for module, lines in modules.items():
        sums[room(module)] += lines
    return dict(sums.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modules", action="store_true", help="one line for each module, not for each room")
    modules = shipped()
    shown = (
        sorted(modules.items(), key=lambda each: -each[1]) if parser.parse_args().modules else rooms(modules).items()
    )
    for name, lines in shown:
        print(f"{lines:7,} {name}")
    print(f"{sum(modules.values()):7,} in {len(modules)} modules")


if __name__ == "__main__":
    main()
