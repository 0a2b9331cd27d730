"""`python -m lab.scale`: print a Markdown table of what many writers achieve together.

python -m lab.scale                      all loads, at 60 ms a request
python -m lab.scale --latency-ms 600     the same on a slow store
python -m lab.scale --writers 200 --partitions 16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import track

from lab.scale.model import Achieved, Load, achieve

LOADS = ((1, 1), (10, 1), (100, 1), (10, 10), (100, 10), (100, 100), (1000, 64), (1000, 1000))
"""Writers and partitions."""
_HEAD = ("writers", "partitions", "transactions/s", "p50 ms", "p99 ms", "requests each", "busiest folder, requests/s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loads and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--writers", type=int, help="this load alone: how many writers")
    parser.add_argument("--partitions", type=int, default=1, help="... to how many partitions (default 1)")
    parser.add_argument("--table-partitions", type=int, default=50, help="... of __transaction_state (default 50)")
    parser.add_argument("--latency-ms", type=int, default=60, help="median time of a request (default 60)")
    parser.add_argument("--seconds", type=int, default=20, help="virtual time that each load is watched (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    chosen = LOADS if given.writers is None else ((given.writers, given.partitions),)
    loads = [
        Load(
            writers=writers,
            partitions=partitions,
            latency_ms=given.latency_ms,
            seconds=given.seconds,
            table_partitions=given.table_partitions,
            seed=given.seed,
        )
        for writers, partitions in chosen
    ]
    console = Console(stderr=True)
    results = [achieve(load) for load in track(loads, "loads", console=console, disable=not console.is_terminal)]
    print(table(results))
    return 0


def table(results: Sequence[Achieved]) -> str:
    """Return the results as a Markdown table, a load in each row."""
    lines = [f"| {' | '.join(_HEAD)} |", f"|{'---:|' * len(_HEAD)}"]
    for result in results:
        load = result.load
        cells = (
            f"{load.writers:,}",
            f"{load.partitions:,}",
            f"{result.commits_per_second:,.1f}",
            f"{result.percentile_ms(50):,}",
            f"{result.percentile_ms(99):,}",
            f"{result.requests_per_commit:,.1f}",
            f"{result.busiest_per_second:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
