"""The same deaths over an object store: SIGKILL at every write of the main operations, and a short storm, on S3's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.crash.processes import Place, kill_everywhere
from tests.servers.start import Server, start
from txlog.testing.chaos.settings import Settings
from txlog.testing.chaos.show import Show
from txlog.testing.chaos.supervisor import chaos

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start("s3") as started:
        yield started


@pytest.mark.parametrize("name", ["eager transaction", "Spark commit"])
def test_a_kill_at_every_write(server: Server, name: str, tmp_path: Path) -> None:
    def place(point: str) -> Place:
        return Place(url=server.store_url(f"{name.replace(' ', '-')}/{point}"), options=server.storage_options)

    # A write that was not sent, and one that was answered to nobody; the rest is the local store's test.
    done = kill_everywhere(name, place, tmp_path, moments=("after",))
    print(f"{name}: {done.kills} SIGKILLs")
    assert done.kills > 3


def test_a_storm(server: Server, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    asked = Settings(
        url=server.store_url("storm"),
        storage_options=server.storage_options,
        histories=str(tmp_path / "histories"),
        seconds=15,
        spark=False,
    )
    with printed.open("w") as file:
        proof = chaos(asked, Show(Console(file=file, width=140)))
    print(printed.read_text())
    assert proof.holds, printed.read_text()
    assert proof.transactions["committed"] > 10
