"""How does an object of the client show itself in a notebook?

`txlog.inspection.notebook` draws it. That module stands above the client, so it is imported by its name, and only when
an object is shown.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlog.client.session.runtime import Runtime


def repr_html(value: object, runtime: Runtime | None = None) -> str:
    """Return `value` as HTML. A table gives `runtime` to have its present partitions drawn. Never raises."""
    notebook: Any = importlib.import_module("txlog.inspection.notebook")
    found: str = notebook.html_of(value, runtime)
    return found
