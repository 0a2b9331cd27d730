"""Which names does an engine use to read and write topics? Spark's source and sink use only these and `txlog` itself.

A user's program needs only `txlog`. An engine has a driver and workers, so it divides the work:

* **Read.** The driver opens a `Runtime` and plans with a `read_session`: `plan_reads` gives a `ReadPlan` for each
  partition, and `tasks` gives picklable `ReadTask`s. A worker calls `read_task` and gets Arrow batches. For several
  topics at one point, the driver plans on a cut of `take_cut`.
* **Write.** The driver begins a `StagedTransaction` and sends its `txn` to the workers. Each worker collects rows in
  `txlog.engine.arrow.StagedFiles` and returns the parts. The driver commits all parts with one decision.

The other modules of this package:

* `conditions` parses `where`, and skips files by it;
* `offsets` finds the offsets that a user asks for, and commits them;
* `schemas` has a topic's metadata, its columns and their types;
* `arrow` has the names that load pyarrow;
* `tables` reads what a store contains.

Names of this module load neither pyarrow nor a store's driver, so that planning processes start fast.
"""

from txlog.client.groups import ConsumerGroupMetadata, GroupOffsets, group_offsets
from txlog.client.reading import (
    ReadTask,
    columns_as_known,
    piece_rows,
    plan_reads,
    read_session,
    read_task,
    take_cut,
    tasks,
    topic_for,
)
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.session.settings import Settings, call_layer
from txlog.client.staged import StagedTransaction, producer_session
from txlog.client.tables.packing import MAX_TASK_BYTES, offsets_of, pack_tasks
from txlog.client.transactions.coordinator import look_up, txn_version
from txlog.config import KEYS, IsolationLevel, Layer
from txlog.core.fetch_plan import FilePiece, InlinePiece, Piece, RowRange
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile, OffsetValue, StagedPart, TransactionMetadata
from txlog.core.transactions import TxnVersion, check_version, is_repeated
from txlog.protocol.context import PartitionView
from txlog.protocol.read import ReadIndexes, ReadPlan, end_offset
from txlog.protocol.transactions import EndResult
from txlog.storage.backends import backend_of
from txlog.storage.object_store import ObjectStore
from txlog.storage.open import open_object_store
