"""What if the network, or the server, does this to exactly that request? A proxy that goes wrong as it is told.

It stands between a driver and a server, so that the driver's own retries, time-outs and error texts take part. Nothing here
knows which object store it is: answers are made by `s3.error`, `gcs.error`, `azure.error`.

    with start("s3") as server, FaultProxy(server.url) as proxy:
        store = open_object_store(server.at(proxy.url).store_url("x"), …)
        proxy.strike(Fault(action="reset", moment="after", match="PUT .*/0001.batch"))

For long runs, `proxy.bad_weather(seed, share)` lets a share of all requests go wrong, in all these ways.
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
"""In bad weather, after which a request is applied that its sender has given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, when and where.

    answer  the client gets `answer` (before: the server never saw the request; after: it did, and its own answer is lost)
    reset   the connection is reset, before the server saw the request or after it acted
    cut     the server acts, the connection is reset in the middle of its answer
    stall   nothing more is heard, before or after the server acted; the connection stays open
    late    the connection is reset at once, and the request reaches the server later: at `land`, in bad weather after LATE_S
    """

    action: Literal["answer", "reset", "cut", "stall", "late"]
    moment: Literal["before", "after"] = "before"
    answer: Response | Callable[[Request], Response] | None = None
    match: str = ""
    """Regular expression, searched in `METHOD /path?query`, as sent."""
    times: int = 1
    """How many matching requests."""


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
        """Where it listens."""
        return self._server.url

    @property
    def requests(self) -> tuple[str, ...]:
        """`METHOD /path?query` of every request that came in, in order."""
        with self._lock:
            return tuple(self._requests)

    @property
    def struck(self) -> int:
        """How many requests went wrong."""
        return self._struck

    def strike(self, *faults: Fault) -> None:
        """From now on these, and no others; `requests` and `struck` begin anew."""
        with self._lock:
            self._faults = [(fault, fault.times) for fault in faults]
            self._weather = None
            self._requests.clear()
            self._struck = 0

    def bad_weather(self, seed: int, share: float, faults: Sequence[Fault]) -> None:
        """From now on `share` of all requests goes wrong, each time in one of these ways (`match` counts, `times` does not)."""
        self.strike()
        with self._lock:
            self._weather = (random.Random(seed), share, faults)

    def land(self) -> None:
        """All requests that are late reach the server now."""
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
        """Whether the connection lives on."""
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
            # Whatever was written must be read before the reset comes, or it is thrown away with it.
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
        """The server's answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
        reader, writer = self._streams
        writer.write(request_bytes(request))
        await writer.drain()
        return await read_response(reader, request.method)

    def close(self) -> None:
        """Ends it."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
