"""Every object × every damage: what do readers and fsck report? `python -m tests.maintenance.matrix` tries all and
counts.

The test beside this file tries a part of them, chosen so that each object is damaged in several ways.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.maintenance import damage as d
from tests.maintenance.damage import Damage, Objects, Seen
from txlog.errors import TxlogError
from txlog.maintenance.fsck import FsckReport

# -- what cannot be noticed -------------------------------------------------------------------------------------------

BATCH = "{:020d}.batch".format

LAST_RECORDS = {
    "golden": {
        # No other object depends on this record yet: the log looks as if it had never been written.
        "__consumer_offsets/5/" + BATCH(1),  # a member that joined
        "__transaction_state/0/" + BATCH(2),  # a decision without markers: the transaction is as before, ONGOING
        # a decision without markers, too: the staged list and its file are orphans
        "__transaction_state/10/" + BATCH(3),
        "__transaction_state/31/" + BATCH(1),  # the tombstone of an id
        "audit/0/" + BATCH(1),  # rows of a transaction without a marker: it may have sent none
        "orders/1/" + BATCH(7),  # rows of a transaction without a marker, too
        "scratch/0/" + BATCH(3),  # rows of a producer without transactional.id
        # COMPLETE_*: the transaction is rolled forward again, and its markers are already there.
        "__transaction_state/29/" + BATCH(2),
        "__transaction_state/35/" + BATCH(11),
    },
    "twins": {"__transaction_state/1/" + BATCH(33)},
}
"""Deletions that cannot be noticed: the last record of a partition, if no other object depends on it."""

UNFINISHED = {
    "golden": {
        "__transaction_state/35/00000000000000000000-00000000000000000008-0.index",
        "orders/1/00000000000000000000-00000000000000000005-0.index",
    },
    "twins": {f"{topic}/{p}/00000000000000000006-00000000000000000012-0.index" for topic in d.TWINS for p in range(2)},
}
"""... the newest `.index` while its slots exist: the sealing looks unfinished. The next sealing repairs it."""

SUPERSEDED = {
    "golden": {
        "orders/0/00000000000000000000-00000000000000000008-0-00000001000000000000000000000019.parquet",
        "orders/0/00000000000000000000-00000000000000000008-0.index",
        "orders/0/00000000000000000008-00000000000000000014-0-0000000100000000000000000000002c.parquet",
        "orders/0/00000000000000000008-00000000000000000014-0.index",
        "orders/0/00000000000000000008.snapshot",
        "orders/0/rows/29-0-00000001000000000000000000000024.parquet",
        "orders/0/rows/35-0-0000000100000000000000000000000d.parquet",
    },
    "twins": set[str](),
}
"""... objects that maintenance has superseded: a vacuum deletes them too."""

UNPUBLISHED = {"golden": {"orders/0/00000000000000000000.clean"}, "twins": set[str]()}
"""... the highest `.clean`: the cleaner seems to have died before it published its run. Readers use its inputs
again."""

VERSIONS = {
    "golden": {f"audit/topic.{0:020d}.json", f"scratch/topic.{2:020d}.json"},
    "twins": {f"{topic}/topic.{0:020d}.json" for topic in d.TWINS},
}
"""Deletions that fsck finds, and that hide the topic from readers. The other topics are read as usual."""

LOST_TAIL = {
    "golden": {
        "__consumer_offsets/17/" + BATCH(0),
        "__consumer_offsets/9/" + BATCH(1),
        "orders/0/" + BATCH(17),
    },
    "twins": {"__consumer_offsets/1/" + BATCH(9), *(f"{t}/{p}/" + BATCH(14) for t in d.TWINS for p in range(2))},
}
"""Deletions of a last record that fsck finds, because a transaction's COMPLETE proves the marker.

