"""How does an fsspec file system keep the port's promises? Only some can, and only if called in the right way.

fsspec's exclusive create is check-then-write on most backends, ignored on others and right on few. So only classes on
an allow-list are accepted, and `open.probe` then asks the server itself. These rules hold for the calls:

* One conditional request creates an object (`pipe_file(mode="create")`). Never `open("xb")`, because s3fs overwrites
  with an empty body. Never in parts, because a server may not check the condition there.
* There is no listing cache and no instance cache.
* The driver does not retry. A retry below a conditional write may report the caller's own success as another writer's,
  and some drivers retry for minutes.
* HTTP allows one repetition of a PUT on a connection that was used before. So PutOutcome.CONFLICT does not prove that
  another writer was first.
* Requests whose repetition is harmless are repeated here.

Each process builds its own file system: after a fork the parent's connections and threads do not exist. No error or
repr repeats a credential.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import inspect
import itertools
import logging
import os
import re
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
from fsspec.asyn import sync

from txlog.clock import Clock, IdGenerator, SystemClock, SystemIds
from txlog.core.envelope import MAX_OBJECT_BYTES
from txlog.errors import (
    InvalidRequestError,
    MissingObjectError,
    NotAStoreError,
    RecordTooLargeError,
    StorageError,
    StoreAccessError,
    TxlogError,
    UnknownOptionError,
    UnsupportedStoreError,
)
from txlog.storage.object_store import Names, PutOutcome, check_folder, check_path, check_range
from txlog.text import install_text, nearest

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 5
"""Attempts of a request whose repetition is harmless, before StorageError."""
BACKOFF_MS = 100
"""Wait before the second attempt; doubled before each further one."""
CONNECT_TIMEOUT_S = 5
"""Time-out for a connection, unless the storage options set another one."""
READ_TIMEOUT_S = 10
"""Time-out without a byte from the server, unless the storage options set another one."""
WARN_MS = 2000
"""After this time without a connection the endpoint is named in the log, once until it answers again."""
SPOOL_BYTES = 32 * 2**20
"""Files up to this size are sent from memory, larger ones from a temporary file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    """One kind of object store and its driver."""

    protocol: str
    package: str
    extra: str
    """The extra of pyspark-txlog that installs the driver."""
    classes: frozenset[str]
    """Full names of the classes whose create is atomic. A subclass may override anything, so it is not included."""
    mode_is_named: bool
    """Whether `_pipe_file` must have a parameter `mode`; older drivers ignore `mode` and overwrite."""
    credentials: str
    """Which storage options, or otherwise which environment settings, hold its credentials."""


