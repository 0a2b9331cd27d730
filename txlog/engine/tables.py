"""What can an engine show about a store, apart from rows: partitions, groups, transactions, maintenance?"""

from __future__ import annotations

from txlog.client.admin.admin import Admin, describe_partition
from txlog.client.admin.descriptions import PartitionDescription
from txlog.core.names import parse_rows_path
from txlog.maintenance.history import read_history

__all__ = [
    "Admin",
    "PartitionDescription",
    "describe_partition",
    "parse_rows_path",
    "read_history",
]
