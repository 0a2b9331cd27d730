"""A query follows the feed of flights while its driver is killed: is every micro-batch written once, and whole?

The flights arrive month by month. The query's driver (`lab.demo.cleaning`) dies twice, each time during a
micro-batch. The first time is before the store decides to commit it. The second time is after the commit and before
Spark records it in the checkpoint. Each time the position of the query is read from the store and the checkpoint,
before it starts again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.demo import data
from lab.demo.checks import ends, expect, expect_all_stable
from lab.demo.worker import CLEANER_ID
from txlog.text import count_text

if TYPE_CHECKING:
    from lab.demo.processes import Crew
    from lab.demo.show import Show
    from txlog.client import Store

FEEDER_ID = "feeder"
CLEANED = ("flown", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Where one run of the query's driver ends."""

    fault: str
    is_committed: bool
    """Whether the store has committed the micro-batch by then. Spark has never recorded it yet."""


DEATHS = (
    Death(fault=r'kill before 4 put_if_absent __transaction_state/.*"state":"PREPARE_COMMIT"', is_committed=False),
    Death(fault=r'kill after 4 put_if_absent __transaction_state/.*"state":"COMPLETE_COMMIT"', is_committed=True),
)
"""In each life's fourth micro-batch."""


def stream_the_feed(
    show: Show, log: Store, crew: Crew, months: Sequence[int] = data.MONTHS, deaths: Sequence[Death] = DEATHS
) -> None:
    """Feed a month, wait until it is cleaned while drivers die, and repeat. Raises TxlogError if no driver died."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-demo-checkpoint-") as checkpoint,
        log.producer(FEEDER_ID, staged=True) as feeder,
        show.progress() as progress,
    ):
        query = Query(show, log, crew, Path(checkpoint), deaths)
        task = progress.add_task("months", total=len(months))
        for month in months:
            with feeder.transaction(version=month):
                feeder.send("feed", data.of_month(data.flights(), month))
            query.catch_up(month)
            progress.advance(task)
        query.end()
    for topic in CLEANED:
        expect_all_stable(log, topic)
    expect(
        not query.deaths,
        f"the driver to be killed {count_text(len(deaths), 'time')}, found {len(deaths) - len(query.deaths)}",
    )
    show.line(
        f"{query.batches} micro-batches: {sum(ends(log, 'feed')):,} flights in, "
        f"{sum(ends(log, 'flown')):,} flown and {sum(ends(log, 'cancelled')):,} cancelled ones out"
    )


class Query:
    """The query, over the lives of its driver."""

    def __init__(self, show: Show, log: Store, crew: Crew, checkpoint: Path, deaths: Sequence[Death]) -> None:
        self.deaths = list(deaths)
        """Those still to come."""
        self.batches = 0
        self._show = show
        self._log = log
        self._crew = crew
        self._checkpoint = checkpoint
        self._start()
        show.line(
            f"process {self._driver.id} is the driver of a streaming query: it reads the topic feed, and writes flown "
            "and cancelled, both in one transaction a micro-batch"
        )

    def catch_up(self, month: int) -> None:
        """Return when everything that was fed is cleaned, and Spark has recorded it."""
        fed = ends(self._log, "feed")
        while True:
            event = next(self._events, None)
            if event is None:
                self._go_on_after_death(month)
            elif event["event"] == "batch":
                self.batches = event["number"] + 1
            elif [event["ends"][str(partition)] for partition in range(len(fed))] == fed:
                return

    def end(self) -> None:
        """Has the driver end in order."""
        self._driver.terminate()
        self._driver.wait_done()

    def _start(self) -> None:
        faults = [self.deaths[0].fault] if self.deaths else []
        self._driver = self._crew.start("clean", *faults, checkpoint=str(self._checkpoint))
        self._events: Iterator[dict[str, Any]] = self._driver.events()

    def _go_on_after_death(self, month: int) -> None:
        self._driver.wait_killed()
        death = self.deaths.pop(0)
        batch = self._newest("offsets")
        noted = self._newest("commits")
        expect(
            noted == batch - 1, f"the kill before Spark's note of micro-batch {batch}; the last one noted is {noted}"
        )
        version = self._log.admin().describe_transaction(CLEANER_ID).txn_version
        expected = batch if death.is_committed else noted
        expect(version == expected, f"txn.version {expected} to be the last one committed, found {version}")
        if death.is_committed:
            found = f"the store has committed micro-batch {batch}, Spark's checkpoint does not know of it"
        else:
            found = f"the rows of micro-batch {batch} are written, and nothing is decided: nobody sees one of them"
        self._show.line(f"month {month}: its driver is killed (SIGKILL). {found[0].upper()}{found[1:]}")
        self._start()
        again = next((event for event in self._events if event["event"] == "batch"), None)
        expect(
            again is not None and (again["number"], again["repeated"]) == (batch, death.is_committed),
            f"micro-batch {batch} to come again, and to be "
            f"{'skipped' if death.is_committed else 'written'}, found {again}",
        )
        how = "recognised by its number, and skipped" if death.is_committed else "written"
        self._show.line(f"process {self._driver.id}, the next driver, runs micro-batch {batch} again: it is {how}")
        self.batches = batch + 1

    def _newest(self, folder: str) -> int:
        """Return the last micro-batch that Spark has planned (`offsets`) or recorded as done (`commits`); -1 before the
        first."""
        found = (self._checkpoint / folder).glob("[0-9]*")
        return max((int(path.name) for path in found if path.name.isdigit()), default=-1)
