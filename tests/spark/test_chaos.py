"""Two minutes of chaos with a Spark job: its driver is killed like every other process, and each version is there
once."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from lab.chaos.settings import Settings, has_spark
from lab.chaos.show import Show
from lab.chaos.supervisor import chaos

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.storm
def test_a_storm_with_spark(tmp_path: Path) -> None:
    assert has_spark()
    printed = tmp_path / "printed"
    asked = Settings(
        url=str(tmp_path / "store"),
        storage_options={"fsync": False},
        histories=str(tmp_path / "histories"),
        seconds=120,
        seed=4,
    )
    with printed.open("w") as file:
        proof = chaos(asked, Show(Console(file=file, width=140)))
    print(printed.read_text())
    assert proof.holds, printed.read_text()
    assert "spark" in proof.versions
    assert proof.transactions["committed"] > 50
