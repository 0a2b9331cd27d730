"""`txlog sql`: run a query over one snapshot of topics, in DuckDB.

DuckDB may read nothing but these topics: no file of the machine, no network, no extension and no Python variable.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec

from txlog.cli.formats import FileFormat, RowOutput, row_output
from txlog.cli.interrupts import Interrupts
from txlog.cli.options import PANEL, Session, argument, option, parse_moment
from txlog.cli.output import Cell, Output, progress_bar
from txlog.cli.rows import json_value
from txlog.errors import InvalidRequestError, TxlogError
from txlog.text import install_text, shorten

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from txlog.client.tables.query_table import QueryTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, after which Python has no time."""
_TABLE_ROWS = 1000
"""How many rows a table shows. It needs all of them in memory to align its columns."""
_CELL = 200
"""Maximum length of a text in a table."""
_BATCH_ROWS = 10_000
_NO_COLUMN = re.compile(r'Binder Error: Referenced column ("[^"]*") not found')
_BARE_NAME = re.compile(r"\b(from|join)\s+(\w+-|\d)", re.IGNORECASE)
"""A table in a query that DuckDB cannot read as a name without quotes."""
_OWN_SCHEMAS = ("information_schema", "main", "pg_catalog")
"""Of DuckDB. They have no topics."""
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
    # Otherwise a name may mean a variable of this program.
    "python_enable_replacements": False,
}


