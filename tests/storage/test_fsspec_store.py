"""The adapter of fsspec's drivers: the contract over look-alikes, refused setups, and the meaning of each server's
answers."""

from __future__ import annotations

import datetime
import functools
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from lab.testing.store_contract import StoreContract
from tests.storage.fake_drivers import (
    AzureBlobFileSystem,
    FakeFileSystem,
    GCSFileSystem,
    S3FileSystem,
    ServerError,
    wrapped,
)
from tests.storage.processes import in_fork
from txlog.core.envelope import MAX_OBJECT_BYTES
from txlog.errors import (
    InvalidRequestError,
    MissingObjectError,
    NotAStoreError,
    RecordTooLargeError,
    StorageError,
    StoreAccessError,
    UnknownOptionError,
    UnsupportedStoreError,
)
from txlog.storage import fsspec_store
from txlog.storage.backends.backend import http_status
from txlog.storage.fsspec_store import ATTEMPTS, FsspecObjectStore, check_class
from txlog.storage.object_store import PutOutcome
from txlog.storage.open import open_object_store
from txlog.testing.clock import ManualClock, SeededIds


def store_of(fs, **options):
    return FsspecObjectStore(
        "s3://bucket/log", "bucket/log", lambda: fs, clock=ManualClock(), ids=SeededIds(), **options
    )


def fs_of(store: Any) -> Any:
    """Return the driver that a store has built."""
    return store._connection.backend.fs


class TestS3(StoreContract):
    def make_store(self, tmp_path: Path) -> Any:
        return store_of(S3FileSystem())


@pytest.fixture
def drivers(monkeypatch):
    """Replace the drivers by the look-alikes, and return the arguments with which they were built."""
    built = []

    def take(protocol):
        driver: type[Any] = {"s3": S3FileSystem, "gs": GCSFileSystem, "abfs": AzureBlobFileSystem}[protocol]

        class Recorded(driver):  # type: ignore[misc]
            def __init__(self, **settings):
                super().__init__(**settings)
                built.append((protocol, settings))

        Recorded.__module__, Recorded.__qualname__ = driver.__module__, driver.__qualname__
        return Recorded

    monkeypatch.setattr(fsspec, "get_filesystem_class", take)
    return built


# -- refused setups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [LocalFileSystem, MemoryFileSystem, DirFileSystem, FakeFileSystem])
def test_classes_outside_the_list_are_refused(refused):
    with pytest.raises(UnsupportedStoreError, match=f"{refused.__qualname__}: its create is not known to be atomic"):
        check_class(refused)


def test_subclasses_and_namesakes_are_refused():
    class Sub(S3FileSystem):
        pass

    with pytest.raises(UnsupportedStoreError, match="Sub"):
        check_class(Sub)
    namesake = type("S3FileSystem", (FakeFileSystem,), {"__module__": "obstore.fsspec"})
    with pytest.raises(UnsupportedStoreError, match=r"obstore\.fsspec\.S3FileSystem"):
        check_class(namesake)


def test_a_replaced_class_is_refused_at_opening(monkeypatch):
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: MemoryFileSystem)
    with pytest.raises(UnsupportedStoreError, match="MemoryFileSystem"):
        open_object_store("s3://bucket/log")


def test_another_instance_than_promised_is_refused():
    with pytest.raises(UnsupportedStoreError, match="MemoryFileSystem"):
        store_of(MemoryFileSystem()).get("a")


def test_drivers_that_swallow_the_mode_are_refused():
    async def _pipe_file(self, path, data, **kwargs):
        pass

    for driver in (S3FileSystem, GCSFileSystem):
        old = type(
            driver.__name__,
            (driver,),
            {"_pipe_file": _pipe_file, "__module__": driver.__module__, "__qualname__": driver.__qualname__},
        )
        with pytest.raises(
            UnsupportedStoreError, match=r"this version of .*fs overwrites in create mode; pip install -U"
        ):
            check_class(old)
    check_class(AzureBlobFileSystem)


def test_a_botocore_that_drops_the_condition_is_refused():
    fs = S3FileSystem()
    fs.s3.meta.service_model.operation_model("PutObject").input_shape.members.pop("IfNoneMatch")
    with pytest.raises(UnsupportedStoreError, match=r"s3://bucket/log: this version of botocore drops the condition"):
        store_of(fs).get("a")


