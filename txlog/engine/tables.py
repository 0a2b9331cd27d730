"""The calls for an engine's metadata tables: partitions, groups, transactions, maintenance."""

from txlog.client.admin.admin import Admin as Admin, describe_partition as describe_partition
from txlog.client.admin.descriptions import PartitionDescription as PartitionDescription
from txlog.core.names import parse_rows_path as parse_rows_path
from txlog.maintenance.history import read_history as read_history