A reader of only this partition sees a shorter log whose transaction is open again: the rows before it, never others.
"""


def undetectable(store: str) -> set[str]:
    """Return the objects whose deletion leaves a store that could also exist without damage."""
    return LAST_RECORDS[store] | UNFINISHED[store] | SUPERSEDED[store] | UNPUBLISHED[store]


# -- the matrix -------------------------------------------------------------------------------------------------------


@cache
def objects_of(store: str) -> Objects:
    return d.golden() if store == "golden" else d.twins()


@cache
def healthy(store: str) -> Seen:
    found = d.seen(objects_of(store))
    assert isinstance(found, Seen)
    return found


def all_damages(store: str) -> Iterator[Damage]:
    """Yield all damages."""
    objects = objects_of(store)
    for path, data in sorted(objects.items()):
        yield d.deletion(path)
        yield from d.swaps(path, objects, count=8)
        yield from d.truncations(path, data)
        yield from d.appended(path, data)
        yield from d.flips(path, data, count=8)


def some_damages(store: str) -> Iterator[Damage]:
    """Damage each object: delete, swap, cut and flip it in the golden store, delete it or swap it for its twin in the
    twins."""
    objects = objects_of(store)
    for number, (path, data) in enumerate(sorted(objects.items())):
        if store == "twins":
            if not path.startswith("west/"):  # these are like the objects in `east`, and swapped with them
                yield d.deletion(path)
                yield from (each for each in d.swaps(path, objects, count=1) if _same_name(each))
            continue
        yield d.deletion(path)
        yield from d.swaps(path, objects, count=1)
        others = [*d.truncations(path, data), *d.appended(path, data)]
        yield others[number % len(others)]
        yield from d.flips(path, data, count=1)


def _same_name(each: Damage) -> bool:
    return len({path.rpartition("/")[2] for path in each.changes}) == 1


@dataclass(slots=True)
class Figures:
    """The number of damages that were tried, and their results."""

    tried: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """The wrong results."""

    def lines(self) -> list[str]:
        return [
            f"{sum(self.tried.values())} damages: "
            + ", ".join(f"{n} {name}" for name, n in sorted(self.tried.items())),
            *(f"{number:6} {name}" for name, number in sorted(self.outcomes.items())),
        ]


def try_all(store: str, damages: Iterable[Damage], figures: Figures) -> None:
    """Damage the store in each way, and check what readers and fsck report."""
    objects = objects_of(store)
    for each in damages:
        if len(each.changes) == 1 and each.applied_to(objects) == objects:
            continue
        damaged = each.applied_to(objects)
        figures.tried[" ".join(each.name.split()[:1]) + " " + d.kind_of(each.path)] += 1
        reader = _judge_reader(store, each, d.seen(damaged))
        fsck = _judge_fsck(store, each, d.checked(damaged))
        figures.outcomes[f"reader: {reader}"] += 1
        figures.outcomes[f"fsck: {fsck}"] += 1
        if "WRONG" in reader or "WRONG" in fsck:
            figures.faults.append(f"{store}: {each}: reader {reader}, fsck {fsck}")


def _judge_reader(store: str, each: Damage, found: Seen | TxlogError) -> str:
    if isinstance(found, TxlogError):
        return "an error that names it" if d.names_it(found, each) else f"WRONG error {type(found).__name__}: {found}"
    expected = healthy(store)
    if found == expected:
        return "the right rows"
    if each.name != "deleted":
        return "WRONG rows"
    if each.path in UNPUBLISHED[store]:
        # read_uncommitted returns the rows of aborted transactions again, which the run had dropped.
        same = all(found.rows[at] == rows for at, rows in expected.rows.items() if at[0] == "read_committed")
        return "the right rows, from before the clean-up" if same else "WRONG rows"
    earlier = found.is_beginning_of(expected)
    if each.path in LAST_RECORDS[store] | LOST_TAIL[store]:
        return "the rows before the lost record" if earlier else "WRONG rows"
    if each.path in VERSIONS[store]:
        return "a topic is not known, the others are whole" if earlier else "WRONG rows"
    return "WRONG rows"


def _judge_fsck(store: str, each: Damage, report: FsckReport) -> str:
    folders = {path.rpartition("/")[0] + "/" for path in each.changes}
    named = [
        finding
        for finding in report.findings
        if finding.kind != "note" and (finding.path in each.changes or finding.path.rpartition("/")[0] + "/" in folders)
    ]
    if each.name == "deleted" and each.path in undetectable(store):
        return "whole, and it could be" if report.is_clean else "WRONG: not clean"
    if named:
        return "found"
    if d.kind_of(each.path) == "parquet of Spark's" and each.name.startswith("flipped") and report.is_clean:
        # The digest of the whole file is unknown. Page CRCs and the footer's digest cover the bytes of the rows.
        return "not found in a file of Spark's, and the rows are right"
    return "WRONG: not found"


def main() -> int:
    figures = Figures()
    for store in ("golden", "twins"):
        try_all(store, all_damages(store), figures)
    print(*figures.lines(), *figures.faults, sep="\n")
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
