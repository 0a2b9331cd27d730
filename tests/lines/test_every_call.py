"""Is each public call interrupted in a case? A new one needs a case, or a reason why it needs none."""

from __future__ import annotations

import txlog
from tests.lines.readers import CALLS, POLLS
from tests.lines.test_interrupted_calls import CALLS as OTHERS
from tests.lines.test_interrupted_writers import CASES
from txlog.client.admin.admin import Admin
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.producer.transaction_scope import TransactionScope
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.tables.snapshot import Snapshot
from txlog.client.tables.table import Changes, TopicTable
from txlog.client.transactions.staged_files import StagedFiles

CLASSES = (
    Admin, Changes, Consumer, Producer, Snapshot, StagedFiles, StagedTransaction, Store, TopicTable, TransactionScope
)  # fmt: skip
SPECIAL = ("__enter__", "__exit__", "__iter__", "__arrow_c_stream__")
WRITERS = {"enter": "__enter__", "leave": "__exit__"}
IN_MEMORY = "returns what is in memory, and changes nothing"
NO_CASE = {
    "Consumer.__enter__": "checks the process, and changes nothing",
    "Consumer.assignment": IN_MEMORY,
    "Consumer.awaited": IN_MEMORY,
    "Consumer.paused": IN_MEMORY,
    "Consumer.subscription": IN_MEMORY,
    "Producer.producer_epoch": IN_MEMORY,
    "Producer.producer_id": IN_MEMORY,
    "Snapshot.offsets": IN_MEMORY,
    "StagedTransaction.producer_epoch": IN_MEMORY,
    "StagedTransaction.producer_id": IN_MEMORY,
    "StagedTransaction.resume": "only makes an object: no request",
    "StagedTransaction.session": IN_MEMORY,
    "StagedTransaction.transactional_id": IN_MEMORY,
    "StagedTransaction.txn": IN_MEMORY,
    "Store.__enter__": IN_MEMORY,
    "Store.url": IN_MEMORY,
    "TransactionScope.__enter__": "is begin_transaction; the case Producer.transaction runs it",
    "TransactionScope.__exit__": "is commit_transaction or abort_transaction; the case Producer.transaction runs it",
}


def public() -> set[str]:
    """Return every public call of the classes that a program or an engine uses."""
    return {"txlog.open"} | {
        f"{each.__name__}.{name}"
        for each in CLASSES
        for name, value in vars(each).items()
        if (not name.startswith("_") or name in SPECIAL)
        and (callable(value) or isinstance(value, classmethod | property))
    }


def with_a_case() -> set[str]:
    return {
        *(call.method for call in OTHERS),
        *(f"Consumer.{case.method}" for case in (*POLLS, *CALLS)),
        *(f"Producer.{WRITERS.get(case.call, case.call)}" for case in CASES if case.call != "result"),
    }


def test_every_public_call_has_a_case_or_a_reason() -> None:
    assert public() == with_a_case() | set(NO_CASE)
    assert not with_a_case() & set(NO_CASE)
    assert txlog.Store is Store


def test_the_classes_are_all_that_a_program_gets() -> None:
    """What `txlog` and `txlog.engine` export with calls of its own is in the table."""
    import txlog.engine

    values = {"ConsumerGroupMetadata", "OffsetAndMetadata", "TopicPartition", "Runtime", "Session", "Settings"}
    names = {name: getattr(txlog, name) for name in txlog.__all__} | vars(txlog.engine)
    exported = {
        name
        for name, found in names.items()
        if isinstance(found, type) and found.__module__.startswith("txlog.client") and not issubclass(found, Exception)
    }
    assert exported - values - {each.__name__ for each in CLASSES} == {"GroupOffsets", "ReadTask"}
