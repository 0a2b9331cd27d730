"""The same kills over an object store: SIGKILL at every write of each operation, and storms, over the S3 protocol.

`make test-storm` runs this; `make test` kills at every write on the local store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from lab.chaos.settings import Settings
from lab.chaos.show import Show
from lab.chaos.supervisor import chaos
from tests.crash.operations import OPERATIONS
from tests.crash.processes import Place, kill_everywhere
from tests.servers.start import Server, start

pytestmark = [pytest.mark.slow, pytest.mark.storm]
SECONDS = 120


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start("s3") as started:
        yield started


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_every_write(server: Server, name: str, tmp_path: Path) -> None:
    folder = re.sub(r"\W+", "-", name)

    def place(point: str) -> Place:
        return Place(url=server.store_url(f"{folder}/{point}"), options=server.storage_options)

    # Except for the first write, "before a write" is "after the one before it"; the local store's test has both.
    done = kill_everywhere(name, place, tmp_path, moments=("after",))
    print(f"{name}: {done.kills} SIGKILLs")
    assert done.kills > 0


@pytest.mark.timeout(600)
def test_a_storm(server: Server, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    asked = Settings(
        url=server.store_url("storm"),
        storage_options=server.storage_options,
        histories=str(tmp_path / "histories"),
        seconds=SECONDS,
        spark=False,
    )
    with printed.open("w") as file:
        proof = chaos(asked, Show(Console(file=file, width=140)))
    print(printed.read_text())
    assert proof.holds, printed.read_text()
    assert proof.transactions["committed"] > 10
