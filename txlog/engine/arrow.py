"""How do Arrow rows become the files of a staged transaction? These names load pyarrow on import."""

from txlog.client.staged import MAX_INLINE_BYTES
from txlog.client.topics.column_changes import add_columns
from txlog.client.topics.column_names import ColumnNames, topic_versions
from txlog.client.topics.row_writer import check_keys, key_columns_of
from txlog.client.transactions.staged_files import StagedFiles, read_staged_folder
from txlog.core.compaction import value_columns
from txlog.core.names import staged_folder
from txlog.storage.arrow_evolution import columns_to_read
from txlog.storage.conform import conform
from txlog.storage.keys import NO_KEY, partition_table
