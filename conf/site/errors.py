"""Write the reference of errors: every class with meaning, cause and remedy, and below it every text that it has."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from conf.site.messages import CLASSES, NOTE, ROOT, templates
from txlog.errors import TxlogError, split_hint

SHORT = 80
"""The usual length of an anchor, in characters."""
_SECTION = re.compile(r"^(Cause|What to do):\s*", re.MULTILINE)

_INTRODUCTION = """\
# Errors

Every error of txlog is a `TxlogError`. Its group tells a program what to do next. Its text tells a person what
happened, and after `hint:` what to do.

The checks of damaged objects have more texts: for a text that is not listed do what its error says. A text below shows its values as `<name>`. Paste a message into this field to see its cause and what to do:

<form class="find-message" hidden>
<label for="message">Paste your message here</label>
<textarea id="message" rows="3" spellcheck="false" autocomplete="off" placeholder="topic 'sale' does not exist"></textarea>
<button class="md-button" type="submit">Go to its text</button>
<div id="found" role="status"></div>
</form>

The search of this site finds a message too. So does the address of this page, if you append the message after `#`.

| group | what a program does next | errors |
|---|---|---|
"""
_STYLE = """\
<style>
h3.message code { font-size: 0.8rem; white-space: normal; overflow-wrap: anywhere }
h3.message:target { background: var(--md-accent-fg-color--transparent) }
.find-message label { display: block; font-weight: 700 }
.find-message textarea {
  background: var(--md-code-bg-color); border: 0.05rem solid var(--md-default-fg-color--light); border-radius: 0.1rem;
  box-sizing: border-box; color: var(--md-code-fg-color); font: 0.7rem/1.4 var(--md-code-font-family, monospace); padding: 0.4rem; width: 100%
}
.md-typeset .find-message .md-button { padding: 0.3em 1em }
.md-typeset .find-message .md-button:not(:hover, :focus) { color: var(--md-typeset-a-color) }
.advice { border-left: 0.2rem solid var(--md-accent-fg-color); padding-left: 0.6rem }
</style>
"""
_NOTES = """\
## Notes of Spark { #notes-of-spark }

After `pyspark_txlog.install()` a call may still use the Python data source. The log of Spark's driver then has a line such as
`load() of format("txlog") uses the Python data source: <reason>`, once for each reason.

* **Cause:** Spark's own reader or writer would not give the same result. The reason is one of the texts below.
* **What to do:** Nothing: the result is right. To make the call faster, change what the text names ([Spark](../spark.md#fast-by-one-line)).
"""
# Below all texts, because the script looks at them.
_SCRIPT = """\
<script src="../assets/errors.js"></script>
"""


def page() -> str:
    """Return reference/errors.md."""
    messages = templates()
    anchors = anchors_of([text for texts in messages.values() for text in texts])
    seen: dict[str, str] = {}  # a few texts belong to two errors
    codes = kafka_codes()
    lines = [_INTRODUCTION.rstrip("\n")]
    for group in _groups():
        members = [kind for kind in CLASSES if group in kind.__bases__]
        links = ", ".join(f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in (group, *members))
        lines.append(f"| `{group.__name__}` | {_linked(sections(group)['What to do'])} | {links} |")
    lines += ["", _STYLE]
    for kind in CLASSES:
        parts = sections(kind)
        lines += [f"## {kind.__name__} {{ #{kind.__name__.lower()} }}", "", parts["Meaning"], ""]
        if kind is not TxlogError:
            lines += [f"* **Group:** {_group_of(kind).__name__}"]
        if codes.get(kind.__name__):
            lines += [f"* **Kafka:** {codes[kind.__name__]}"]
        lines += [f"* **{name}:** {_linked(parts[name])}" for name in ("Cause", "What to do")]
        lines += [""]
        for text in messages[kind.__name__]:
            anchor = anchors.pop(text, "") or f"{seen[text]}-{kind.__name__.lower()}"
            seen[text] = anchor
            lines += _message(text, anchor)
    lines += [_NOTES]
    for text in messages[NOTE]:
        lines += _message(text, f"note-{anchors[text]}")
    return "\n".join([*lines, _SCRIPT])


def _message(text: str, anchor: str) -> list[str]:
    problem, hint = split_hint(text)
    lines = [f"### {_code(problem)} {{ #{anchor} .message }}", ""]
    if hint:
        pages = re.findall(r'the page "([^"]+)"', hint)
        see = "".join(f" See [{title}](../{_page_names()[title]})." for title in pages)
        lines += [f"Hint: {_code(hint)}{see}", ""]
    return lines


@cache
def _page_names() -> dict[str, str]:
    """Return the file names of the pages by their titles."""
    pages = (ROOT / "docs").glob("*.md")
    return {page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "): page.name for page in pages}


def sections(kind: type[TxlogError]) -> dict[str, str]:
    """Return the parts of an error's docstring: Meaning, Cause and What to do."""
    first, *rest = _SECTION.split(inspect.cleandoc(kind.__doc__ or ""))
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return {"Meaning": first.strip(), **{name: " ".join(text.split()) for name, text in pairs}}


def kafka_codes() -> dict[str, str]:
    """Return Kafka's names of the errors, from the table of PROTOCOL.md."""
    protocol = (ROOT / "PROTOCOL.md").read_text(encoding="utf-8")
    table = protocol.partition("\n## Errors\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"`(\w+Error)`(?: \(([^)]*)\))?", table))


def anchors_of(texts: list[str]) -> dict[str, str]:
    """Return a unique anchor for each text, made from its words.

    An anchor changes only with its text, or when another text with the same first words appears.
    """
    short = {text: _slug(split_hint(text)[0])[:SHORT].rstrip("-") for text in texts}
    long = {text: _slug(text) for text in short}
    of_short, of_long = Counter(short.values()), Counter(long.values())
    taken = {kind.__name__.lower() for kind in CLASSES}
    found = {}
    for text, anchor in short.items():
        if of_short[anchor] > 1 or anchor in taken:
            anchor = long[text]
        if of_long[anchor] > 1 or not anchor:
            anchor += "-" + hashlib.sha256(text.encode()).hexdigest()[:8]
        found[text] = anchor
    return found


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^<>]*>", " ", text).lower()).strip("-")


def _groups() -> Iterator[type[TxlogError]]:
    yield from (kind for kind in CLASSES if TxlogError in kind.__bases__)


def _group_of(kind: type[TxlogError]) -> type[TxlogError]:
    return next(group for group in _groups() if issubclass(kind, group))


def _linked(text: str) -> str:
    """Return the text with links to the pages that it names."""
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