class ResultFormat(StrEnum):
    """The values of `--output`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


_LATEST_MACRO = """CREATE TEMP MACRO latest(topic) AS TABLE SELECT * FROM query_table('"latest ' || topic || '"')"""


class _Table(NamedTuple):
    """A table of a query."""

    topic: str
    latest: bool = False
    """Whether it is `latest('topic')`: the newest row of each key."""

    @property
    def view(self) -> str:
        """The name of the table in DuckDB. No topic has a space in its name."""
        return f"latest {self.topic}" if self.latest else self.topic


_FOR_PEOPLE = (ResultFormat.TABLE, ResultFormat.JSON)


def sql(
    session: Session,
    query: Annotated[
        str,
        argument(
            "QUERY",
            "One query: SELECT, WITH, FROM, DESCRIBE or SUMMARIZE. Its tables are topics, and latest('people') is the "
            "newest row of each key of the topic people.",
        ),
    ],
    as_of: Annotated[
        str | None,
        option(
            "--as-of TIME",
            "Read what was appended up to a time, as in 2013-01-31T05:17:00Z, without "
            "transactions that continue after it.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        option("--memory-limit SIZE", "Memory for DuckDB, as in 2GB. (default: 80% of the machine's memory)"),
    ] = None,
    output: Annotated[
        ResultFormat | None,
        option(
            "--output FORMAT",
            f"table (its first {_TABLE_ROWS:,} rows), json (one object on each line), csv, parquet "
            "or arrow. (default: table)",
            "-o",
            rich_help_panel=PANEL,
        ),
    ] = None,
) -> None:
    """Run a query over topics, in the SQL of DuckDB.

    All topics of the query are read at one point: a transaction is visible in all of them or in none. _partition,
    _offset and _timestamp are columns too. Names with other characters than letters, digits and _ need double quotes,
    as in FROM "my-topic".

    Only the columns that the query names are read, and only the files that can contain its rows. The query cannot read
    or write files of the machine. Rows that do not fit in memory are in a temporary folder until the command ends.
    """
    as_of_ms = None if as_of is None else parse_moment(as_of, "--as-of")
    moment = None if as_of_ms is None else _EPOCH + timedelta(milliseconds=min(as_of_ms, _LAST_MS))
    kind = output or (ResultFormat.JSON if session.out.is_json else ResultFormat.TABLE)
    # A bar must not stand between the lines of a result.
    streams = kind is not ResultFormat.TABLE and sys.stdout.isatty()
    bar = nullcontext() if streams else progress_bar("taking a snapshot", "rows")
    tables: list[QueryTable] = []
    with (
        Interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix="txlog-sql-") as folder,
        _explained(tables, query),
        _connected(folder, memory_limit) as connection,
    ):
        with bar as show, _Worker(connection, interrupts) as worker:
            wanted = _tables_of(connection, query)
            with interrupts.at_once():
                # A local import, because it loads the client.
                from txlog.client.tables.query_table import QueryTable

                snapshot = session.store.snapshot(*dict.fromkeys(each.topic for each in wanted), as_of=moment)
                tables += [QueryTable(snapshot.table(each.topic), show, latest=each.latest) for each in wanted]
            for each, table in zip(wanted, tables, strict=True):
                connection.register(each.view, table)
            connection.execute(_LATEST_MACRO)
            connection.execute("SET lock_configuration = true")
            reader = worker.call(lambda: connection.sql(query).to_arrow_reader(_BATCH_ROWS))
            schema = _distinct(reader.schema)
            rows = _output(session.out, kind, schema, interrupts)
            while (batch := worker.call(lambda: next(reader, None))) is not None:
                batch = batch.rename_columns(schema.names)
                with _writable(kind):
                    rows.write(_with_integers(batch) if kind in _FOR_PEOPLE else batch)
                if isinstance(rows, _TableOutput) and rows.is_full:
                    break
        with _writable(kind):
            rows.close()


@contextmanager
def _connected(folder: str, memory_limit: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"`txlog sql` needs DuckDB: {install_text('sql')}") from error

    settings = {**_SETTINGS, "temp_directory": f"{folder}/spilled"}
    try:
        connection = duckdb.connect(":memory:", config=settings)
        # A time without an offset is UTC everywhere in txlog, whatever zone the machine has.
        connection.execute("SET TimeZone = 'UTC'")
        if memory_limit is not None:
            connection.execute("SET memory_limit = $1", [memory_limit])
    except duckdb.Error as error:
        if memory_limit is None:
            raise
        raise InvalidRequestError(f"--memory-limit {memory_limit!r}: expected a size such as 2GB: {error}") from None
    with connection:
        yield connection


class _Worker:
    """Runs DuckDB in another thread. DuckDB does not react to signals, so the main thread waits for them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, interrupts: Interrupts) -> None:
        self._connection = connection
        self._interrupts = interrupts
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[Any] | None = None

    def call(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns. Raises Interrupted at once if a signal comes."""
        self._running = self._pool.submit(work)
        with self._interrupts.at_once():
            return self._running.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # DuckDB forgets an interrupt that comes just before a query begins.
        while self._running is not None and not self._running.done():
            self._connection.interrupt()
            wait([self._running], timeout=0.1)
        self._pool.shutdown()


@contextmanager
def _explained(tables: Sequence[QueryTable], query: str) -> Iterator[None]:
    """Raise the error of a scan or an error of the query in place of what DuckDB or Arrow makes of it."""
    try:
        yield
    except (TxlogError, BrokenPipeError):
        raise
    except Exception as error:
        import duckdb
        import pyarrow as pa

        for table in tables:
            if table.error is not None:
                raise table.error from None
        if not isinstance(error, duckdb.Error | pa.ArrowException | OSError):
            raise
        raise _of_query(str(error), query) from None


def _of_query(text: str, query: str) -> TxlogError:
    if text.startswith("Out of Memory"):
        return TxlogError(f"the query failed: {text} hint: give it more with --memory-limit, or read fewer rows")
    lacking = _NO_COLUMN.match(text)
    hint = " hint: a text stands in single quotes" if lacking and lacking[1] in query else ""
    if text.startswith("Parser Error") and _BARE_NAME.search(text):
        hint = (
            ' hint: a topic with other characters than letters, digits and _ needs double quotes, as in FROM "my-topic"'
        )
    return InvalidRequestError(f"the query failed: {text}{hint}")


def _tables_of(connection: duckdb.DuckDBPyConnection, query: str) -> list[_Table]:
    """Return the tables that a query names, each once. Raises InvalidRequestError if the text is not one query."""
    statements = connection.extract_statements(query)
    kinds = [str(each.type).rpartition(".")[2] for each in statements]
    if kinds != ["SELECT"]:
        found = ", ".join(kinds) or "nothing"
        raise InvalidRequestError(
            f"expected one query that only reads, found {found}. "
            "hint: write one SELECT, WITH, FROM, DESCRIBE or SUMMARIZE"
            + (", and PIVOT with its values, as in PIVOT orders ON country IN ('DE', 'FR')" if "MULTI" in kinds else "")
        )
    # DuckDB's own list of names needs the columns, which are not known yet.
    ((parsed,),) = connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    try:
        tables = list(dict.fromkeys(_tables(json.loads(parsed), frozenset())))
    except RecursionError:
        raise InvalidRequestError("the query is too deeply nested") from None
    if not tables:
        raise InvalidRequestError(
            "the query names no topic, and it can read topics only. "
            "hint: name one, as in FROM orders or FROM latest('orders'); `txlog topics list` shows them"
        )
    folded: dict[str, str] = {}
    for name in (each.topic for each in tables):
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise InvalidRequestError(
                f"the query names {other!r} and {name!r}, and DuckDB does not distinguish upper and lower case. "
                "hint: write both in the case of the topic, or query one topic at a time"
            )
    return tables


def _tables(node: Any, ctes: frozenset[str]) -> Iterator[_Table]:
    """Yield the tables in a parsed query that are not one of the `ctes`, which are names of WITH in lower case."""
    if isinstance(node, list):
        for each in node:
            yield from _tables(each, ctes)
    if not isinstance(node, dict):
        return
    if node.get("type") == "RECURSIVE_CTE_NODE":
        ctes |= {node["cte_name"].lower()}
    # A WITH sees the ones before it, and not itself: `WITH orders AS (FROM orders)` reads the topic.
    for each in (node.get("cte_map") or {}).get("map", ()):
        yield from _tables(each["value"], ctes)
        ctes |= {each["key"].lower()}
    if node.get("type") == "BASE_TABLE":
        name = node["table_name"]
        if above := [part for part in (node["catalog_name"], node["schema_name"]) if part]:
            whole = ".".join([*above, name])
            hint = f'quote a name with dots, as in FROM "{whole}"'
            if above[-1].lower() in _OWN_SCHEMAS:
                hint = "`txlog topics list` shows the topics"
            raise InvalidRequestError(f"the query reads {whole}, which is not the name of a topic. hint: {hint}")
        if name.lower() not in ctes:
            yield _Table(name)
    if node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == "latest":
        yield _Table(_topic_of_latest(node["function"]["arguments"]), latest=True)
    for key, value in node.items():
        if key != "cte_map":
            yield from _tables(value, ctes)


def _topic_of_latest(arguments: Sequence[Any]) -> str:
    """Return the topic of `latest('topic')`. Raises InvalidRequestError unless it is one text."""
    literal = arguments[0]["expression"].get("literal") if len(arguments) == 1 else None
    if literal is None or literal["kind"] != "STRING":
        raise InvalidRequestError(
            "latest(...) takes the name of one topic, in single quotes, as in FROM latest('people')"
        )
    return str(literal["text"])


def _distinct(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a result with distinct names, as DuckDB gives them to a subquery: a, a_1."""
    import pyarrow as pa

    names: list[str] = []
    for name in schema.names:
        others = (f"{name}_{number}" for number in itertools.count(1))
        names.append(
            name if name not in names else next(each for each in others if each not in (*names, *schema.names))
        )
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


# -- the result -------------------------------------------------------------------------------------------------------


def _output(out: Output, kind: ResultFormat, schema: pa.Schema, interrupts: Interrupts) -> RowOutput:

    if kind is ResultFormat.TABLE:
        return _TableOutput(out, schema.names)
    # Before the first line of the output.
    spans = [field.name for field in schema if _has_interval(field.type)]
    if spans and kind in (ResultFormat.CSV, ResultFormat.PARQUET):
        raise InvalidRequestError(
            f"--output {kind} cannot write column {spans[0]!r}, which has an INTERVAL. "
            "hint: convert it in the query, as in "
            f'CAST("{spans[0]}" AS VARCHAR)'
        )
    with _writable(kind):
        return row_output(FileFormat(kind), schema, interrupts, "--output")


def _has_interval(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_interval(kind) or any(_has_interval(kind.field(at).type) for at in range(kind.num_fields))


@contextmanager
def _writable(kind: ResultFormat) -> Iterator[None]:
    """Raise InvalidRequestError for a value that the format or Python does not have, such as a date after year 9999."""
    try:
        yield
    except (ValueError, OverflowError, NotImplementedError) as error:
        raise InvalidRequestError(
            f"--output {kind} cannot write this result: {error}. "
            "hint: convert the column in the query, as in CAST(a AS VARCHAR)"
        ) from None


class _TableOutput:
    """Collect the rows, and write them as a table."""

    is_complete = False

    def __init__(self, out: Output, names: Sequence[str]) -> None:
        self._out = out
        self._names = names
        self._rows: list[list[Cell]] = []

    @property
    def is_full(self) -> bool:
        return len(self._rows) > _TABLE_ROWS

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.slice(0, _TABLE_ROWS + 1 - len(self._rows)).to_pylist():
            self._rows.append([_cell(row[name]) for name in self._names])

    def close(self) -> None:
        self._out.table(self._names, self._rows[:_TABLE_ROWS], empty="No rows.")
        if self.is_full:
            self._out.flush()
            self._out.note(f"More rows follow the first {_TABLE_ROWS:,}. --output csv or json writes all of them.")


def _with_integers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with numbers in place of DuckDB's HUGEINT, which the sum of integers is."""
    import pyarrow as pa

    columns: list[Any] = list(batch.columns)
    for at, column in enumerate(columns):
        if column.type.equals(pa.decimal128(38, 0)):
            try:
                columns[at] = column.cast(pa.int64())
            except pa.ArrowInvalid:
                continue  # beyond 64 bits: JSON has the digits as text, as of every decimal
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _cell(value: Any) -> Cell:
    if value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
        return value
    plain = json_value(value)
    text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    # One row is one line, and a value cannot send commands to the terminal. An empty text is not a null.
    return shorten(text if text and text.isprintable() else json.dumps(text), _CELL)
