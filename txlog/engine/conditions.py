"""Which rows does a condition `where` keep, and which files does it skip?

`check` parses the text. `bind` binds it to the columns of a topic and returns a `Predicate`, the filter of a
`ReadTask`. Its `root` is a tree of plain values, from which an engine makes its own filter.
"""

from txlog.client.tables.predicate import Every, Known, Node, Null, OneOf, Predicate, Some, Value
from txlog.client.tables.where import bind, check
