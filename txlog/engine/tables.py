"""What can an engine show about a store, apart from rows: partitions, groups, transactions, maintenance?"""

from txlog.client.admin.admin import Admin, describe_partition
from txlog.client.admin.descriptions import PartitionDescription
from txlog.core.names import parse_rows_path
from txlog.maintenance.history import read_history