def test_of_gcsfs_it_is_the_class_that_always_sends_the_condition(monkeypatch):
    """The registered class looks up the kind of a bucket, and omits the condition in a zonal one."""
    extended = type("ExtendedGcsFileSystem", (GCSFileSystem,), {"__module__": "gcsfs.extended_gcsfs"})
    with pytest.raises(UnsupportedStoreError, match="ExtendedGcsFileSystem"):
        check_class(extended)
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: extended)
    store = open_object_store("gs://bucket")
    store.put_if_absent("a", b"1")
    assert type(fs_of(store)) is GCSFileSystem
    stranger = type("ExtendedGcsFileSystem", (FakeFileSystem,), {"__module__": "gcsfs.extended_gcsfs"})
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: stranger)
    with pytest.raises(UnsupportedStoreError, match="ExtendedGcsFileSystem"):
        open_object_store("gs://bucket")


def test_a_missing_driver_says_what_to_install(monkeypatch):
    def missing(protocol):
        raise ImportError("no module")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for url, extra in (("s3://b", "s3"), ("gs://b", "gcs"), ("abfs://b", "azure")):
        with pytest.raises(UnsupportedStoreError, match=rf"not installed; pip install 'pyspark-txlog\[{extra}\]'"):
            open_object_store(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hdfs://host/log", "visible, empty, while it is written"),
        ("https://host/log", "read only"),
        ("sftp://user:hunter2@host/log", "check followed by a write"),
        ("zip://x.zip", "txlog does not know a driver for it"),
        ("simplecache::s3://bucket/log", "chain"),
        ("s3::simplecache://bucket", "chain"),
    ],
)
def test_other_stores_are_refused_with_the_reason(url, words):
    with pytest.raises(UnsupportedStoreError) as raised:
        open_object_store(url)
    assert words in str(raised.value)
    assert "use a local path, s3://, gs:// or abfs://" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///log",
        "s3://key:hunter2@bucket/log",
        "gs://hunter2@bucket",
        "s3:bucket",
        "s3://bucket/../x",
        "s3://b/a?sig=hunter2",
        "abfs://c:hunter2@acc/x",
    ],
)
def test_malformed_urls_are_refused_without_repeating_them(url, drivers):
    with pytest.raises(InvalidRequestError) as raised:
        open_object_store(url)
    if "sig" not in url:
        assert "hunter2" not in str(raised.value)


# -- how the drivers are built ----------------------------------------------------------------------------------------


def test_what_s3fs_is_told(drivers):
    store = open_object_store(
        "s3a://bucket/some/log/", {"key": "k", "config_kwargs": {"read_timeout": 99, "retries": {"max_attempts": 7}}}
    )
    assert drivers == []
    store.put_if_absent("a", b"1")
    assert store.url == "s3a://bucket/some/log"
    ((protocol, settings),) = drivers
    assert protocol == "s3"
    assert settings == {
        "key": "k",
        "use_listings_cache": False,
        "skip_instance_cache": True,
        "config_kwargs": {
            "connect_timeout": 5,
            "read_timeout": 99,
            "max_pool_connections": 32,
            "retries": {"max_attempts": 0},
        },
    }
    assert fs_of(store).retries == 1
    assert list(fs_of(store).objects) == ["bucket/some/log/a"]
    with pytest.raises(InvalidRequestError, match="config_kwargs"):
        open_object_store("s3://bucket", {"config_kwargs": "x"})


def test_what_gcsfs_is_told(drivers):
    store = open_object_store("gs://bucket", {"token": "anon"})
    store.put_if_absent("a", b"1")
    open_object_store("gs://bucket", {"requests_timeout": 99}).put_if_absent("a", b"1")
    assert [protocol for protocol, _ in drivers] == ["gs", "gs"]
    timeout = drivers[0][1].pop("requests_timeout")
    assert (timeout.total, timeout.sock_connect, timeout.sock_read) == (None, 5, 10)
    assert drivers[0][1] == {"token": "anon", "use_listings_cache": False, "skip_instance_cache": True}
    assert drivers[1][1]["requests_timeout"] == 99


def test_gcsfs_neither_repeats_nor_sends_in_parts():
    fs = GCSFileSystem()
    store_of(fs).put_if_absent("a", b"1")
    assert fs.chunksize > MAX_OBJECT_BYTES
    request: Any = fs._request
    assert request.__func__ is GCSFileSystem._request_once


