"""The programs of docs/publish.md print what the page shows. They need readers of the other formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import programs, python, run

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_the_programs_of_the_page_run_in_order(tmp_path: Path) -> None:
    for program in programs("docs/publish.md"):
        if program.language == "python":
            found = python(tmp_path, [program])[0]
        else:
            found = run(tmp_path, "bash", "-euc", program.code)
        if program.printed:
            assert found.strip() == program.printed.strip()
