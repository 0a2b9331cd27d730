"""Who appends the records that others let wait, while the process that has led goes on with its own work?"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.logs import log
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.waiting import Desk, lead_on, look_on
from txlog.storage.forks import lock_for_forks

_LOG = logging.getLogger(__name__)
_LOOK_MS = 8
"""A leader begins a look about this often, as far as its requests allow. So a slow store needs more threads."""
_MAX_LOOKERS = 8


class Leaders:
    """The threads of a process that lead. A partition has some of its own, until nothing waits there."""

    def __init__(self, run: Callable[[Program[None]], None]) -> None:
        """`run` runs a protocol program."""
        self._run = run
        self._lock = lock_for_forks()
        self._desks: dict[TopicPartition, Desk] = {}
        self._owner = os.getpid()
        self._closed = False

    def lead(self, ctx: Context, view: PartitionView, pace_ms: int) -> None:
        """Begin to lead in a partition, unless this process does that already. Returns at once.

        `pace_ms`: how long the last append took.
        """
        tp = view.topic_partition
        with self._lock:
            if self._owner != os.getpid():  # a fork has no threads
                self._owner, self._desks = os.getpid(), {}
            if self._closed or (tp in self._desks and self._desks[tp].is_open):
                return
            desk = self._desks[tp] = Desk(view, pace_ms=pace_ms)
        lookers = min(1 + pace_ms // _LOOK_MS, _MAX_LOOKERS)
        try:
            for program in (*(look_on(desk) for _ in range(lookers)), lead_on(ctx, desk)):
                threading.Thread(target=self._work, args=(desk, program), name=f"txlog-leads-{tp}", daemon=True).start()
        except BaseException as error:
            desk.is_open = False
            if not isinstance(error, Exception):
                raise
            # No more threads: the append that led holds, and another process leads next.
            log(_LOG, logging.DEBUG, "leading_ended", "leading in %s did not begin: %s", tp, error)

    def close(self) -> None:
        """Let all threads end. They finish what they are about to append."""
        with self._lock:
            self._closed = True
            for desk in self._desks.values():
                desk.is_open = False

    def _work(self, desk: Desk, program: Program[None]) -> None:
        try:
            self._run(program)
        except TxlogError as error:
            # What waits has its writer, which tries to lead when it sees no new record.
            text = "leading in %s ended: %s"
            log(_LOG, logging.DEBUG, "leading_ended", text, desk.view.topic_partition, error, exc_info=True)
        finally:
            desk.is_open = False
            with self._lock:
                if self._desks.get(desk.view.topic_partition) is desk:
                    del self._desks[desk.view.topic_partition]
