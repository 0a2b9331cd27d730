"""`txlog inspect`: a page in a file, or on this machine's loopback and to nobody else."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.support import Cli
from tests.page.reading import Parsed
from tests.page.shop import SERVE
from txlog.cli.page_server import PageServer
from txlog.errors import InvalidRequestError, StorageError


def test_a_page_in_a_file(shop: Cli, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert str(target) in shop("inspect", "--html", target).out
    first = target.read_text(encoding="utf-8")
    Parsed(first).check_harmless()
    assert "<h3>orders</h3>" in first
    found = shop("inspect", "payments", "--html", target, "--output", "json").json
    assert found == {"file": str(target), "bytes": target.stat().st_size, "warnings": []}
    assert "<h3>orders</h3>" not in target.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-shop", "page.html"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "where does the page go?\n  hint: name --html FILE, or --serve"),
        (("--html", "x.html", "--serve"), "one of the two"),
        (("--html", "x.html", "--port", "1"), "--port 1 belongs to --serve"),
        (("--html", "missing/x.html"), "its folder does not exist"),
        (("--html", "."), "is a folder"),
        (("--html", "x.html", "ordres"), "Did you mean 'orders'"),
        (("--serve", "--port", "70000"), "--port"),
    ],
)
def test_what_is_refused(
    shop: Cli, args: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    error = shop.fails("inspect", *args)
    assert said in error
    assert [path.name for path in tmp_path.iterdir()] == ["my-shop"]


def test_a_file_that_cannot_be_written(shop: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(path: Path, data: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    error = shop.fails("inspect", "--html", str(tmp_path / "x.html"))
    assert "cannot be written: Permission denied\n  hint: " in error


def test_without_the_extra(shop: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for args in (("--html", str(tmp_path / "x.html")), ("--serve",)):
        assert "hint: pip install 'pyspark-txlog[page]'" in shop.fails("inspect", *args)


# -- the server -------------------------------------------------------------------------------------------------------


class Pages:
    """What a server shows; each call counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False

    def __call__(self) -> str:
        self.calls += 1
        if self.fails:
            raise StorageError("the store does not answer")
        return "<!DOCTYPE html><title>page</title>"


@contextmanager
def serving(pages: Callable[[], str]) -> Iterator[PageServer]:
    with PageServer(0, pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: PageServer, verb: str = "GET", path: str = "/", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(verb, path, headers=headers)
    answer = connection.getresponse()
    found = (answer.status, answer.read().decode(), answer.headers)
    connection.close()
    return found


def test_the_server_answers_browsers_of_this_machine_only() -> None:
    pages = Pages()
    with serving(pages) as server:
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        status, body, headers = ask(server)
        assert (status, body) == (200, "<!DOCTYPE html><title>page</title>")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
        assert headers["Cache-Control"] == "no-store"
        assert ask(server, Host=f"localhost:{port}")[0] == 200
        assert ask(server, "HEAD")[:2] == (200, "")
        assert pages.calls == 3
        for host in (
            f"evil.example:{port}",
            "127.0.0.1",
            f"127.0.0.1:{port + 1}",
            f"[::1]:{port}",
            "",
            f"127.0.0.1.evil:{port}",
        ):
            assert ask(server, Host=host)[0] == 403, host
        part = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}
        assert ask(server, **part)[0] == ask(server, **{**part, "Sec-Fetch-Dest": "iframe"})[0] == 403
        for path in ("/x", "/../etc/passwd", "/my-shop/txlog.json"):
            assert ask(server, path=path)[0] == 404, path
        assert ask(server, path="http://evil.example/")[0] == 403
        for verb in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert ask(server, verb)[0] == 501, verb
        assert pages.calls == 3
        assert ask(server, path="/?again")[0] == 200
        # A link in a mail or on another site may lead here.
        assert ask(server, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"})[0] == 200


def test_a_request_without_a_host_is_refused() -> None:
    pages = Pages()
    with serving(pages) as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 403 " in raw.recv(100)
    assert pages.calls == 0


def test_an_error_of_the_store_is_an_answer_and_the_next_visit_tries_again() -> None:
    pages = Pages()
    with serving(pages) as server:
        pages.fails = True
        assert ask(server)[:2] == (503, "the store does not answer\n")
        pages.fails = False
        assert ask(server)[0] == 200


def test_a_browser_that_leaves_early_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    asked, has_left = threading.Event(), threading.Event()

    def page() -> str:
        asked.set()
        has_left.wait(10)
        return "x" * 1_000_000

    with serving(page) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
            assert asked.wait(10)
            # So that the server's answer meets a connection that was reset.
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        has_left.set()
        assert ask(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_in_use() -> None:
    with serving(Pages()) as server, pytest.raises(InvalidRequestError, match=r"cannot be used: .*hint: .*--port N"):
        PageServer(server.server_port, Pages())


def test_the_command_serves_until_a_signal(shop: Cli) -> None:
    """As docs/inspect.md starts it, on a free port."""
    ((program, _, _, *args),) = SERVE
    assert (program, args[-2]) == ("txlog", "--port")
    command = [sys.executable, "-m", "txlog.cli.main", "--store", str(shop.root), *args[:-1], "0"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ shows file:.*my-shop\. Ctrl-C ends it\.$", line)
        assert found, line
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200
        Parsed(answer.read().decode()).check_harmless()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
