"""When does a new file come into a folder? The kernel tells it, if the package `inotify-simple` is installed.

Files of other machines, on a network file system, are not seen. So a wait is never longer than without this.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from txlog.clock import Clock

if TYPE_CHECKING:
    from inotify_simple import INotify


class FolderWatch:
    """A Watch of folders below `root`; see the port for the contract.

    Each folder reports one event and is then watched anew. So a program that does not wait for hours finds one event
    for each folder, not one for each file.
    """

    def __init__(self, root: str, inotify: INotify, mask: int, clock: Clock) -> None:
        self._root = root
        self._inotify = inotify
        self._mask = mask
        self._clock = clock
        self._watched: dict[str, int] = {}
        # Closed with this object, too: a user has few of them, and a program may forget to close its consumers.
        self._close = weakref.finalize(self, inotify.close)

    @classmethod
    def of(cls, root: str, clock: Clock) -> Self | None:
        """Return a watch; None without the package, on other systems than Linux, and if the system has no more."""
        try:
            from inotify_simple import INotify, flags

            return cls(root, INotify(), flags.CREATE | flags.MOVED_TO | flags.ONESHOT | flags.ONLYDIR, clock)
        except (ImportError, AttributeError, OSError) as error:
            # A C library that does not load is an OSError without a number, too.
            if type(error) is not OSError:
                _raise_of_handler(error)
            return None

    def wait(self, folders: Iterable[str], ms: int) -> None:
        try:
            if not self._begin(folders):
                # An interrupt may lose events that were read; a full queue (-1) has lost some. Then begin all again.
                watched, self._watched = self._watched, {}
                told = {event.wd for event in self._inotify.read(max(ms, 0))}
                if -1 not in told:
                    self._watched = {folder: number for folder, number in watched.items() if number not in told}
                # Before the caller looks, so that no file comes unseen after its look.
                self._begin(folders)
        except (OSError, ValueError) as error:
            # The system fails, or the handler of a signal has closed the watch.
            if not self._inotify.closed:
                _raise_of_handler(error)
            self._clock.sleep_ms(ms)

    def close(self) -> None:
        self._close()

    def _begin(self, folders: Iterable[str]) -> bool:
        """Watch these folders. Return whether one of them was not watched."""
        before = len(self._watched)
        for folder in folders:
            if folder not in self._watched:
                path = os.path.join(self._root, folder)
                # The folder may come with its first file: until then the one above is watched. Or the system may have
                # no watches left.
                try:
                    try:
                        self._watched[folder] = self._inotify.add_watch(path, self._mask)
                    except FileNotFoundError:
                        self._watched[folder] = self._inotify.add_watch(os.path.dirname(path[:-1]), self._mask)
                except OSError as error:
                    _raise_of_handler(error)
        return len(self._watched) > before


def _raise_of_handler(error: Exception) -> None:
    """Raise what the handler of a signal has raised. Errors of inotify's calls have a number."""
    if isinstance(error, OSError | ValueError) and not getattr(error, "errno", 0):
        raise error