def test_what_adlfs_is_told(drivers):
    first = open_object_store("abfss://box@acc.dfs.core.windows.net/log")
    second = open_object_store("az://box", {"account_name": "mine", "read_timeout": 99})
    first.put_if_absent("a", b"1")
    second.put_if_absent("a", b"1")
    common = {"use_listings_cache": False, "skip_instance_cache": True}
    assert drivers == [
        ("abfs", {**common, "account_name": "acc"}),
        ("abfs", {**common, "account_name": "mine", "read_timeout": 99}),
    ]
    fs, patient = fs_of(first), fs_of(second)
    assert fs.retry_policy.total_retries == patient.retry_policy.total_retries == 0
    assert (fs.connection_config.timeout, fs.connection_config.read_timeout) == (5, 10)
    assert (patient.connection_config.timeout, patient.connection_config.read_timeout) == (5, 99)


def test_objects_are_read_by_one_request_and_created_by_one():
    """No multipart upload, and no check before the write (W1)."""
    fs = S3FileSystem()
    store = store_of(fs)
    store.put_if_absent("a", b"1")
    store.get("a")
    store.list("t/", "0005")
    assert fs.calls == [
        ("pipe_file", "bucket/log/a", "create"),
        ("cat_file", "bucket/log/a", {"max_concurrency": 1}),
        ("call_s3", "list_objects_v2", "log/t/", "log/t/0005"),
    ]


def test_older_s3fs_reads_by_one_request_untold():
    async def _cat_file(self, path, start=None, end=None):
        pass

    names = {"__module__": S3FileSystem.__module__, "__qualname__": S3FileSystem.__qualname__}
    fs = type("S3FileSystem", (S3FileSystem,), {**names, "_cat_file": _cat_file})({"bucket/log/a": (b"1", None)})
    assert store_of(fs).get("a") == b"1"
    assert fs.calls == [("cat_file", "bucket/log/a", {})]


def test_folder_markers_are_no_objects():
    fs = S3FileSystem(
        {
            "bucket/log/": (b"", None),
            "bucket/log/t/": (b"", None),
            "bucket/log/t//x": (b"", None),
            "bucket/log/t/a": (b"", None),
        }
    )
    assert store_of(fs).list("") == ["t/"]
    assert store_of(fs).list("t/") == ["a"]


def test_large_files_go_by_way_of_the_disk(monkeypatch):
    monkeypatch.setattr(fsspec_store, "SPOOL_BYTES", 1000)
    fs = S3FileSystem(failures=[wrapped(503, "SlowDown")])
    assert store_of(fs).write_file("big", iter([b"a" * 600, b"b" * 600, b"c" * 600])) == 1800
    assert [call[0] for call in fs.calls] == ["put_file", "put_file"]
    assert fs.objects["bucket/log/big"][0] == b"a" * 600 + b"b" * 600 + b"c" * 600
    assert store_of(fs).write_file("small", [b"a" * 1000]) == 1000
    assert fs.calls[-1] == ("pipe_file", "bucket/log/small", "overwrite")


def test_what_one_request_cannot_carry_is_refused():
    """A multipart upload is not atomic (W1)."""
    fs = S3FileSystem()
    with pytest.raises(RecordTooLargeError, match=f"{MAX_OBJECT_BYTES + 1} bytes"):
        store_of(fs).put_if_absent("a", bytes(MAX_OBJECT_BYTES + 1))
    assert fs.calls == []


