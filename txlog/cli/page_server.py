"""How is a page shown to browsers of this machine, and to nobody else?

The server listens on the loopback address only. It answers GET and HEAD of `/` if the Host header names this machine.
Without this check, a page of another site could read the store through a name that it points to 127.0.0.1.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from txlog.errors import InvalidRequestError, TxlogError

_ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REQUEST_SECONDS = 30


class PageServer(ThreadingHTTPServer):
    """Serve what `page` returns, which is called once for each visit, and by one thread at a time."""

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[], str]) -> None:
        """Raises InvalidRequestError if the port is in use or not allowed."""
        self._page = page
        self._lock = threading.Lock()
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            raise InvalidRequestError(
                f"port {port} of {_ADDRESS} cannot be used: {error.strerror}. "
                "hint: name another one with --port N, or 0"
            ) from error

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.server_port}/"

    def render(self) -> tuple[HTTPStatus, str, str]:
        """Return a status, a content type and a body. An error of the store is text, with the status of a failure."""
        with self._lock:
            try:
                return HTTPStatus.OK, "text/html", self._page()
            except TxlogError as error:
                return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the browser has only left before it had the page."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def serves(self, headers: Message) -> bool:
        """Return whether a request names this server, and is not a part of another site's page."""
        names = {f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost")}
        is_part = headers.get("Sec-Fetch-Dest", "document") != "document"
        return headers.get("Host") in names and not (is_part and headers.get("Sec-Fetch-Site") != "same-origin")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        if not self.server.serves(self.headers):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this page is for browsers of this machine\n")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only one page: /\n")
        else:
            self._answer(*self.server.render())

    do_HEAD = do_GET  # noqa: N815  the name is http.server's

    def version_string(self) -> str:
        return "txlog"

    def log_message(self, *_: Any) -> None:
        """Log nothing: a visit is not an event of the store."""

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
