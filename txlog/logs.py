"""How does txlog log? With `logging`, one line for each event, and the same fields in the text and as attributes.

Loggers have the names of modules, below `txlog` and `pyspark_txlog`. A handler of the program gets all records. Without
one, only errors are printed, and a skipped transaction with a version that is too low. Spark's Python workers and the
program `txlog` print warnings, too. `TXLOG_LOG_LEVEL=INFO` prints more without a change of the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack

if TYPE_CHECKING:
    from txlog.core.records import TransactionMetadata

PREFIX = "txlog_"
"""Each field is an attribute of the record with this prefix, as in `record.txlog_transactional_id`."""
LEVEL_VARIABLE = "TXLOG_LOG_LEVEL"
ROOTS = ("txlog", "pyspark_txlog")
_dictionary = ""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Fields(TypedDict, total=False):
    """The fields that a record may have beside `txlog_event`, which every record has."""

    store: str
    """Location, without credentials."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    last_txn_version: int
    """The last committed one, if a transaction was skipped because its own is not above it."""
    txn_scope: str
    """What a `txn.version` counts for: the id of a streaming query, or empty."""
    group_id: str
    member_id: str
    generation_id: int
    topic: str
    topic_partition: str
    """As in `orders-0`."""
    offset: int
    offsets: Mapping[str, int]
    """Offsets by topic-partition. Of a commit: where the log ended after its marker. Of a group: what it committed."""
    partitions: tuple[str, ...]
    """Topic-partitions."""
    query_id: str
    batch_id: int
    """Number of a micro-batch."""
    call: str
    """What a retried call does."""
    attempt: int
    error: str
    """Name of the error's class."""
    job: str
    step: str
    """Step of a maintenance round."""
    count: int


def log(
    logger: logging.Logger,
    level: int,
    event: str,
    text: str,
    *args: object,
    txn: TransactionMetadata | None = None,
    exc_info: bool = False,
    **fields: Unpack[Fields],
) -> None:
    """Log one event, if `level` is on.

    `text` and `args` are as in `logging`; `txn` gives the fields of its identity.
    """
    if not logger.isEnabledFor(level):
        return
    extra: dict[str, object] = {PREFIX + "event": event}
    if txn is not None:
        extra[PREFIX + "transactional_id"] = txn.transactional_id
        extra[PREFIX + "producer_id"] = txn.producer_id
        extra[PREFIX + "producer_epoch"] = txn.producer_epoch
    extra |= {PREFIX + name: value for name, value in fields.items()}
    if _dictionary:
        extra[_dictionary] = {name: str(value) for name, value in extra.items()}
    logger.log(level, text, *args, extra=extra, exc_info=exc_info, stacklevel=2)


def also_as(attribute: str) -> None:
    """Give each record one more attribute: a dictionary with all its fields as text, for formatters that expect one."""
    global _dictionary  # noqa: PLW0603  one for a process, as logging itself
    _dictionary = attribute


class _Printer(logging.Handler):
    """Print to standard error what no handler of the program gets."""

    prints_warnings = True
    """If not, only warnings of rows that are not written and that no exception shows."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[str] = []
        """Events that the program shows itself."""

    def _shows(self, record: logging.LogRecord) -> bool:
        event = getattr(record, PREFIX + "event", "")
        quiet = record.levelno < logging.ERROR and not self.prints_warnings and event != "transaction_skipped"
        return not quiet and event not in self.hidden

    def emit(self, record: logging.LogRecord) -> None:
        if self._shows(record) and not _is_handled(record.name):
            try:
                print(self.format(record), file=sys.stderr, flush=True)
            except Exception:
                self.handleError(record)


def _is_handled(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, _Printer) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def print_from(level: int, root: str = "txlog") -> None:
    """Print records of `root` from `level` on, unless the program has handlers, or the environment names another level.

    From ERROR on, a WARNING of a skipped transaction is printed, too.
    """
    wanted = _wanted_level()
    _PRINTERS[root].prints_warnings = wanted is not None or level < logging.ERROR
    _PRINTERS[root].setLevel(wanted or min(level, logging.WARNING))


@contextlib.contextmanager
def not_printed(event: str, root: str = "txlog") -> Iterator[None]:
    """Do not print this event, because the program shows it itself. The environment's level still prints it."""
    hidden = [] if _wanted_level() else [event]
    _PRINTERS[root].hidden += hidden
    try:
        yield
    finally:
        for each in hidden:
            _PRINTERS[root].hidden.remove(each)


def _wanted_level() -> str | None:
    wanted = os.environ.get(LEVEL_VARIABLE, "").strip().upper()
    return wanted if wanted in LEVELS else None


def _install() -> None:
    wanted = _wanted_level()
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s" if wanted else "txlog: %(message)s"
    for root, printer in _PRINTERS.items():
        printer.setFormatter(logging.Formatter(text))
        logger = logging.getLogger(root)
        logger.addHandler(printer)
        if wanted and logger.level == logging.NOTSET:
            logger.setLevel(wanted)
    print_from(logging.ERROR, "txlog")
    # In Spark a write may do nothing, or a read may skip rows, and no result shows it.
    print_from(logging.WARNING, "pyspark_txlog")
    if os.environ.get(LEVEL_VARIABLE) and not wanted:
        # Not an error: every import of txlog would raise it, also that of a process of Spark.
        logging.getLogger(__name__).error(
            "%s=%s is not a level. hint: use %s", LEVEL_VARIABLE, os.environ[LEVEL_VARIABLE], ", ".join(LEVELS)
        )


_PRINTERS = {root: _Printer() for root in ROOTS}
_install()