def test_the_url_and_the_options_travel_and_the_connection_does_not(monkeypatch):
    module: Any = types.ModuleType("s3fs.core")
    module.S3FileSystem = S3FileSystem
    monkeypatch.setitem(sys.modules, "s3fs", types.ModuleType("s3fs"))
    monkeypatch.setitem(sys.modules, "s3fs.core", module)
    store = FsspecObjectStore("s3://bucket/log", "bucket/log", functools.partial(S3FileSystem, {}))
    store.put_if_absent("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy._connection.backend is None
    assert (copy.url, copy.get("b")) == (store.url, None)


def test_a_forked_child_builds_its_own():
    built = []
    objects: dict[str, bytes] = {}

    def make():
        built.append(os.getpid())
        return S3FileSystem(objects)

    store = FsspecObjectStore("s3://bucket", "bucket", make)
    store.put_if_absent("a", b"1")
    store._connection.lock.acquire()  # as if another thread of the parent were building it at this time
    assert in_fork(lambda: store.get("a") == b"1" and built == [os.getppid(), os.getpid()])
    store._connection.lock.release()
    store.get("a")
    assert built == [os.getpid()]


# -- the meaning of an answer -----------------------------------------------------------------------------------------

TRANSIENT = [
    wrapped(409, "ConditionalRequestConflict"),
    wrapped(429, "TooManyRequests"),
    wrapped(500, "InternalError"),
    wrapped(502),
    wrapped(503, "SlowDown"),
    wrapped(504),
    wrapped(400, "RequestTimeout", TimeoutError),
    TimeoutError("read timed out"),
    ValueError("Expecting value: line 1 column 1 (char 0)"),
    TypeError("'coroutine' object is not subscriptable"),
    ConnectionResetError("reset"),
    ServerError(503),
    OSError(5, "input/output error"),
    RuntimeError("session is closed"),
]
REFUSED = [
    wrapped(400, "InvalidRequest"),
    wrapped(401),
    wrapped(403, "AccessDenied", PermissionError),
    PermissionError("denied"),
    OSError("Forbidden: https://storage…"),
    type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"),
]


def torn(module):
    """Return the error with which aiohttp reports a truncated or unreadable answer: the server did not send its
    status."""
    error = type("ClientPayloadError", (Exception,), {"__module__": "aiohttp.client_exceptions"})("not completed")
    error.__cause__ = type("ContentLengthError", (Exception,), {"__module__": module, "code": 400})()
    return error


TRANSIENT += [torn("aiohttp.http_exceptions")]


def label(error):
    return f"{type(error).__name__} {http_status(error)}"


@pytest.mark.parametrize("text", ["userRateLimitExceeded", "rateLimitExceeded"])
def test_a_limit_that_google_calls_forbidden_is_no_refusal_of_credentials(text):
    with pytest.raises(StorageError):
        store_of(S3FileSystem(failures=[wrapped(403, None, OSError, text)])).get("a")


def test_an_unknown_storage_option_is_named():
    pytest.importorskip("s3fs")
    known = {"key": "a", "secret": "b", "client_kwargs": {"region_name": "eu"}}
    with pytest.raises(
        UnknownOptionError, match=r"storage option 'keey' is unknown to S3FileSystem\. Did you mean 'key'"
    ):
        open_object_store("s3://bucket/log", {**known, "keey": "x"}).get("a")
    with pytest.raises(UnknownOptionError, match=r"'endpont_url', in storage option 'client_kwargs', .*'endpoint_url'"):
        open_object_store("s3://bucket/log", {**known, "client_kwargs": {"endpont_url": "x"}}).get("a")


@pytest.mark.parametrize(
    "error",
    [
        FileExistsError("there"),
        wrapped(412, "PreconditionFailed"),
        wrapped(412),
        ServerError(412),
        wrapped(412, "412"),
        type("E", (Exception,), {"status_code": 412})(),
    ],
    ids=label,
)
def test_lost(error):
    assert store_of(S3FileSystem(failures=[error])).put_if_absent("a", b"1") is PutOutcome.CONFLICT


@pytest.mark.parametrize("error", [*TRANSIENT, type("HttpError", (Exception,), {"code": 503})()], ids=label)
def test_unknown(error):
    fs = S3FileSystem(failures=[error])
    assert store_of(fs).put_if_absent("a", b"1") is PutOutcome.UNKNOWN
    # There is one request: the protocol decides what to do next.
    assert len(fs.calls) == 1


@pytest.mark.parametrize("error", REFUSED, ids=label)
def test_surely_not_applied(error):
    fs = S3FileSystem(failures=[error])
    kind = StorageError if "400" in label(error) else StoreAccessError
    with pytest.raises(kind, match="s3://bucket/log: put_if_absent 't/a' failed"):
        store_of(fs).put_if_absent("t/a", b"1")
    assert len(fs.calls) == 1


@pytest.mark.parametrize(
    "error", [wrapped(501, "NotImplemented"), TypeError("unexpected keyword argument 'mode'")], ids=label
)
def test_a_request_that_nobody_knows(error):
    with pytest.raises(UnsupportedStoreError, match="does not know this request"):
        store_of(S3FileSystem(failures=[error])).put_if_absent("a", b"1")


@pytest.mark.parametrize("verb", ["get", "put_if_absent", "list", "size", "write_file", "get_range"])
def test_a_bucket_that_is_not_there(verb):
    fs = S3FileSystem(failures=[wrapped(404, "NoSuchBucket", FileNotFoundError)])
    arguments = {
        "put_if_absent": ("a", b""),
        "list": ("",),
        "write_file": ("a", [b""]),
        "get_range": ("a", 0, 1),
    }
    with pytest.raises(NotAStoreError, match="bucket or container does not exist"):
        getattr(store_of(fs), verb)(*arguments.get(verb, ("a",)))


def calls_of(store):
    return {
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 0, 1),
        "size": lambda: store.size("a"),
        "write_file": lambda: store.write_file("a", [b"x"]),
        "list": lambda: store.list(""),
        "delete": lambda: store.delete("a"),
        "modified_ms": lambda: store.modified_ms("a"),
    }


