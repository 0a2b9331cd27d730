"""What does somebody else's S3 say? moto, with a lock.

moto checks the condition of a PUT and then writes, with other threads between the two: now and then two writers win. A test of
what it is not about would fail once in a while, so its conditional writes take turns here.

    python -m tests.servers.moto [--page N]
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import threading
from typing import Any

import werkzeug.serving
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response

from tests.servers.objects import BUCKET

_ACCOUNT = "123456789012"


def take_turns() -> None:
    """Makes PutObject and CompleteMultipartUpload atomic."""
    lock = threading.RLock()
    for name in ("put_object", "_key_response_post"):
        setattr(S3Response, name, _locked(getattr(S3Response, name), lock))


def serve() -> None:
    """Serves, in a process of its own, until standard input ends; prints the URL first."""
    s3_backends[_ACCOUNT]["aws"].create_bucket(BUCKET, "us-east-1")
    application = DomainDispatcherApplication(create_backend_app)
    server = werkzeug.serving.make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


class _Quiet(werkzeug.serving.WSGIRequestHandler):
    """Without HTTP/1.1, each request would take a connection of its own."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass


def _locked(method: Any, lock: threading.RLock) -> Any:
    @functools.wraps(method)
    def taking_turns(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return taking_turns


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--page", type=int, default=1000)
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(_options().page)
    take_turns()
    serve()
