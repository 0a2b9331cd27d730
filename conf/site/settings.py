"""Every setting, with its sentence, default and range, from the table in txlog/config/table.py."""

from __future__ import annotations

from conf.generate import SCOPE_DOCS
from conf.site.markdown import code, escape, table
from txlog.config import KEYS, SCOPES, ConfigKey, not_needed, other_names


def page() -> str:
    """Return the page."""
    lines = [
        "# All settings",
        "",
        f"txlog has {len(KEYS)} settings. [Settings](../settings.md) says which place wins if several give a value, "
        "and what the costly ones",
        "cost. An unknown key is an error that names the nearest one. For [settings of "
        "Kafka](#settings-of-kafka-that-txlog-does-not-have) that",
        "txlog does not have, the error says why.",
        "",
    ]
    left = dict(KEYS)
    for scope in SCOPES:
        mine = [left.pop(name) for name in list(left) if scope in left[name].scopes]
        lines += [f"## {scope.capitalize()}", "", SCOPE_DOCS[scope], ""]
        for key in mine:
            lines += _section(key)
    lines += [
        "## Settings of Kafka that txlog does not have",
        "",
        "txlog refuses these settings of Kafka's Java clients, librdkafka and kafka-python. The error gives the "
        "reason. `*` stands for any text.",
        "",
    ]
    lines += table(
        ["Kafka's setting", "why txlog does not need it"],
        [[code(name), f"{escape(_capital(why))}."] for name, why in sorted(not_needed().items())],
    )
    lines += ["These are other names for settings that txlog has. The error gives the name.", ""]
    lines += table(["another name", "here"], [[code(name), code(known)] for name, known in other_names().items()])
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _section(key: ConfigKey) -> list[str]:
    lines = [f"### `{key.name}`", "", escape(key.doc), "", f"- **Value:** {escape(key.expected)}."]
    lines.append(f"- **Default:** {code(key.default_text) if key.default not in (None, '', ()) else key.default_text}.")
    if key.kafka_default:
        lines.append(f"- **Kafka's default:** {escape(key.kafka_default)}.")
    lines.append(f"- **Belongs to:** {', '.join(scope for scope in SCOPES if scope in key.scopes)}.")
    return [*lines, ""]
