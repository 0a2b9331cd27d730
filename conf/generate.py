"""Write the files that repeat what stands elsewhere (`make conf`).

conf/txlog.toml and the options in docs/kafka.md repeat tables in the code, conf/minimum.txt what pyproject.toml
declares.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pyspark_txlog.option_table import KAFKA_OPTIONS, OPTIONS, Call, Option
from txlog.config import SCOPES, ConfigKey, Scope, keys_of
from txlog.storage.backends import BACKENDS

ROOT = Path(__file__).parent.parent
SCOPE_DOCS: dict[Scope, str] = {
    "client": "An opened store: topics, administration.",
    "producer": "Producers, and Spark's writes.",
    "consumer": "Consumers.",
    "topic": "Topics, unless their own configuration has the setting.",
    "store": "Constants of a store. They are fixed when it is made, at its first topic, and ignored afterwards.",
}
START, END = "<!-- options: written by conf/generate.py -->\n", "<!-- /options -->\n"


def render_toml() -> str:
    """Return the table as conf/txlog.toml.

    It has every key with its sentence, default and range, each line ready to be uncommented.
    """
    lines = [
        "# Settings of txlog, with their defaults. Uncomment the settings to change, and name this file in "
        "TXLOG_CONFIG or",
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


def with_options(page: str) -> str:
    """The page with the tables between its two markers. Raises ValueError if it has not both."""
    before, found, rest = page.partition(START)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"docs/kafka.md has no {START.strip()} and {END.strip()}")
    return f"{before}{START}\n{render_options()}\n{END}{after}"


def render_options() -> str:
    """Return both tables as Markdown, the part of docs/kafka.md between the two markers."""
    lines = ["### Options of Spark's Kafka source and sink", ""]
    lines += ['| Spark\'s Kafka | where | in `format("txlog")` |', "|---|---|---|"]
    rows = [(one.name, _side_of(one.calls), one.kafka) for one in OPTIONS if one.kafka is not None]
    rows += [(one.name, one.side, one.here) for one in KAFKA_OPTIONS]
    lines += [
        f"| `{name}` | {where} | {_cell(here)} |" for name, where, here in sorted(rows, key=lambda row: row[0].lower())
    ]
    lines += ["", '### All options of `format("txlog")`', ""]
    lines += ["| option | calls | default | range | |", "|---|---|---|---|---|"]
    lines += [
        f"| `{option.name}` | {_calls_of(option.calls)} | {_default_of(option)} | {_cell(option.value.range)} | "
        f"{_cell(option.doc)} |"
        for option in OPTIONS
    ]
    return "\n".join(lines) + "\n"


def _side_of(calls: Sequence[Call]) -> str:
    return "source" if set(calls) <= {"read", "readStream"} else "sink"


def _calls_of(calls: Sequence[Call]) -> str:
    return "all" if set(calls) == set(get_args(Call)) else ", ".join(calls)


def _default_of(option: Option[Any]) -> str:
    if option.stream is not None:
        return f"{option.default}; in a stream: {option.stream[0]}"
    return f"`{option.default}`" if option.default else option.otherwise


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def lowest_versions() -> str:
    """Return pip's constraints for the lowest versions of everything but Spark, on the lowest Python with them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (*(backend.extra for backend in BACKENDS), "metrics", "otel")
    chosen = [project["optional-dependencies"][name] for name in extras]
    python = project["requires-python"].removeprefix(">=")
    lines = []
    for requirement in sorted(sum(chosen, project["dependencies"])):
        name, version = re.findall(r"^([\w-]+)>=([\d.]+)$", requirement)[0]
        lines.append(f'{name}=={version} ; python_version == "{python}"\n')
    return "# Written by conf/generate.py, for make test-minimum.\n" + "".join(lines)


if __name__ == "__main__":
    (ROOT / "conf" / "minimum.txt").write_text(lowest_versions(), encoding="utf-8")
    (ROOT / "conf" / "txlog.toml").write_text(render_toml(), encoding="utf-8")
    page = ROOT / "docs" / "kafka.md"
    page.write_text(with_options(page.read_text(encoding="utf-8")), encoding="utf-8")
