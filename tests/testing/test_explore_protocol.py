"""The shipped protocol, explored: small sizes of every scenario, and every mutant caught.

`make simulate` runs them whole.
"""

from __future__ import annotations

import pytest

from lab.explore import columns, combining, one_phase, past, publications, sharing, small
from lab.explore.catalogue import EXPLORED, SCENARIOS
from lab.explore.mutant import Mutant
from lab.explore.runner import explore, hunt

# Each scenario has a race, and the exploration must show both winners.
ENDINGS = {
    "fencing": {"old: committed", "old: failed"},
    "commit": {"owner: committed", "owner: failed"},
    "staged": {"owner: committed", "owner: failed"},
    "time-out": {"owner: committed", "owner: aborted"},
    "operator": {"owner: committed", "owner: aborted"},
    "offsets": {"x: committed", "y: aborted"},
    "generations": {"one: done", "one: failed"},
    "seal txn": {"reader: read"},
    "stale": {"sleeper: appended", "sleeper: unknown", "cleaner: done"},
    "reader": {"reader: read", "cleaner: done"},
    "merge": {"merger: merged", "owner: aborted"},
    "two merges": {"one: merged", "one: done", "two: merged", "two: done"},
    "late merge": {"slow: merged", "slow: done", "fast: done"},
    "compaction": {"compactor: compacted", "owner: aborted", "reader: read"},
    "compaction merge": {"compactor: compacted", "compactor: done", "merger: merged", "merger: done"},
    "two compactions": {"one: compacted", "one: done", "two: compacted", "two: done"},
    "tombstone": {"compactor: compacted", "merger: merged"},
    "compaction looks": {"compactor: compacted", "looks: looked"},
    "erasure, open": {"eraser: erased", "eraser: waits", "owner: committed"},
    "erasure, aborted": {"eraser: erased", "eraser: waits", "owner: aborted"},
    "erasure, beyond": {"eraser: erased", "eraser: waits", "owner: committed"},
    "erasure, beyond, aborted": {"eraser: erased", "eraser: waits", "owner: aborted"},
    "erasure, merge": {"eraser: erased", "merger: merged", "merger: done"},
    "two erasures": {"one: erased", "two: erased"},
    "erasure, compaction": {"eraser: erased", "compactor: compacted", "compactor: done"},
    "erasure, followed": {"eraser: looked"},
    "compaction vacuum": {"reader: read", "cleaner: vacuumed"},
    "vacuum reader": {"reader: read", "cleaner: vacuumed"},
    "merge vacuum": {"merger: merged", "vacuum: vacuumed"},
    "stale writer": {"sleeper: appended", "sleeper: unknown", "vacuum: vacuumed"},
    "two vacuums": {"one: vacuumed", "two: vacuumed"},
    "slow prepare": {"owner: committed", "owner: failed", "vacuum: vacuumed"},
    "slow drawn": {"writer: appended", "writer: refused", "vacuum: vacuumed"},
    "deletion": {"plain: appended", "plain: failed"},
    "expiry": {"sleeper: appended", "sleeper: aborted", "maintenance: done"},
    "forgotten": {"sleeper: appended", "sleeper: unknown"},
    "replay": {"again: skipped"},
    "swapped": {"reader: corrupt"},
    "version": {"one: committed", "two: committed", "two: skipped"},
    "unsure": {"owner: committed", "owner: aborted"},
    "two publishers": {"one: published", "two: published"},
    "publish vacuum": {"publisher: published", "vacuum: vacuumed"},
    "publish sleeps": {"publisher: published", "vacuum: vacuumed"},
    "publish retention": {"publisher: published", "vacuum: vacuumed"},
    "small": {"owner: committed", "owner: failed"},
    "small list": {"slow: done", "takeover: ready", "vacuum: vacuumed"},
    "small deletion": {"owner: committed", "owner: failed"},
    "looks back, compacted": {"looks: looked back", "looks: too old", "compactor: compacted"},
    "publish deletes": {"publisher: published", "vacuum: vacuumed"},
    "publish ends": {"publisher: published", "publisher: too old", "vacuum: vacuumed"},
    "publish deleted": {"publisher: published", "publisher: too old"},
    "publish compacted": {"publisher: published", "compactor: compacted"},
    "columns": {"one: changed", "one: refused change", "two: changed", "two: refused change"},
    "stranger": {"one: done", "two: done", "stranger: done"},
    "stranger, dead member": {"two: owns all", "two: lost"},
    "member sleeps, skewed": {"one: done", "one: failed", "one: gone", "two: done"},
    "one phase attaches": {"old: committed", "old: failed", "new: ready"},
    "one phase unsure": {"owner: committed", "owner: aborted", "owner: failed", "takeover: ready"},
    "one phase doubts": {"owner: committed", "owner: unknown", "expirer: done"},
    "combine": {"one: appended", "two: appended"},
    "combine lost": {"one: appended", "one: unknown", "leader: done"},
    "combine zombie": {"old: committed", "old: failed", "new: committed"},
    "combine late": {"old: committed", "old: failed", "new: ready"},
    "combine decisions": {"x: committed", "x: failed", "new: ready"},
    "resumes": {"older: committed", "older: failed", "newer: committed", "newer: done"},
}


# `make test` explores few of the scenarios of these subjects, `make test-exhaustive` all of them.
SAMPLE = (
    "small",
    "small list",
    "small deletion",
    "small mixed",
    "looks back",
    "looks back, merged",
    "publish deletes",
    "publish, skewed",
    "one phase",
    "one phase attaches",
    "combine",
    "combine zombie",
    "combine lost",
    "combine decisions",
)
LATER = (small, past, publications, columns, sharing, one_phase, combining)
EXHAUSTIVE = {name for subject in LATER for name in subject.SCENARIOS if name not in SAMPLE}


# Each takes at least 3 s. These tests hunt their mutants; `make simulate` explores the scenarios whole.
LONG = (
    "staged", "expiry", "vacuum reader", "offsets", "snapshot", "slow marker", "stale writer", "first init", "seal txn",
    "operator", "mixed",
    "abort", "two aborts", "merge vacuum", "time-out", "internal", "merge looks, forgotten", "publish txn",
    "publish sleeps", "publish retention", "erasure, open", "erasure, aborted", "erasure, beyond",
    "erasure, beyond, aborted", "erasure looks",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.storm if name in LONG else pytest.mark.exhaustive if name in EXHAUSTIVE else ()
        )
        for name in SCENARIOS
    ],
)
def test_every_invariant_holds_in_every_state(name: str) -> None:
    result = explore(SCENARIOS[name], "quick")
    assert result.violation is None, "\n".join((result.violation or "", *result.trace))
    assert result.complete
    assert set(result.endings) >= ENDINGS.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name,
            marks=pytest.mark.exhaustive if mutant.scenario in {*EXHAUSTIVE, "publish sleeps"} else (),
        )
        for mutant in EXPLORED
    ],
)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    result = hunt(mutant)
    assert result.caught, f"{mutant.scenario!r} does not notice: {mutant.name}"
