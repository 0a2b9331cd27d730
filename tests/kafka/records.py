"""The final comparison of all these tests: the rows of a txlog topic against Kafka's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import txlog
from tests.kafka.broker import KafkaClient, Record


@dataclass
class Expected:
    """The records that a read_committed consumer of Kafka finds, and those that it must never find."""

    topic: str
    partitions: int
    committed: dict[int, list[str]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    sent: int = 0

    def fill(self, kafka: KafkaClient, count: int) -> None:
        """Send `count` records in small transactions, every fourth aborted, and as many without a transaction."""
        with kafka.transactions(f"producer of {self.topic}") as producer:
            for number in range(count // 5):
                batch = self._next(5)
                if number % 4 == 3:
                    producer.abort(batch)
                    self.aborted |= {str(record.value) for record in batch}
                else:
                    producer.commit(batch)
                    self._keep(batch)
        plain = self._next(count)
        kafka.send(plain)
        self._keep(plain)

    def check(self, url: str, topic: str | None = None) -> None:
        """Assert lost 0, doubled 0, aborted 0, and Kafka's own order in each partition."""
        found = values(url, topic or self.topic)
        everything = Counter(value for rows in found.values() for value in rows)
        wanted = {value for rows in self.committed.values() for value in rows}
        lost, doubled = wanted - set(everything), {value for value, count in everything.items() if count > 1}
        assert (lost, doubled, set(everything) & self.aborted, set(everything) - wanted) == (set(), set(), set(), set())
        assert found == {number: rows for number, rows in self.committed.items() if rows}

    def _next(self, count: int) -> list[Record]:
        first, self.sent = self.sent, self.sent + count
        return [
            Record(self.topic, f"{number}", key=f"k{number % 7}", partition=number % self.partitions)
            for number in range(first, self.sent)
        ]

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            assert record.partition is not None
            self.committed.setdefault(record.partition, []).append(str(record.value))


def values(url: str, topic: str) -> dict[int, list[str]]:
    """Return the values of a topic of Kafka's record shape, by partition and in order."""
    found: dict[int, list[str]] = {}
    with (
        txlog.open(url) as store,
        store.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
    ):
        for batch in consumer.iterate():
            for row in batch.select(["_partition", "value"]).to_pylist():
                found.setdefault(row["_partition"], []).append(row["value"].decode())
    return found


def arguments(bootstrap: str, connector: str, topic: str, *more: str) -> Sequence[str]:
    """Return the arguments of the job, except for store and checkpoint."""
    return (
        *("--bootstrap-servers", bootstrap, "--subscribe", topic, "--transactional-id", "ingest"),
        *("--conf", f"spark.jars={connector}", *more),
    )
