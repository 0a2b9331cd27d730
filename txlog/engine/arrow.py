"""How do Arrow rows become the files of a staged transaction? These names load pyarrow on import."""

from txlog.client.staged import MAX_INLINE_BYTES as MAX_INLINE_BYTES
from txlog.client.tables.latest import (
    LatestTask as LatestTask,
    compacted_end_of as compacted_end_of,
    latest_tasks as latest_tasks,
)
from txlog.client.topics.column_changes import add_columns as add_columns
from txlog.client.topics.column_names import ColumnNames as ColumnNames, topic_versions as topic_versions
from txlog.client.topics.row_writer import (
    check_keys as check_keys,
    key_columns_of as key_columns_of,
    keys_of_latest as keys_of_latest,
)
from txlog.client.transactions.staged_files import StagedFiles as StagedFiles, read_staged_folder as read_staged_folder
from txlog.core.names import staged_folder as staged_folder
from txlog.core.schema import value_columns as value_columns
from txlog.storage.arrow_evolution import columns_to_read as columns_to_read
from txlog.storage.conform import conform as conform
from txlog.storage.keys import NO_KEY as NO_KEY, partition_table as partition_table
