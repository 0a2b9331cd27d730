"""File systems over a dict that look like s3fs, gcsfs and adlfs: their arguments, their calls and their errors.

test_object_stores.py and test_faults.py test the drivers themselves. Only the s3fs look-alike has all verbs.
"""

from __future__ import annotations

import datetime
import threading
from types import SimpleNamespace


class ServerError(Exception):
    """An error like botocore's ClientError: the answer is in `response`."""

    def __init__(self, status, code=None, message=""):
        super().__init__(message or f"An error occurred ({code or status})")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code or str(status)}}


def wrapped(status, code=None, kind=OSError, message="m"):
    """Return the error as s3fs raises it: an OSError whose cause has the status."""
    error = kind(5, message) if kind is OSError else kind(message)
    error.__cause__ = ServerError(status, code)
    return error


class FakeFileSystem:
    """Objects in a dict that all instances share. The errors in `failures` are raised first, one for each call."""

    def __init__(self, objects=None, failures=(), **settings):
        self.objects = {} if objects is None else objects
        self.failures = list(failures)
        self.settings = settings
        self.calls = []
        self._lock = threading.Lock()

    def _called(self, *call):
        self.calls.append(call)
        with self._lock:
            if self.failures:
                failure = self.failures.pop(0)
                if failure is not None:
                    raise failure

    async def _pipe_file(self, path, data, chunksize=0, mode="overwrite"):
        raise NotImplementedError

    def pipe_file(self, path, data, mode="overwrite", chunksize=None):
        self._called("pipe_file", path, mode)
        self.chunksize = chunksize
        new = (bytes(data), datetime.datetime.now(datetime.UTC))
        if mode == "create":
            if self.objects.setdefault(path, new) is not new:
                raise FileExistsError(path)
        else:
            self.objects[path] = new

    def put_file(self, local, path):
        self._called("put_file", path)
        with open(local, "rb") as file:
            self.objects[path] = (file.read(), datetime.datetime.now(datetime.UTC))

    def cat_file(self, path, start=None, end=None, **options):
        self._called("cat_file", path, options)
        if path not in self.objects:
            raise FileNotFoundError(path)
        data = self.objects[path][0]
        if start is not None and start >= len(data):
            raise wrapped(416, "InvalidRange")
        return data[start:end]

    def info(self, path):
        self._called("info", path)
        if path in self.objects:
            data, modified = self.objects[path]
            return {"name": path, "size": len(data), "type": "file", "LastModified": modified}
        if any(name.startswith(path + "/") for name in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def rm_file(self, path):
        self._called("rm_file", path)
        if self.objects.pop(path, None) is None and self.missing_is_an_error:
            raise FileNotFoundError(path)

    missing_is_an_error = True


class S3FileSystem(FakeFileSystem):
    """Like s3fs: lists by call_s3, 1000 names in each page."""

    missing_is_an_error = False
    put_object_members = ("Bucket", "Key", "IfNoneMatch")
    req_kw = {"RequestPayer": "requester"}  # noqa: RUF012
    retries = 5

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        shape = SimpleNamespace(input_shape=SimpleNamespace(members=dict.fromkeys(self.put_object_members)))
        self.s3 = SimpleNamespace(meta=SimpleNamespace(service_model=SimpleNamespace(operation_model=lambda _: shape)))

    async def _cat_file(self, path, start=None, end=None, max_concurrency=None):
        raise NotImplementedError

    def call_s3(
        self, method, *, Bucket, Prefix="", Delimiter="", StartAfter="", ContinuationToken="", RequestPayer, Delete=None
    ):
        if method == "delete_objects":
            keys = [found["Key"] for found in Delete["Objects"]]
            self._called("call_s3", method, *keys)
            for key in keys:
                self.objects.pop(f"{Bucket}/{key}", None)
            return {}
        self._called("call_s3", method, Prefix, StartAfter or ContinuationToken)
        assert (method, Delimiter, RequestPayer) == ("list_objects_v2", "/", "requester")
        found = set()
        for path in self.objects:
            bucket, _, key = path.partition("/")
            if bucket == Bucket and key.startswith(Prefix) and key > StartAfter:
                head, slash, _ = key[len(Prefix) :].partition("/")
                found.add(Prefix + head + slash)
        names = [name for name in sorted(found) if name > ContinuationToken]
        page = names[:1000]
        return {
            "Contents": [{"Key": name} for name in page if not name.endswith("/") or name == Prefix],
            "CommonPrefixes": [{"Prefix": name} for name in page if name.endswith("/") and name != Prefix],
            "IsTruncated": len(names) > 1000,
            **({"NextContinuationToken": page[-1]} if len(names) > 1000 else {}),
        }


class GCSFileSystem(FakeFileSystem):
    """Like gcsfs: one method sends all requests, and retries them."""

    async def _request(self):
        raise AssertionError("repeats")

    async def _request_once(self):
        pass

    _request.__wrapped__ = _request_once  # type: ignore[attr-defined]


class AzureBlobFileSystem(FakeFileSystem):
    """Like adlfs: its create accepts `mode` among any other keywords, and Azure's client does the retries."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.retry_policy = SimpleNamespace(total_retries=3)
        self.connection_config = SimpleNamespace(timeout=20, read_timeout=60)
        self.service_client = SimpleNamespace(
            _config=SimpleNamespace(retry_policy=self.retry_policy),
            _pipeline=SimpleNamespace(_transport=SimpleNamespace(connection_config=self.connection_config)),
        )
        self._timeout_kwargs = {name: value for name, value in settings.items() if name.endswith("_timeout")}

    async def _pipe_file(self, path, value, **kwargs):  # type: ignore[override]
        raise NotImplementedError


for _class, _module in (
    (S3FileSystem, "s3fs.core"),
    (GCSFileSystem, "gcsfs.core"),
    (AzureBlobFileSystem, "adlfs.spec"),
):
    _class.__module__ = _module
