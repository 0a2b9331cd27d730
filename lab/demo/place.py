"""In which store does the demo run, and what becomes of it afterwards?"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.demo.show import Show
from pyspark_txlog.option_values import storage_settings
from txlog.cli.options import Session
from txlog.errors import InvalidRequestError, TxlogError
from txlog.storage.open import open_object_store

PROGRAM = "txlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The store of the demo."""

    url: str
    storage_options: Mapping[str, object]

    @property
    def spark_options(self) -> dict[str, str]:
        """The options of the store's driver, as Spark takes them."""
        return storage_settings(self.storage_options)


@contextmanager
def place(show: Show, session: Session, keep: bool) -> Iterator[Place]:
    """The store that was named, which must be empty, or a temporary folder, removed unless it is to be kept."""
    options = session.settings.storage_options
    url = session.settings.store
    temporary = url is None
    # Absolute: other processes open it too.
    url = tempfile.mkdtemp(prefix="txlog-demo-") if url is None else check_empty(url, options)
    keep |= not temporary
    try:
        yield Place(url=url, storage_options=options)
        if keep:
            show.paragraph("The store stays; look at it:")
            show_commands(
                show, url, temporary, "topics describe --size", "transactions list", "history", "dump-log weather/1"
            )
    except Exception:
        # An expectation failed. Keep the store, if it exists, for inspection.
        if keep := not _is_empty(url, options):
            show.paragraph(
                f"The demo has failed; why is said below. How far it came is in its store, {url}, which is kept:"
            )
            show_commands(show, url, temporary, "topics describe", "transactions list")
        raise
    finally:
        if temporary and not keep:
            shutil.rmtree(url, ignore_errors=True)


def check_empty(url: str, options: Mapping[str, object]) -> str:
    """Return the location; a local one as an absolute path.

    Raises InvalidRequestError if the store is not empty, or cannot be shared by several processes.
    """
    advice = "Name an empty one with --store; without it, and without TXLOG_STORE, the demo makes a temporary one"
    store = open_object_store(url, options)
    if store.url.startswith("memory:"):
        raise InvalidRequestError(f"{store.url} belongs to one process, but the demo has several. {advice}")
    if store.list(""):
        raise InvalidRequestError(f"{store.url} is not empty, and the demo needs an empty store. {advice}")
    return url if "://" in url else str(Path(url).expanduser().absolute())


def show_commands(show: Show, url: str, temporary: bool, *commands: str) -> None:
    """Print commands for looking at the store, ready to copy; and the command that removes it, if it is temporary."""
    program, url = shlex.quote(program_here()), shlex.quote(url)
    for words in commands:
        show.command(f"{program} {words} --store {url}")
    if temporary:
        show.command(f"rm -r {url}")


def _is_empty(url: str, options: Mapping[str, object]) -> bool:
    try:
        return not open_object_store(url, options).list("")
    except TxlogError:
        return False


def program_here() -> str:
    """Return how a shell starts this `txlog`: by its name alone only if the shell would find this one."""
    here = Path(sys.argv[0]).absolute()
    if here.name != PROGRAM or not here.exists():
        here = Path(sys.executable).with_name(PROGRAM)
    found = shutil.which(PROGRAM)
    return PROGRAM if found is not None and os.path.realpath(found) == os.path.realpath(here) else str(here)