@pytest.mark.parametrize("verb", calls_of(None))
def test_requests_that_may_be_repeated_are(verb):
    fs = S3FileSystem(
        {"bucket/log/a": (b"x", datetime.datetime.now())},
        failures=[wrapped(503, "SlowDown")] * (ATTEMPTS - 1),
    )
    clock = ManualClock()
    store = FsspecObjectStore("s3://bucket/log", "bucket/log", lambda: fs, clock=clock, ids=SeededIds())
    calls_of(store)[verb]()
    assert len(fs.calls) == ATTEMPTS
    assert 0 < clock.monotonic_ms() < 10_000
    fs.failures = [wrapped(503, "SlowDown")] * ATTEMPTS
    with pytest.raises(StorageError, match=rf"s3://bucket/log: {verb}.*failed 5 times: OSError \(HTTP 503, SlowDown\)"):
        calls_of(store)[verb]()


@pytest.mark.parametrize("verb", calls_of(None))
def test_requests_that_are_refused_are_not_repeated(verb):
    fs = S3FileSystem({"bucket/log/a": (b"x", None)}, failures=[wrapped(403, "AccessDenied", PermissionError)])
    with pytest.raises(StoreAccessError, match=rf"{verb}.*failed: PermissionError \(HTTP 403, AccessDenied\)"):
        calls_of(store_of(fs))[verb]()
    assert len(fs.calls) == 1


def test_a_missing_object_by_status_alone():
    error = type("ResourceNotFoundError", (Exception,), {"status_code": 404})
    assert store_of(S3FileSystem(failures=[error()])).get("a") is None
    with pytest.raises(MissingObjectError, match="'a'"):
        store_of(S3FileSystem(failures=[error()])).size("a")


def test_no_credential_in_errors_or_repr(drivers):
    options = {
        "key": "AKIAVERYSECRET",
        "secret": "hunter2hunter2",
        "client_kwargs": {"aws_session_token": "tokentoken", "endpoint_url": "http://minio:9000"},
    }
    store = open_object_store("s3://bucket/log", options)
    assert repr(store) == "FsspecObjectStore('s3://bucket/log')"
    store.get("a")
    text = (
        "key AKIAVERYSECRET hunter2hunter2 tokentoken at http://minio:9000/x?X-Amz-Signature=abcdef&sig=zzz&b=1 "
        "AccountKey=kkk; x-amz-security-token: FwoGsession, authorization: Bearer ya29.mmm, SharedKey acc:nnnn, "
        "Credential=AKIAOTHER/2026/s3"
    )
    fs_of(store).failures = [wrapped(400, message=text)]
    with pytest.raises(StorageError) as raised:
        store.get("a")
    for secret in ("AKIA", "hunter2", "tokentoken", "abcdef", "zzz", "kkk", "FwoG", "ya29", "nnnn"):
        assert secret not in str(raised.value)
    assert "http://minio:9000" in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_driver_that_cannot_be_built():
    def broken():
        raise RuntimeError("no such profile")

    with pytest.raises(StorageError, match="s3://bucket/log: open failed: RuntimeError: no such profile"):
        FsspecObjectStore("s3://bucket/log", "bucket/log", broken).get("a")
