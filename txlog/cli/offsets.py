"""`txlog get-offsets`: where do the partitions of a topic begin and end, and which offset has a given time?"""

from __future__ import annotations

from typing import Annotated

from txlog.cli.options import Partitions, Session, TopicsOrPartitions, option, parse_moment
from txlog.cli.output import Output, Row
from txlog.cli.partitions import split_topics
from txlog.config import DEFAULT_ISOLATION
from txlog.errors import CorruptLogError
from txlog.text import time_text

_KAFKAS = {"-2": "earliest", "-1": "latest", "earliest": "earliest", "latest": "latest"}


def get_offsets(
    session: Session,
    names: TopicsOrPartitions,
    partitions: Partitions = None,
    time: Annotated[
        str | None,
        option(
            "--time TIME",
            "Also show the first offset at or after a time: 2013-01-31T05:17:00Z, milliseconds "
            "since 1970, earliest, latest.",
        ),
    ] = None,
    isolation_level: Annotated[
        str, option("--isolation-level LEVEL", "Rows that --time looks at: read_committed or read_uncommitted.")
    ] = DEFAULT_ISOLATION,
) -> None:
    """Show the log start, last stable and log end offset of each partition.

    Readers of committed rows read up to the last stable offset. An open transaction holds it back.
    """
    spec = parse_spec(time, "--time") if time is not None else "latest"
    store = session.store
    damaged: list[CorruptLogError] = []
    wanted = split_topics(store, names or [each.name for each in store.topics(damaged=damaged)], partitions)
    found = session.admin.list_offsets(list(wanted), spec, isolation_level, damaged=damaged)
    infos = [
        info for tp, info in sorted(found.items()) if (numbers := wanted[tp.topic]) is None or tp.partition in numbers
    ]

    def text(out: Output) -> None:
        columns = ["topic", "partition", "log start", "last stable", "log end"]
        rows: list[Row] = [
            (i.topic, i.partition, i.log_start_offset, i.last_stable_offset, i.log_end_offset) for i in infos
        ]
        if time is not None:
            columns += ["offset", "time"]
            rows = [
                (*row, info.offset, None if info.timestamp is None else time_text(info.timestamp))
                for row, info in zip(rows, infos, strict=True)
            ]
        out.table(columns, rows, empty="No partition can be shown." if damaged else "There are no topics.")

    session.show(infos, text, damaged)


def parse_spec(text: str, option: str) -> str | int:
    """Parse `earliest`, `latest` (or Kafka's -2, -1), or a time in milliseconds.

    Raises InvalidRequestError with the name of the option.
    """
    named = _KAFKAS.get(text.strip().lower())
    return parse_moment(text, option, "earliest, latest, ") if named is None else named
