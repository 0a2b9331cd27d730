"""How do tests get an HTTP server with exact behaviour? A few lines of HTTP/1.1 on one event loop.

A handler is a plain function from a Request to a Response. Nothing else runs meanwhile, so each request is atomic.
Servers listen only on loopback, on a free port. `main` makes a program from a handler. It prints its URL and ends at
the end of its standard input, so that it never outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 2**20
_BODILESS_STATUS = frozenset({204, 304})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; names of headers are lower case."""

    method: str
    target: str
    """As sent: the path, percent-encoded, and the query."""
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The decoded path, without the leading slash."""
        return urllib.parse.unquote(self.target.partition("?")[0]).removeprefix("/")

    @property
    def query(self) -> dict[str, str]:
        """The decoded query."""
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


Handler = Callable[[Request], Response]
Connect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Return the next request of a connection, None at its end.

    Tell a client to continue if it asks before the body.
    """
    start, headers = await _read_head(reader)
    if not start:
        return None
    method, target, _ = start.split(" ", 2)
    if headers.pop("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(method=method, target=target, headers=headers, body=await _read_body(reader, headers))


async def read_response(reader: asyncio.StreamReader, method: str) -> Response:
    """Return the answer to a request of that method; raise ConnectionError if the connection ends first."""
    start, headers = await _read_head(reader)
    if not start:
        raise ConnectionResetError("the server closed the connection")
    status = int(start.split(" ", 2)[1])
    if status == 100:
        return await read_response(reader, method)
    bodiless = method == "HEAD" or status in _BODILESS_STATUS
    return Response(status=status, headers=headers, body=b"" if bodiless else await _read_body(reader, headers))


def request_bytes(request: Request) -> bytes:
    """Return the request's bytes on the wire."""
    headers = {**request.headers, "content-length": str(len(request.body))}
    return _head(f"{request.method} {request.target} HTTP/1.1", headers) + request.body


def response_bytes(response: Response, method: str) -> bytes:
    """Return the answer's bytes on the wire. The answer to HEAD has the length from its headers, but no body."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if method != "HEAD" or "content-length" not in headers:
        headers["content-length"] = str(len(response.body))
    return _head(f"HTTP/1.1 {response.status} -", headers) + (b"" if method == "HEAD" else response.body)


def answering(handle: Handler, latency_ms: int = 0) -> Connect:
    """Return what a server does with a connection. A request takes effect after half of the latency."""
    way_s = latency_ms / 2000

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader, writer)) is not None:
            if way_s:
                await asyncio.sleep(way_s)
            answer = response_bytes(handle(request), request.method)
            if way_s:
                await asyncio.sleep(way_s)
            writer.write(answer)
            await writer.drain()

    return connect


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash does: the peer gets RST, not the end of a stream."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class ServerThread:
    """A server in a thread of this process, from `start` to `stop`."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ServerThread:
        """Start, and return when the server listens."""
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """End all connections."""
        if self._stopping is not None:
            self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        finally:
            self.loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._serve_one, "127.0.0.1", 0, limit=MAX_HEAD_BYTES, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # One more turn of the loop closes the transports that were aborted.
        await asyncio.sleep(0)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._connect(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


@contextlib.contextmanager
def running(connect: Connect) -> Iterator[ServerThread]:
    """Run a server in a thread of this process during the block."""
    server = ServerThread(connect).start()
    try:
        yield server
    finally:
        server.stop()


def main(handle: Handler, latency_ms: int = 0) -> None:
    """Serve in this process until standard input ends; print the URL first."""
    with running(answering(handle, latency_ms)) as server:
        print(server.url, flush=True)
        sys.stdin.read()


# -- helpers ----------------------------------------------------------------------------------------------------------


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return "", {}
    start, *lines = head[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return start, {name.lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.pop("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass
    return body


def _head(start: str, headers: dict[str, str]) -> bytes:
    lines = (f"{name}: {value}" for name, value in headers.items())
    return "\r\n".join((start, *lines, "", "")).encode("latin-1")
