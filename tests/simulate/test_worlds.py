"""Random worlds: each seed is a different story, the same on every run. A failing seed becomes a separate test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.histories.checker import check
from lab.histories.recorder import decode_history
from lab.simulate import __main__ as command
from lab.simulate.world import World, simulate
from tests.effort import cases

ROOT = Path(__file__).parents[2]
BLOCKS, BLOCK = 8, 6
SMALL_STEPS, SMALL_BLOCKS, SMALL_BLOCK, FIRST_SMALL = 400, 6, 8, 2_000


@pytest.mark.parametrize("block", range(BLOCKS))
def test_worlds(block):
    outcomes: set[str] = set()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        result = simulate(seed)
        assert result.ok, f"python -m lab.simulate --seed {seed}\n{result}"
        outcomes |= {name for name, count in result.report.outcomes.items() if count}
    assert outcomes >= {"committed", "aborted"}


@pytest.mark.parametrize("block", cases(range(SMALL_BLOCKS)))
def test_small_worlds(block):
    """Other seeds: short histories, in which faults and the recovery are near to all that happens."""
    outcomes: set[str] = set()
    for seed in range(FIRST_SMALL + block * SMALL_BLOCK, FIRST_SMALL + (block + 1) * SMALL_BLOCK):
        result = simulate(seed, SMALL_STEPS)
        assert result.ok, f"python -m lab.simulate --seed {seed} --steps {SMALL_STEPS}\n{result}"
        outcomes |= {name for name, count in result.report.outcomes.items() if count}
    assert outcomes >= {"committed", "unknown"}


def test_members_share_generations():
    """Otherwise no world can show that two of them read one partition."""
    for seed in range(50):
        world = World(seed)
        if "sharer" in world.kinds:
            world.run()
            generations = Counter(generation for generation, _ in world.readers.generations)
            if any(members > 1 for members in generations.values()):
                return
    pytest.fail("50 worlds, and no generation with two members that read")


def test_a_seed_is_one_story():
    # The order in which a set of names is read must not matter: it differs from process to process.
    digests = set()
    for hash_seed in ("1", "2"):
        code = "from lab.simulate.world import simulate; print([simulate(s, 600).digest for s in (3, 5, 11)])"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        digests.add(ran.stdout)
    digests.add(f"{[simulate(seed, 600).digest for seed in (3, 5, 11)]}\n")
    assert len(digests) == 1, digests
    assert simulate(3, 600).digest != simulate(4, 600).digest


def test_the_command_prints_what_there_was(capsys, tmp_path):
    two = ["--seeds", "2", "--start", "1", "--steps", "300", "--processes", "2"]
    assert command.main([*two, "--history", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "worlds with an anomaly" in printed
    history = decode_history((tmp_path / "2.jsonl").read_bytes())
    assert history
    assert not check(history).anomalies


def test_a_failing_seed_says_how_to_run_it_again(capsys, monkeypatch):
    bad = simulate(1, 300)
    object.__setattr__(bad, "trouble", ("planned",))
    monkeypatch.setattr(command, "simulate", lambda seed, steps: bad)
    assert command.main(["--seeds", "1", "--start", "1", "--steps", "300"]) == 1
    printed = capsys.readouterr().out
    assert "planned" in printed
    assert "python -m lab.simulate --seed 1 --steps 300" in printed.replace("\n", " ")


def test_one_world_by_its_seed(capsys, monkeypatch):
    asked: list[int] = []
    one = simulate(1, 300)

    def noted(seed: int, steps: int) -> Any:
        asked.append(seed)
        return one

    monkeypatch.setattr(command, "simulate", noted)
    assert command.main(["--seed", "777", "--steps", "300"]) == 0
    assert asked == [777]
    for wrong in (["--see", "777"], ["--seed", "7", "--seeds", "2"], ["--seed", "7", "--start", "2"]):
        with pytest.raises(SystemExit) as raised:
            command.main(wrong)
        assert raised.value.code == 2
    assert asked == [777]


def test_worlds_tell_how_far_they_are_where_there_is_no_terminal(capsys, monkeypatch):
    one = simulate(1, 300)
    monkeypatch.setattr(command, "simulate", lambda seed, steps: one)
    assert command.main(["--seeds", "120", "--processes", "1"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if " of 120 worlds" in line] == [
        "50 of 120 worlds",
        "100 of 120 worlds",
    ]
