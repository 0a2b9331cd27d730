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

from txlog.client.groups import (
    ConsumerGroupMetadata as ConsumerGroupMetadata,
    GroupOffsets as GroupOffsets,
    group_offsets as group_offsets,
)
from txlog.client.reading import (
    ReadTask as ReadTask,
    columns_as_known as columns_as_known,
    piece_rows as piece_rows,
    plan_reads as plan_reads,
    read_session as read_session,
    read_task as read_task,
    take_cut as take_cut,
    tasks as tasks,
    topic_for as topic_for,
)
from txlog.client.session.arguments import checked_calls as checked_calls
from txlog.client.session.runtime import Runtime as Runtime
from txlog.client.session.session import Session as Session
from txlog.client.session.settings import Settings as Settings, call_layer as call_layer
from txlog.client.staged import StagedTransaction as StagedTransaction, producer_session as producer_session
from txlog.client.tables.packing import (
    MAX_TASK_BYTES as MAX_TASK_BYTES,
    offsets_of as offsets_of,
    pack_tasks as pack_tasks,
)
from txlog.client.transactions.coordinator import look_up as look_up, txn_version as txn_version
from txlog.config import KEYS as KEYS, IsolationLevel as IsolationLevel, Layer as Layer
from txlog.core.fetch_plan import (
    FilePiece as FilePiece,
    InlinePiece as InlinePiece,
    Piece as Piece,
    RowRange as RowRange,
)
from txlog.core.groups import OffsetsCondition as OffsetsCondition
from txlog.core.names import TopicPartition as TopicPartition
from txlog.core.records import (
    DataFile as DataFile,
    OffsetValue as OffsetValue,
    StagedPart as StagedPart,
    TransactionMetadata as TransactionMetadata,
)
from txlog.core.transactions import TxnVersion as TxnVersion, check_version as check_version, is_repeated as is_repeated
from txlog.protocol.context import PartitionView as PartitionView
from txlog.protocol.read import ReadIndexes as ReadIndexes, ReadPlan as ReadPlan, end_offset as end_offset
from txlog.protocol.transactions import EndResult as EndResult
from txlog.storage.backends import backend_of as backend_of
from txlog.storage.object_store import ObjectStore as ObjectStore
from txlog.storage.open import open_object_store as open_object_store
