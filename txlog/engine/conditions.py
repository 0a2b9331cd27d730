"""Which rows does a condition `where` keep, and which files does it skip?

`check` parses the text. `bind` binds it to the columns of a topic and returns a `Predicate`, the filter of a
`ReadTask`. Its `root` is a tree of plain values, from which an engine makes its own filter.
"""

from txlog.client.tables.predicate import (
    Every as Every,
    Known as Known,
    Node as Node,
    Null as Null,
    OneOf as OneOf,
    Predicate as Predicate,
    Some as Some,
    Value as Value,
)
from txlog.client.tables.where import bind as bind, check as check
