"""Every option of `format("txlog")`, from pyspark_txlog/option_table.py."""

from __future__ import annotations

from typing import Any

from conf.site.markdown import code, escape, table
from pyspark_txlog.option_table import KAFKA_OPTIONS, OPTIONS, SAME, Option

_CALLS = {
    "read": "`spark.read`",
    "readStream": "`spark.readStream`",
    "write": "`df.write`",
    "writeStream": "`df.writeStream`",
}
_HEAD = """# Spark options

The options of `format("txlog")`. If Spark's Kafka source has an option, txlog uses its name, default and JSON. An unknown option is an
error that names the nearest one. Options are read in any case.
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    rows = [[f"[{code(one.name)}](#{_anchor(one.name)})", ", ".join(map(code, one.calls))] for one in OPTIONS]
    lines += table(["option", "calls"], rows)
    for one in OPTIONS:
        lines += _section(one)
    lines += ["## Options of Spark's Kafka source and sink", ""]
    lines += ["txlog does not have these options. An error names the replacement.", ""]
    lines += table(
        ["Spark's Kafka", "where", "here"], [[code(one.name), one.side, escape(one.here)] for one in KAFKA_OPTIONS]
    )
    return "\n".join(lines)


def _section(one: Option[Any]) -> list[str]:
    lines = [f"## `{one.name}` {{ #{_anchor(one.name)} }}", "", escape(one.doc), ""]
    lines.append(f"- **Calls:** {', '.join(_CALLS[call] for call in one.calls)}.")
    lines.append(f"- **Value:** {escape(one.value.range)}.")
    default = code(one.default) or escape(one.otherwise) or "none; the call must give it" * bool(one.missing)
    if one.stream is not None:
        default += f"; for a stream {code(one.stream[0])}"
    lines.append(f"- **Default:** {default or 'none'}.")
    if one.overridden_by:
        lines.append(f"- **Does not count beside:** {', '.join(map(code, one.overridden_by))}.")
    if one.kafka is not None:
        lines.append(
            f"- **Spark's Kafka source or sink:** {'the same option' if one.kafka == SAME else escape(one.kafka)}."
        )
    if one.native:
        lines.append(f"- **`TxLog.to_dfs`:** {escape(one.native)}.")
    return [*lines, ""]


def _anchor(name: str) -> str:
    return name.lower().replace("<", "").replace(">", "")
