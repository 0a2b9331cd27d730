"""What does a third-party S3 answer? moto, with a lock.

moto checks the condition of a PUT and then writes, and other threads run in between, so sometimes two writers win.
Tests of other things would then fail at random, so moto's conditional writes take turns here.

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
    """Make PutObject and CompleteMultipartUpload atomic."""
    lock = threading.RLock()
    for name in ("put_object", "_key_response_post"):
        setattr(S3Response, name, _locked(getattr(S3Response, name), lock))


def serve() -> None:
    """Serve in this process until standard input ends; print the URL first."""
    s3_backends[_ACCOUNT]["aws"].create_bucket(BUCKET, "us-east-1")
    application = DomainDispatcherApplication(create_backend_app)
    server = werkzeug.serving.make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


class _Quiet(werkzeug.serving.WSGIRequestHandler):
    """Use HTTP/1.1: without it, each request would need a new connection."""

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
