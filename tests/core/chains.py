"""Random chains of one partition, and the naive model of what a reader of them sees.

A `Chain` is built batch by batch, as a careful writer would append. For each commit record the model keeps the place of
every row, and whether the row was aborted. Nothing here uses the code under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, BatchKind, CommitRecord, DataFile

TP = TopicPartition("orders", 3)


@dataclass
class Row:
    """One row in the model: its place as written, and whether it was aborted."""

    offset: int
    producer_id: int
    timestamp: int
    place: tuple[str, int]
    """(file, row), or ("inline", offset)."""
    open: bool = False
    aborted: bool = False


def data_file(path: str, rows: int, groups: int = 1) -> DataFile:
    sizes = [rows // groups] * groups
    sizes[-1] += rows - sum(sizes)
    return DataFile(
        path=path, rows=rows, bytes=100 + rows, digest="d" * 64, footer_digest="f" * 64, row_groups=tuple(sizes)
    )


@dataclass
class Chain:
    """A partition's commit records and, row by row, their meaning."""

    records: list[CommitRecord] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    open_since: dict[int, int] = field(default_factory=dict)
    open_rows: dict[int, list[Row]] = field(default_factory=dict)
    segment_base: int = 0
    timestamp: int = 1_000

    @property
    def end(self) -> int:
        return self.records[-1].end_offset if self.records else 0

    @property
    def lso(self) -> int:
        return min(self.open_since.values(), default=self.end)

    def append(
        self,
        kind: BatchKind,
        producer_id: int = -1,
        rows: Sequence[int] = (),
        *,
        inline: bool = False,
        transactional: bool = True,
        roll: bool = False,
        later_ms: int = 1,
    ) -> CommitRecord:
        """Append one more batch; `rows` are the numbers of rows of its files, or of its payload."""
        base = self.end
        if roll:
            self.segment_base = base
        self.timestamp += later_ms
        first = self.open_since.pop(producer_id, -1) if kind in {"commit", "abort"} else -1
        ended = self.open_rows.pop(producer_id, []) if kind in {"commit", "abort"} else []
        files = (
            ()
            if inline
            else tuple(
                data_file(f"{TP.partition}/rows/{max(producer_id, 0)}-0-{base:08x}{number:02x}.parquet", count)
                for number, count in enumerate(rows)
            )
        )
        record = CommitRecord(
            base_offset=base,
            records=sum(rows),
            kind=kind,
            producer_id=producer_id,
            transactional=transactional,
            timestamp=self.timestamp,
            segment_base=self.segment_base,
            files=files,
            payload_bytes=len(payload_of(base)) if inline else 0,
            write_id="w",
            previous="p",
            first_offset=first if kind == "abort" else -1,
            last_stable_offset=min(self.open_since.values(), default=base + 1) if kind == "abort" else -1,
            log_start_offset=0 if kind == "log_start" else -1,
        )
        self.records.append(record)
        places = (
            [("inline", base + row) for row in range(sum(rows))]
            if inline
            else [(file.path, row) for file in files for row in range(file.rows)]
        )
        added = [Row(base + number, producer_id, self.timestamp, place) for number, place in enumerate(places)]
        self.rows += added
        if kind == "data" and transactional:
            self.open_since.setdefault(producer_id, base)
            self.open_rows.setdefault(producer_id, []).extend(added)
            for row in added:
                row.open = True
        for row in ended:
            row.open, row.aborted = False, kind == "abort"
        if kind == "abort" and first >= 0:
            self.aborted.append(
                AbortedTxn(
                    producer_id=producer_id,
                    first_offset=first,
                    last_offset=base,
                    last_stable_offset=record.last_stable_offset,
                )
            )
        return record

    def visible(self, start: int, end: int, isolation: str) -> list[Row]:
        """Return the rows that a reader gets, by the definition.

        These are all rows, or those that are not open, not behind an open transaction, and not aborted.
        """
        bound = self.lso if isolation == "read_committed" else self.end
        return [
            row
            for row in self.rows
            if start <= row.offset < min(end, bound) and not (isolation == "read_committed" and row.aborted)
        ]

    def segments(self) -> list[list[CommitRecord]]:
        """Return the records by segment, with the active one at the end."""
        found: list[list[CommitRecord]] = []
        for record in self.records:
            if not found or record.segment_base == record.base_offset:
                found.append([])
            found[-1].append(record)
        return found


def payload_of(base_offset: int) -> bytes:
    """Return the stand-in for the inline rows of the batch at `base_offset`."""
    return b"rows of %d" % base_offset


def inline_file_of(records: Iterable[CommitRecord]) -> DataFile | None:
    """Return the file that a sealer would write for the inline rows of a segment."""
    listed = list(records)
    rows = sum(record.records for record in listed if record.payload_bytes)
    name = SegmentName(listed[0].base_offset, listed[-1].end_offset, 0, "abcdef12")
    return data_file(f"{TP.partition}/{name.parquet}", rows, 2) if rows else None


@st.composite
def chains(draw: st.DrawFn, max_size: int = 40) -> Chain:
    """Draw a chain of four producers that interleave data, markers (some with rows), and a few other control
    batches."""
    chain = Chain()
    kinds = st.sampled_from(
        ["data", "data", "data", "data", "plain", "commit", "abort", "staged", "log_start", "expire"]
    )
    for kind in draw(st.lists(kinds, max_size=max_size)):
        roll = draw(st.integers(0, 4)) == 0
        later_ms = draw(st.integers(0, 2))
        producer_id = draw(st.integers(1, 4))
        if kind in {"log_start", "expire"}:
            chain.append(
                "log_start" if kind == "log_start" else "expire", roll=roll, later_ms=later_ms, transactional=False
            )
            continue
        inline = draw(st.booleans())
        rows = [draw(st.integers(1, 4)) for _ in range(1 if inline else draw(st.integers(1, 3)))]
        if kind == "data":
            chain.append("data", producer_id, rows, inline=inline, roll=roll, later_ms=later_ms)
        elif kind == "plain":
            # Kafka refuses plain data of a producer with an open transaction, so plain data has other
            # producer ids here.
            chain.append(
                "data", 10 + producer_id, rows, inline=inline, roll=roll, later_ms=later_ms, transactional=False
            )
        elif kind == "staged":
            # A staged COMMIT has its rows in files, under the marker. Its producer may have an eager transaction open
            # as well.
            chain.append("commit", producer_id, rows, roll=roll, later_ms=later_ms)
        else:
            chain.append("commit" if kind == "commit" else "abort", producer_id, roll=roll, later_ms=later_ms)
    return chain
