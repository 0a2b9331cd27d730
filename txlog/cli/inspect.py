"""`txlog inspect`: how does a store look? A page in a file, or on this machine's loopback."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec

from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.options import Session, Topics, option
from txlog.errors import InvalidRequestError
from txlog.text import bytes_text

DEFAULT_PORT = 8187


class InspectDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A page that was written."""

    file: str
    bytes: int
    warnings: tuple[str, ...]
    """What is damaged or left out; the page has it, too."""


def inspect(
    session: Session,
    topics: Topics,
    html: Annotated[str | None, option("--html FILE", "Write the page to this file.")] = None,
    serve: Annotated[
        bool, option("--serve", "Serve the page at http://127.0.0.1, read again at each visit, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        option("--port N", f"The port of --serve; 0 takes a free one. (default: {DEFAULT_PORT})", min=0, max=65535),
    ] = None,
) -> None:
    """Draw the store as a page: partitions, transactions, consumer groups, files and maintenance.

    The page is one HTML file. It needs no network and no script. This command only reads, and needs the extra `page`.
    """
    if (html is None) == (not serve):
        raise InvalidRequestError(
            "where does the page go? hint: name --html FILE, or --serve to look at it in a browser; one of the two"
        )
    if port is not None and not serve:
        raise InvalidRequestError(f"--port {port} belongs to --serve. hint: leave it out with --html")
    # Local imports, because they load the client.
    from txlog.drawing.html import document
    from txlog.drawing.svg import check_installed, draw
    from txlog.inspection.overview import look

    check_installed()
    runtime = session.store.runtime
    for name in topics:
        runtime.topic(name, 0)
    if html is not None:
        target = _target(html)
        page = look(runtime, topics)
        data = document(page, draw).encode()
        _write(target, data)
        written = InspectDocument(file=str(target), bytes=len(data), warnings=tuple(page.warnings))
        session.out.show(written, lambda out: out.line(f"{target}: {bytes_text(len(data))}"))
        for warning in page.warnings:
            session.out.note(warning)
        return
    from txlog.cli.page_server import PageServer

    with (
        PageServer(DEFAULT_PORT if port is None else port, lambda: document(look(runtime, topics), draw)) as server,
        Interrupts() as interrupts,
    ):
        session.out.line(f"{server.url} shows {runtime.where}. Ctrl-C ends it.")
        session.out.flush()
        with contextlib.suppress(Interrupted), interrupts.at_once():
            server.serve_forever()


def _target(name: str) -> Path:
    """Return the path of the page. Raises InvalidRequestError before the store is read if it cannot be written."""
    target = Path(name)
    if target.is_dir():
        raise InvalidRequestError(f"--html {name!r} is a folder. hint: name a file in it")
    if not target.absolute().parent.is_dir():
        raise InvalidRequestError(f"--html {name!r}: its folder does not exist. hint: make the folder first")
    return target


def _write(target: Path, data: bytes) -> None:
    """Replace a file in one step, so that a browser never reads half a page."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(data)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidRequestError(
            f"--html {str(target)!r} cannot be written: {error.strerror or error}. hint: name a file that you may write"
        ) from error
