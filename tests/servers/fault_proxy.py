"""What happens if the network or the server fails at exactly this request? A proxy whose faults a test chooses.

It is between a driver and a server, so that the driver's own retries, timeouts and error texts take part. The proxy
does not know the kind of object store: `s3.error`, `gcs.error` and `azure.error` make the answers.

    with start("s3") as server, FaultProxy(server.url) as proxy:
        store = open_object_store(server.at(proxy.url).store_url("x"), …)
        proxy.strike(Fault(action="reset", moment="after", match="PUT .*/0001.batch"))

For long runs, `proxy.bad_weather(seed, share)` lets a share of all requests fail, in all these ways.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from tests.servers.http import (
    Request,
    Response,
    ServerThread,
    read_request,
    read_response,
    request_bytes,
    reset,
    response_bytes,
)

LATE_S = 0.3
"""In bad weather, the delay after which a request that its sender has given up is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What fails, when and where.

    answer  the client gets `answer`. before: the server never gets the request. after: it acts, and its own answer is
    lost. reset   the connection is reset, before the server gets the request or after it acts. cut     the server acts,
    and the connection is reset in the middle of its answer. stall   the client gets no more bytes, before or after the
    server acts; the connection stays open. late    the connection is reset at once. The server gets the request at
    `land`, or in bad weather after LATE_S.
    """

    action: Literal["answer", "reset", "cut", "stall", "late"]
    moment: Literal["before", "after"] = "before"
    answer: Response | Callable[[Request], Response] | None = None
    match: str = ""
    """Regular expression, searched in `METHOD /path?query`, as sent."""
    times: int = 1
    """The number of matching requests that fail."""


class FaultProxy:
    """A proxy in front of the server at `upstream`, in a thread of this process; a context manager."""

    def __init__(self, upstream: str) -> None:
        address = urllib.parse.urlsplit(upstream)
        self._upstream = (address.hostname, address.port)
        self._lock = threading.Lock()
        self._faults: list[tuple[Fault, int]] = []
        self._weather: tuple[random.Random, float, Sequence[Fault]] | None = None
        self._requests: list[str] = []
        self._struck = 0
        self._late: set[asyncio.Task[None]] = set()
        self._landing = asyncio.Event()
        self._server = ServerThread(self._connect)

    def __enter__(self) -> FaultProxy:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return self._server.url

    @property
    def requests(self) -> tuple[str, ...]:
        """`METHOD /path?query` of every request that came in, in order."""
        with self._lock:
            return tuple(self._requests)

    @property
    def struck(self) -> int:
        """The number of requests that failed."""
        return self._struck

    def strike(self, *faults: Fault) -> None:
        """Use only these faults from now on; `requests` and `struck` start again."""
        with self._lock:
            self._faults = [(fault, fault.times) for fault in faults]
            self._weather = None
            self._requests.clear()
            self._struck = 0

    def bad_weather(self, seed: int, share: float, faults: Sequence[Fault]) -> None:
        """Let `share` of all requests fail from now on, each in one of these ways (`match` counts, `times` does
        not)."""
        self.strike()
        with self._lock:
            self._weather = (random.Random(seed), share, faults)

    def land(self) -> None:
        """Send all late requests to the server now."""
        asyncio.run_coroutine_threadsafe(self._land(), self._server.loop).result()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _choose(self, request: Request) -> Fault | None:
        line = f"{request.method} {request.target}"
        with self._lock:
            self._requests.append(line)
            chosen = self._planned(line) or self._by_chance(line)
            self._struck += chosen is not None
            return chosen

    def _planned(self, line: str) -> Fault | None:
        for position, (fault, left) in enumerate(self._faults):
            if left and re.search(fault.match, line):
                self._faults[position] = (fault, left - 1)
                return fault
        return None

    def _by_chance(self, line: str) -> Fault | None:
        if self._weather is None:
            return None
        chance, share, faults = self._weather
        if chance.random() >= share:
            return None
        fault = chance.choice(faults)
        return fault if re.search(fault.match, line) else None

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = _Upstream(*self._upstream)
        try:
            while (request := await read_request(reader, writer)) is not None:
                fault = self._choose(request)
                if fault is None:
                    writer.write(response_bytes(await upstream.ask(request), request.method))
                    await writer.drain()
                elif not await self._go_wrong(fault, request, upstream, reader, writer):
                    return
        finally:
            upstream.close()

    async def _go_wrong(
        self,
        fault: Fault,
        request: Request,
        upstream: _Upstream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Return whether the connection stays open."""
        if fault.action == "late":
            task = asyncio.create_task(self._apply_late(request))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            reset(writer)
            return False
        response = await upstream.ask(request) if fault.moment == "after" or fault.action == "cut" else None
        if fault.action == "answer":
            made = fault.answer(request) if callable(fault.answer) else fault.answer
            assert made is not None
            writer.write(response_bytes(made, request.method))
            await writer.drain()
            return True
        if fault.action == "stall":
            await reader.read(1)
            return False
        if fault.action == "cut":
            assert response is not None
            whole = response_bytes(response, request.method)
            writer.write(whole[: len(whole) - (len(response.body) + 1) // 2 - 1])
            await writer.drain()
            # The client must read all earlier bytes before the reset arrives, or the reset discards them.
            await asyncio.sleep(0.02)
        reset(writer)
        return False

    async def _land(self) -> None:
        self._landing.set()
        await asyncio.gather(*self._late)
        self._landing.clear()

    async def _apply_late(self, request: Request) -> None:
        if self._weather is None:
            await self._landing.wait()
        else:
            await asyncio.sleep(LATE_S)
        upstream = _Upstream(*self._upstream)
        try:
            await upstream.ask(request)
        finally:
            upstream.close()


class _Upstream:
    """A connection to the server."""

    def __init__(self, host: str | None, port: int | None) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Response:
        """Return the server's answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
        reader, writer = self._streams
        writer.write(request_bytes(request))
        await writer.drain()
        return await read_response(reader, request.method)

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
