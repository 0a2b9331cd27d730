"""`python -m tests.second_reader`: compare the second reader with the client, on random stores or on a store in a
folder.

python -m tests.second_reader --worlds 300       worlds 0 to 299
python -m tests.second_reader --store FOLDER     a store that something else left, such as a storm with --keep
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.spread import add_processes, spread
from tests.second_reader.compare import differences, read_world

SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what the arguments ask for. Return the exit status: 1 if the readers differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.second_reader", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--worlds", type=int, default=300, help="how many random stores")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--store", help="compare on this store alone")
    add_processes(parser)
    given = parser.parse_args(arguments)
    if given.store is not None:
        found = differences(given.store)
        _report(given.store, found)
        return bool(found)
    seeds = range(given.start, given.start + given.worlds)
    failed = 0
    for done, (seed, found) in enumerate(spread(read_world, seeds, given.processes), 1):
        failed += bool(found)
        _report(f"world {seed}", found)
        if done % 25 == 0 or done == len(seeds):
            print(f"{done} of {len(seeds)} stores read, {failed} with a difference", flush=True)
    return bool(failed)


def _report(what: str, found: Sequence[str]) -> None:
    for each in found[:SHOWN]:
        print(f"{what}: {each}", flush=True)
    if len(found) > SHOWN:
        print(f"{what}: ... and {len(found) - SHOWN} more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
