"""Row read-committed: what do aborted transactions cost a reader that does not see them?

Every store has the same committed rows. The aborted ones lie between them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.timing import repeated

COMMITTED, ROWS = 200, 20_000
MOST = 1.03


@contextmanager
def reads(place: Place, *, aborted: float, isolation_level: str = "read_committed") -> Iterator[Callable[[], Samples]]:
    """Yield a turn that reads all rows. `aborted` is the share of all transactions."""
    dice = random.Random(place.seed)
    rows = inputs.records(ROWS, place.seed)
    committed = place.sized(COMMITTED, least=5)
    log.create(place.folder, inputs.RECORDS)
    with log.opened(place.folder) as (store, counting):
        with store.producer("bench") as producer:
            done = 0
            while done < committed:
                producer.begin_transaction()
                producer.send(log.TOPIC, rows, partition=0)
                producer.flush()
                if dice.random() < aborted:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    done += 1

        def read() -> None:
            with store.consumer(log.TOPIC, auto_offset_reset="earliest", isolation_level=isolation_level) as consumer:
                found = sum(batch.num_rows for batch in consumer.iterate())
            if found != committed * ROWS:
                raise RuntimeError(f"{found} rows were read")

        def turn() -> Samples:
            before = counting.requests().total
            taken = repeated(read, for_s=4)
            return {**taken, "requests": [(counting.requests().total - before) / len(taken["s"])]}

        yield turn


UNCOMMITTED, NONE = "read_uncommitted, 0 % aborted", "0 % aborted"

SPECS = (
    Spec(
        row="read-committed",
        title="read 4 million rows of 100 bytes",
        contestants=(
            Contestant(name=UNCOMMITTED, start=partial(reads, aborted=0, isolation_level="read_uncommitted")),
            *(
                Contestant(name=f"{percent} % aborted", start=partial(reads, aborted=percent / 100))
                for percent in (0, 1, 10, 50)
            ),
        ),
        goals=(
            Goal(of=NONE, figure="s", versus=UNCOMMITTED, at_most=MOST),
            *(Goal(of=f"{percent} % aborted", figure="s", versus=NONE, at_most=MOST) for percent in (1, 10, 50)),
        ),
        floor=(
            "aborted transactions cost a reader no CPU time: at half this size, reads of 0 to 50 % aborted take 0.38 "
            "to 0.39 s of it, and the ratio of 10 % to 0 % has quartiles of 0.94 to 1.03. What is left is noise."
        ),
        rounds=5,
    ),
)