_S3 = _Backend(
    protocol="s3",
    package="s3fs",
    extra="s3",
    classes=frozenset({"s3fs.core.S3FileSystem"}),
    mode_is_named=True,
    credentials="key, secret and token, without them AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile",
)
_GCS = _Backend(
    protocol="gs",
    package="gcsfs",
    extra="gcs",
    classes=frozenset({"gcsfs.core.GCSFileSystem"}),
    mode_is_named=True,
    credentials="token and project, without them GOOGLE_APPLICATION_CREDENTIALS",
)
_AZURE = _Backend(
    protocol="abfs",
    package="adlfs",
    extra="azure",
    classes=frozenset({"adlfs.spec.AzureBlobFileSystem"}),
    mode_is_named=False,
    credentials="account_name with account_key, sas_token or client_id, client_secret and tenant_id, without them AZURE_STORAGE_*",
)
_BACKENDS = {"s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS, "abfs": _AZURE, "abfss": _AZURE, "az": _AZURE}

_REASONS = {
    "hdfs": "a file on HDFS is visible, empty, while it is written",
    "webhdfs": "a file on HDFS is visible, empty, while it is written",
    "http": "the web can be read only",
    "https": "the web can be read only",
    "dbfs": "its create is a check followed by a write",
    "sftp": "its create is a check followed by a write",
    "ftp": "its create is a check followed by a write",
    "smb": "its create is a check followed by a write",
}


def open_fsspec_store(url: str, scheme: str, options: Mapping[str, object]) -> FsspecObjectStore:
    """Return the store at `url`. Sends no request.

    `scheme` is the URL's scheme in lower case; `options` are passed to the driver. Raises UnsupportedStoreError for a
    backend that cannot create atomically or whose driver is missing or too old, InvalidRequestError for a malformed
    URL.
    """
    backend = _BACKENDS.get(scheme)
    if backend is None or "::" in url:
        reason = (
            "a chain of file systems hides which one writes"
            if "::" in url
            else _REASONS.get(scheme, "txlog does not know a driver for it")
        )
        raise UnsupportedStoreError(
            f"{scheme}: this kind of store is not supported, because a log needs objects that are created atomically: {reason}. hint: use a local "
            "path, s3://, gs:// or abfs://"
        )
    root, account = _parse(url, scheme)
    settings = _settings(backend, options, account)
    try:
        filesystem_class = fsspec.get_filesystem_class(backend.protocol)
    except (ImportError, ValueError) as error:
        raise UnsupportedStoreError(
            f"{scheme}: the driver {backend.package} is not installed; {install_text(backend.extra)}"
        ) from error
    filesystem_class = _plain(filesystem_class)
    check_class(filesystem_class)
    address = f"{scheme}://{url.split('://', 1)[1].rstrip('/')}"
    place = f"{address} {hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()}"
    make = functools.partial(filesystem_class, **settings)
    return FsspecObjectStore(address, root, make, secrets=_secrets(options), place=place)


def check_class(filesystem_class: type) -> None:
    """Raise UnsupportedStoreError unless this very class is known to create atomically."""
    backend = _backend_of(filesystem_class)
    name = _full_name(filesystem_class)
    if backend is None:
        raise UnsupportedStoreError(
            f"{name}: its create is not known to be atomic; txlog writes through {', '.join(sorted(_ALLOWED))} only. (A class that "
            f"wraps or replaces one of them, as obstore.fsspec.register does, may ignore the condition.)"
        )
    if backend.mode_is_named and "mode" not in inspect.signature(_pipe_file_of(filesystem_class)).parameters:
        raise UnsupportedStoreError(
            f"{name}: this version of {backend.package} overwrites in create mode; pip install -U {backend.package}"
        )


class FsspecObjectStore:
    """An ObjectStore over s3fs, gcsfs or adlfs; see the port for the contract.

    `make` builds the file system; it is called once in each process that uses the store.
    """

    def __init__(
        self,
        url: str,
        root: str,
        make: Callable[[], Any],
        *,
        secrets: Iterable[str] = (),
        place: str | None = None,
        clock: Clock | None = None,
        ids: IdGenerator | None = None,
    ) -> None:
        self.url = url
        self.place = place or url
        self._root = root
        self._make = make
        self._secrets = tuple(secrets)
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._connection = _Connection()

    def __repr__(self) -> str:
        return f"FsspecObjectStore({self.url!r})"

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes | None:
        key = self._key(path)
        found = self._repeating("get", path, lambda fs: _cat(fs, key), missing=None)
        return None if found is None else bytes(found)

    def get_range(self, path: str, start: int, end: int) -> bytes:
        check_range(start, end)
        key = self._key(path)
        if start == end:
            self.size(path)
            return b""
        found = self._repeating("get_range", path, lambda fs: _cat_range(fs, key, start, end), missing=None)
        if found is None:
            raise MissingObjectError(f"{self.url}: there is no object {path!r}")
        return bytes(found)

    def size(self, path: str) -> int:
        return self._stat("size", path)[0]

    def modified_ms(self, path: str) -> int | None:
        stamp = self._stat("modified_ms", path)[1]
        return None if stamp is None else int(stamp.timestamp() * 1000)

    def list(self, prefix: str, start_after: str = "") -> Names:
        folder = f"{self._root}/{check_folder(prefix)}"
        found = self._repeating("list", prefix, lambda fs: set(_names(fs, folder, start_after)), missing=set())
        return sorted(name for name in found if name > start_after)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        key = self._key(path)
        if len(data) > MAX_OBJECT_BYTES:
            raise RecordTooLargeError(
                f"{self.url}: {path!r} has {len(data)} bytes; more than {MAX_OBJECT_BYTES} cannot be created by one request"
            )
        fs = self._filesystem()
        try:
            fs.pipe_file(key, bytes(data), mode="create", **_whole(fs))
        except Exception as error:
            verdict = _verdict(error)
            self._note(fs, error)
            if verdict is _Verdict.EXISTS:
                return PutOutcome.CONFLICT
            if verdict is _Verdict.TRANSIENT:
                _LOG.info("%s has an unknown outcome: %s", self._what("put_if_absent", path), self._text(error))
                return PutOutcome.UNKNOWN
            raise self._refusal("put_if_absent", path, error) from None
        self._note(fs)
        return PutOutcome.WRITTEN

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        key = self._key(path)
        rest = iter(chunks)
        head, size = [], 0
        for chunk in rest:
            head.append(bytes(chunk))
            size += len(chunk)
            if size > SPOOL_BYTES:
                return self._write_large(path, key, itertools.chain(head, rest))
        data = b"".join(head)
        self._repeating("write_file", path, lambda fs: fs.pipe_file(key, data))
        return size

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._repeating("delete", path, lambda fs: _remove(fs, key), missing=None)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _write_large(self, path: str, key: str, chunks: Iterable[bytes]) -> int:
        """Write by way of a file on disk, so that the request can be repeated."""
        with tempfile.NamedTemporaryFile(prefix="txlog-") as spool:
            written = sum(spool.write(chunk) for chunk in chunks)
            spool.flush()
            self._repeating("write_file", path, lambda fs: fs.put_file(spool.name, key))
        return written

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _stat(self, verb: str, path: str) -> tuple[int, datetime.datetime | None]:
        """Return (length, time of the last change) of an object."""
        key = self._key(path)
        found = self._repeating(verb, path, lambda fs: _stat(fs, key), missing=None)
        if found is None:
            raise MissingObjectError(f"{self.url}: there is no object {path!r}")
        return found

    def _filesystem(self) -> Any:
        connection = self._connection
        if connection.owner != os.getpid():
            # Replace the parent's lock, too: a thread that does not exist here may have held it at the fork.
            connection = self._connection = _Connection()
        with connection.lock:
            if connection.filesystem is None:
                connection.filesystem = self._build()
            return connection.filesystem

    def _build(self) -> Any:
        try:
            fs = self._make()
            check_class(type(fs))
            _prepare(fs, self.url)
        except TxlogError:
            raise
        except Exception as error:
            _check_option(error, self.url, self._make)
            raise self._refusal("open", "", error) from None
        return fs

    def _repeating(self, verb: str, path: str, call: Callable[[Any], T], missing: Any = ...) -> T:
        """Return the answer of a request that may be repeated.

        If the object does not exist, return `missing`, if given.
        """
        fs = self._filesystem()
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep_ms(self._ids.jitter(BACKOFF_MS << (attempt - 1)))
            try:
                found = call(fs)
            except Exception as error:
                verdict = _verdict(error)
                self._note(fs, error)
                if verdict is _Verdict.MISSING and missing is not ... and not _is_bucket_missing(error):
                    answer: T = missing
                    return answer
                if verdict is not _Verdict.TRANSIENT:
                    raise self._refusal(verb, path, error) from None
                last = error
            else:
                self._note(fs)
                return found
        there = f" (no connection to {_endpoint(fs)})" if _is_unreachable(last) else ""
        raise StorageError(f"{self._what(verb, path)} failed {ATTEMPTS} times{there}: {self._text(last)}") from None

    def _note(self, fs: Any, error: Exception | None = None) -> None:
        """Log once, after the first seconds, that the endpoint cannot be reached.

        Requests are repeated for longer than people wait without asking why.
        """
        connection = self._connection
        if error is None or not _is_unreachable(error):
            connection.lost_at_ms, connection.warned = None, False
            return
        now_ms = self._clock.monotonic_ms()
        if connection.lost_at_ms is None:
            connection.lost_at_ms = now_ms
        elif not connection.warned and now_ms - connection.lost_at_ms >= WARN_MS:
            connection.warned = True
            _LOG.warning(
                "%s: no connection to %s for %.1f s; trying again until the call's time is up (%s)",
                self.url,
                _endpoint(fs),
                (now_ms - connection.lost_at_ms) / 1000,
                self._text(error),
            )

    def _refusal(self, verb: str, path: str, error: Exception) -> TxlogError:
        what = f"{self._what(verb, path)} failed: {self._text(error)}"
        if _is_bucket_missing(error) or (isinstance(error, FileNotFoundError) and verb in _CREATING):
            return NotAStoreError(f"{what}. The bucket or container does not exist")
        if _is_unknown_request(error):
            return UnsupportedStoreError(f"{what}. The backend or its driver does not know this request")
        if _is_denied(error):
            backend = _BACKENDS.get(self.url.partition(":")[0].lower(), _S3)
            return StoreAccessError(
                f"{what}. The store refuses these credentials, or they may not do this: check the storage_options ({backend.credentials}), "
                "and that they may read, list, write and delete there"
            )
        return StorageError(what)

    def _what(self, verb: str, path: str) -> str:
        return f"{self.url}: {verb} {path!r}" if path else f"{self.url}: {verb}"

    def _text(self, error: BaseException) -> str:
        """Return an error's text without anything that looks like a credential."""
        status, code = _http_status(error)
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = _SIGNATURE.sub(r"\1***", text)[:300]
        known = ", ".join(str(part) for part in (f"HTTP {status}" if status else "", code or "") if part)
        return f"{type(error).__name__}{f' ({known})' if known else ''}: {text}"


class _Connection:
    """The file system of one process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.filesystem: Any = None
        self.lost_at_ms: int | None = None
        """The time from which there has been no connection to the endpoint; None while it answers."""
        self.warned = False

    def __reduce__(self) -> Any:
        return (_Connection, ())


# -- how a driver's errors are understood -----------------------------------------------------------------------------


class _Verdict(Enum):
    EXISTS = "an object is there"
    MISSING = "no object is there"
    REFUSED = "surely not applied, and would not be the next time"
    TRANSIENT = "perhaps applied, perhaps the next time"


_CREATING = frozenset({"put_if_absent", "write_file"})
_REFUSED_STATUS = frozenset({400, 401, 403, 405, 411, 413, 414, 501})
# Errors without an HTTP status that are raised before anything is sent.
_NOT_SENT = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "ParamValidationError",
        "UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError", "DefaultCredentialsError", "NoRegionError",
        "ClientAuthenticationError", "UnknownEndpointError", "InvalidConfigError",
    }
)  # fmt: skip
# Errors among them that a repetition cannot fix. For the others the source of the credentials may have failed to
# answer.
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "UnauthorizedSSOTokenError", "SSOTokenLoadError",
        "DefaultCredentialsError", "ClientAuthenticationError",
    }
)  # fmt: skip
# S3 returns these codes with status 400.
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"})
_UNREACHABLE = frozenset(
    {
        "EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ClientConnectorError", "ConnectionRefusedError",
        "ClientConnectorDNSError", "ConnectionTimeoutError", "ServerTimeoutError", "gaierror", "ServiceRequestError",
    }
)  # fmt: skip
# Credentials in URLs, connection strings and headers. Those that are not among the options may come from the
# environment.
_SIGNATURE = re.compile(
    r"((?:(?:sig|signature|AccountKey|SharedAccessSignature|AWSAccessKeyId|Credential)=|X-Amz-[A-Za-z0-9-]+(?:=|: *)|Bearer +|SharedKey +\w+:))"
    r"[^&\s;,\"']+",
    re.IGNORECASE,
)


def _verdict(error: BaseException) -> _Verdict:
    """Return the meaning of an error for the request.

    In doubt TRANSIENT: drivers fail in many ways after the server has acted.
    """
    status, code = _http_status(error)
    if isinstance(error, FileExistsError) and _azure_code(error) not in {None, "BlobAlreadyExists"}:
        # adlfs raises it for every 409.
        return _Verdict.TRANSIENT
    if isinstance(error, FileExistsError) or status == 412 or code == "PreconditionFailed":
        return _Verdict.EXISTS
    if isinstance(error, FileNotFoundError) or status == 404:
        return _Verdict.MISSING
    if isinstance(error, PermissionError) or _is_unknown_request(error):
        return _Verdict.REFUSED
    # S3 answers a connection that was too slow with status 400 and this error.
    if status in _REFUSED_STATUS and not isinstance(error, TimeoutError):
        return _Verdict.REFUSED
    if any(type(one).__name__ in _NOT_SENT for one in _causes(error)):
        return _Verdict.REFUSED
    # gcsfs gives no status for this error.
    if str(error).startswith("Forbidden"):
        return _Verdict.REFUSED
    return _Verdict.TRANSIENT


def _is_unknown_request(error: BaseException) -> bool:
    status, _ = _http_status(error)
    wrong_call = isinstance(error, TypeError) and "argument" in str(error)
    return status == 501 or wrong_call or isinstance(error, NotImplementedError)


def _is_denied(error: BaseException) -> bool:
    """Return whether the store refuses the caller's credentials, and would refuse them again."""
    status, code = _http_status(error)
    if "rateLimitExceeded" in str(error) or "RateLimitExceeded" in str(error):
        # Google has answered a rate limit with status 403.
        return False
    if status in {401, 403} or code in _DENIED_CODES or isinstance(error, PermissionError):
        return True
    found = {type(one).__name__ for one in _causes(error)}
    return bool(found & _NO_CREDENTIALS) or (status is None and str(error).startswith("Forbidden"))


def _is_unreachable(error: BaseException) -> bool:
    """Return whether there was no connection at all: refused, unknown name, no route."""
    return any(type(one).__name__ in _UNREACHABLE for one in _causes(error))


def _endpoint(fs: Any) -> str:
    """Return the address of the requests, without what could be a credential."""
    backend = _backend_of(type(fs))
    try:
        if backend is _S3:
            url = str(fs.s3.meta.endpoint_url)
        elif backend is _GCS:
            url = str(fs._location)
        else:
            url = str(fs.service_client.primary_endpoint)
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except Exception:  # another driver keeps it elsewhere: the message leaves it out
        return "the endpoint"


def _check_option(error: Exception, url: str, make: Any) -> None:
    """Raise UnknownOptionError if the driver failed because of an option that it does not have."""
    found = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
    filesystem_class = getattr(make, "func", None)
    if found is None or not isinstance(filesystem_class, type):
        return
    name, settings = found[1], getattr(make, "keywords", {})
    # Inspect the constructor itself: fsspec's metaclass wraps the class and accepts anything.
    parameters = inspect.signature(vars(filesystem_class).get("__init__", filesystem_class)).parameters
    own = [each for each in parameters if each not in _NO_OPTIONS]
    if name in settings:
        raise UnknownOptionError(
            f"{url}: storage option {name!r} is unknown to {filesystem_class.__name__}.{nearest(name, own)} There are {', '.join(sorted(own))}"
        ) from None
    within = next((key for key, value in settings.items() if isinstance(value, Mapping) and name in value), None)
    if within is not None:
        raise UnknownOptionError(
            f"{url}: {name!r}, in storage option {within!r}, is unknown to the driver.{nearest(name, _CLIENT_OPTIONS)}"
        ) from None


def _http_status(error: BaseException) -> tuple[int | None, str | None]:
    """Return (status, code) of the answer that caused an error, as botocore, Azure's SDK and gcsfs store them."""
    for one in _causes(error):
        # aiohttp reports an answer that it cannot read completely as a 400. The server has not said so, and may have
        # done the request.
        if type(one).__module__.partition(".")[0] == "aiohttp":
            continue
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = response.get("Error", {}).get("Code")
            if status is None and str(code).isdigit():
                status = int(code)
            return status, str(code) if code else None
        for name in ("status_code", "code", "status"):
            value = getattr(one, name, None)
            if isinstance(value, int | str) and str(value).isdigit():
                return int(value), None
    return None, None


def _azure_code(error: BaseException) -> str | None:
    """Return the code of the answer from which adlfs made this error."""
    code = getattr(error.__context__, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(5):
        if one is None:
            return
        yield one
        one = one.__cause__


def _is_bucket_missing(error: BaseException) -> bool:
    return _http_status(error)[1] == "NoSuchBucket" or "ContainerNotFound" in str(error)


# -- differences between drivers --------------------------------------------------------------------------------------


def _plain(filesystem_class: type) -> type:
    """Return gcsfs' own class, which is below the one that gcsfs registers.

    The registered class asks for the kind of a bucket by gRPC, again before each request until it gets an answer. It
    also leaves out the condition of a create in a zonal bucket.
    """
    if _full_name(filesystem_class) == "gcsfs.extended_gcsfs.ExtendedGcsFileSystem":
        return next((one for one in filesystem_class.__mro__ if _full_name(one) in _GCS.classes), filesystem_class)
    return filesystem_class


def _prepare(fs: Any, url: str) -> None:
    """Check what only an instance shows, and turn off retries below a conditional write."""
    backend = _backend_of(type(fs))
    if backend is _S3:
        members = fs.s3.meta.service_model.operation_model("PutObject").input_shape.members
        if "IfNoneMatch" not in members:
            raise UnsupportedStoreError(
                f"{url}: this version of botocore drops the condition of a create; upgrade botocore to 1.36 or later"
            )
        fs.retries = 1
    elif backend is _GCS:
        # A decorator of this method makes six attempts with up to 16 s between them, and has no setting to change that.
        once = getattr(getattr(type(fs), "_request", None), "__wrapped__", None)
        if once is not None:
            fs._request = types.MethodType(once, fs)
    else:
        # The clients of containers and blobs share these two with the client of the service.
        service = fs.service_client
        service._config.retry_policy.total_retries = 0
        connection = service._pipeline._transport.connection_config
        given = getattr(fs, "_timeout_kwargs", {})
        connection.timeout = given.get("connection_timeout", CONNECT_TIMEOUT_S)
        connection.read_timeout = given.get("read_timeout", READ_TIMEOUT_S)


def _whole(fs: Any) -> dict[str, Any]:
    """Return the arguments with which `pipe_file` sends the largest object in one request."""
    # gcsfs sends objects of 50 MB and more in parts; the limits of the others are above ours.
    return {"chunksize": MAX_OBJECT_BYTES + 1} if _backend_of(type(fs)) is _GCS else {}


def _stat(fs: Any, key: str) -> tuple[int, datetime.datetime | None] | None:
    """Return (length, time of the last change) of an object; None for a folder."""
    if _backend_of(type(fs)) is _GCS:
        # `info` of gcsfs would also ask for a folder of that name.
        bucket, _, name = key.partition("/")
        found = fs.call("GET", "b/{}/o/{}", bucket, name, json_out=True)
        return int(found["size"]), datetime.datetime.fromisoformat(found["updated"])
    info = fs.info(key)
    if info.get("type") != "file":
        return None
    # For s3fs and adlfs.
    return int(info["size"]), info.get("LastModified") or info.get("last_modified")


def _cat(fs: Any, key: str) -> bytes:
    # Newer versions of s3fs ask for the size first unless this is set. Older ones do not know the parameter.
    at_once = _backend_of(type(fs)) is _S3 and "max_concurrency" in inspect.signature(fs._cat_file).parameters
    data: bytes = fs.cat_file(key, **({"max_concurrency": 1} if at_once else {}))
    return data


def _remove(fs: Any, key: str) -> None:
    if _backend_of(type(fs)) is not _AZURE:
        fs.rm_file(key)
        return
    container, _, name = key.partition("/")

    async def removed() -> None:
        # Older versions of adlfs cannot remove a single file.
        async with fs.service_client.get_blob_client(container, name) as blob:
            await blob.delete_blob()

    sync(fs.loop, removed)


def _cat_range(fs: Any, key: str, start: int, end: int) -> bytes:
    try:
        data: bytes = fs.cat_file(key, start=start, end=end)
    except Exception as error:
        if _http_status(error)[0] == 416 or _http_status(error)[1] == "InvalidRange":
            return b""
        raise
    return data


def _names(fs: Any, folder: str, start_after: str) -> Iterator[str]:
    """Yield the names in `folder`, which ends in `/`. Names up to `start_after` may be among them."""
    bucket, _, prefix = folder.partition("/")
    pages = {_S3: _s3_names, _GCS: _gcs_names, _AZURE: _azure_names}[_backend_of(type(fs)) or _S3]
    for name in pages(fs, bucket, prefix, start_after):
        # The prefix itself may be an object: a folder that another tool made.
        if name.startswith(prefix) and name[len(prefix) :].strip("/"):
            yield name[len(prefix) :]


def _s3_names(fs: Any, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
    page: dict[str, str] = {"StartAfter": prefix + start_after} if start_after else {}
    while True:
        answer = fs.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **page, **getattr(fs, "req_kw", {})
        )
        yield from (found["Key"] for found in answer.get("Contents", ()))
        yield from (found["Prefix"] for found in answer.get("CommonPrefixes", ()))
        if not answer.get("IsTruncated"):
            return
        page = {"ContinuationToken": answer["NextContinuationToken"]}


def _gcs_names(fs: Any, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
    # Unlike S3, Google includes the start in the list.
    page: dict[str, str] = {"startOffset": prefix + start_after} if start_after else {}
    while True:
        answer = fs.call("GET", "b/{}/o", bucket, prefix=prefix, delimiter="/", json_out=True, **page)
        yield from (found["name"] for found in answer.get("items", ()))
        yield from answer.get("prefixes", ())
        if not answer.get("nextPageToken"):
            return
        page["pageToken"] = answer["nextPageToken"]


def _azure_names(fs: Any, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
    """Yield all names: only accounts with a hierarchical namespace can begin in the middle."""

    async def listed() -> list[str]:
        async with fs.service_client.get_container_client(bucket) as container:
            return [found.name async for found in container.walk_blobs(name_starts_with=prefix, delimiter="/")]

    yield from sync(fs.loop, listed)


def _settings(backend: _Backend, options: Mapping[str, object], account: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {**options, "use_listings_cache": False, "skip_instance_cache": True}
    if backend is _S3:
        given = options.get("config_kwargs") or {}
        if not isinstance(given, Mapping):
            raise InvalidRequestError(f"storage option 'config_kwargs' must be a mapping, found {type(given).__name__}")
        defaults = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "max_pool_connections": 32}
        settings["config_kwargs"] = {**defaults, **given, "retries": {"max_attempts": 0}}
    if backend is _GCS and options.get("requests_timeout") is None:
        settings["requests_timeout"] = _aiohttp_timeout()
    if account is not None:
        settings.setdefault("account_name", account)
    return settings


def _aiohttp_timeout() -> Any:
    """Return the time-outs for aiohttp; gcsfs would wait forever."""
    # The driver's package installs aiohttp.
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)


def _parse(url: str, scheme: str) -> tuple[str, str | None]:
    """Return (bucket and prefix, Azure account) of a URL. A message repeats no part that could be a credential."""
    host, _, prefix = url.split("://", 1)[-1].partition("/")
    prefix = prefix.rstrip("/")
    account = None
    if "@" in host and _BACKENDS[scheme] is _AZURE:
        host, _, server = host.partition("@")
        account = server.partition(".")[0]
    if not host or any(sign in host for sign in "@:") or "?" in url or "://" not in url:
        raise InvalidRequestError(
            f"{scheme}:// must be followed by a bucket and an optional prefix; credentials belong in storage_options or the environment"
        )
    return check_path(f"{host}/{prefix}" if prefix else host), account


_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '([^']+)'")
# Parameters of drivers that are not options of a store.
_NO_OPTIONS = frozenset({"self", "args", "kwargs", "loop", "asynchronous", "session"})
_CLIENT_OPTIONS = ("endpoint_url", "region_name", "verify", "use_ssl", "api_version")
_NO_SECRETS = frozenset({"endpoint_url", "region_name", "account_name", "project", "signature_version"})


def _secrets(options: object, name: str = "") -> tuple[str, ...]:
    """Return every text among the options that could be a credential: all except the few that are known not to be."""
    if isinstance(options, Mapping):
        return tuple(secret for key, value in options.items() for secret in _secrets(value, str(key)))
    if isinstance(options, str) and len(options) >= 4 and name not in _NO_SECRETS:
        return (options,)
    return ()


def _backend_of(filesystem_class: type) -> _Backend | None:
    return _ALLOWED.get(_full_name(filesystem_class))


def _full_name(filesystem_class: type) -> str:
    return f"{filesystem_class.__module__}.{filesystem_class.__qualname__}"


def _pipe_file_of(filesystem_class: type) -> Callable[..., Any]:
    # The synchronous method is generated from this one and accepts anything.
    method: Callable[..., Any] = getattr(filesystem_class, "_pipe_file", None) or filesystem_class.pipe_file  # type: ignore[attr-defined]
    return method


_ALLOWED = {name: backend for backend in (_S3, _GCS, _AZURE) for name in backend.classes}
