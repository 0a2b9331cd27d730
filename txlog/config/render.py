"""How does conf/txlog.toml show the table of settings?"""

from __future__ import annotations

import textwrap

from txlog.config.key import SCOPES, ConfigKey
from txlog.config.table import SCOPE_DOCS, keys_of


def render_toml() -> str:
    """Return the table as conf/txlog.toml.

    It has every key with its sentence, default and range, each line ready to be uncommented.
    """
    lines = [
        "# Settings of txlog, with their defaults. Uncomment the settings to change, and name this file in TXLOG_CONFIG or",
        "# --config. A setting that is given to a call, a client or a topic overrides the one here.",
        "#",
        "# Written by conf/generate.py from the table in txlog/config/table.py; edit it there.",
    ]
    for scope in SCOPES:
        lines += ["", "", f"# {SCOPE_DOCS[scope]}", f"[{scope}]"]
        for key in keys_of(scope):
            lines += ["", *_render_key(key)]
    return "\n".join(lines) + "\n"


def _render_key(key: ConfigKey) -> list[str]:
    lines = [*textwrap.wrap(key.doc, 112), f"Default: {key.default_text}; {key.expected}."]
    if key.kafka_default:
        lines += textwrap.wrap(f"Kafka's default: {key.kafka_default}.", 112)
    return [*(f"# {line}" for line in lines), f"#{key.name} = {_toml(key)}"]


def _toml(key: ConfigKey) -> str:
    if key.kind == "bool" and key.default is None:
        return "true"
    if key.kind in ("int", "float", "bool"):
        return key.text(key.default)
    if isinstance(key.default, tuple):
        return "[" + ", ".join(f'"{item}"' for item in key.default) + "]"
    return '"..."' if key.default is None else f'"{key.default}"'
