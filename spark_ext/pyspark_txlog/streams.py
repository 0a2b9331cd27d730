"""What does Spark say to `writeStream`, which is not there yet?"""

from __future__ import annotations

from typing import NoReturn

from txlog.errors import InvalidRequestError


def refuse(call: str) -> NoReturn:
    """Raises InvalidRequestError, saying what to do instead."""
    raise InvalidRequestError(
        f'there is no {call} yet for format("txlog"). Write with foreachBatch: in it df.write, the batch\'s number as txn.version, '
        "so that none is written twice"
    )
