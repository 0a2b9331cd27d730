"""What must txlog know about one kind of object store and its driver?

A `Backend` has two sides. Its class describes the object store: URLs, driver, options, errors. An instance works on one
file system of the driver, and hides how the drivers differ. The defaults suit most drivers of fsspec.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5
"""Time-out for a connection, unless the storage options set another one."""
READ_TIMEOUT_S = 10
"""Time-out without a byte from the server, unless the storage options set another one."""

_REFUSED_STATUS = frozenset({400, 401, 403, 405, 411, 413, 414, 501})
_UNREACHABLE = frozenset(
    {
        "ClientConnectorError", "ClientConnectorDNSError", "ConnectionRefusedError", "ConnectionTimeoutError",
        "ServerTimeoutError", "gaierror",
    }
)  # fmt: skip
"""Errors of Python and of aiohttp, which all drivers use."""


class Verdict(Enum):
    """What an error says about the request."""

    EXISTS = "an object is there"
    MISSING = "no object is there"
    REFUSED = "surely not applied, and would not be the next time"
    TRANSIENT = "perhaps applied, perhaps the next time"


class Backend(ABC):
    """One kind of object store, and one file system of its driver."""

    schemes: ClassVar[tuple[str, ...]]
    """Schemes of its URLs. The first one is also fsspec's name of the driver."""
    table_scheme: ClassVar[str]
    """The one scheme with which published tables name their files, whatever the store's URL has."""
    package: ClassVar[str]
    extra: ClassVar[str]
    """The extra of pyspark-txlog that installs the driver."""
    driver: ClassVar[str]
    """Full name of the class whose create is atomic. A subclass may override anything, so it is not included."""
    is_mode_named: ClassVar[bool] = True
    """Whether `_pipe_file` must have a parameter `mode`; older drivers ignore `mode` and overwrite."""
    create_options: ClassVar[Mapping[str, Any]] = {}
    """Arguments with which `pipe_file` sends the largest object in one request."""
    credentials: ClassVar[str]
    """Which storage options, or otherwise which environment settings, hold its credentials."""
    public_options: ClassVar[frozenset[str]] = frozenset()
    """Storage options whose text may appear in messages."""
    nested_options: ClassVar[tuple[str, ...]] = ()
    """Frequent names inside storage options that are mappings; for a hint after a typing error."""
    unsent_errors: ClassVar[frozenset[str]] = frozenset()
    """Errors without an HTTP status that are raised before anything is sent."""
    credential_errors: ClassVar[frozenset[str]] = frozenset()
    """Errors of that kind about credentials, if a repetition cannot fix them.

    For the others the source of the credentials may have failed to answer.
    """
    denied_codes: ClassVar[frozenset[str]] = frozenset()
    """Codes that refuse the credentials whatever the HTTP status is."""
    unreachable_errors: ClassVar[frozenset[str]] = frozenset()
    """Errors of its SDK if there was no connection at all."""
    hadoop_scheme: ClassVar[str]
    """Scheme of Hadoop's own URLs of these stores."""
    hadoop_package: ClassVar[str]
    """Maven package of Hadoop's driver; `{}` stands for Hadoop's version."""
    hadoop_setting: ClassVar[str]
    """A setting of Spark that gives credentials to Hadoop's driver; for a hint."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    # -- the store, before it is opened -------------------------------------------------------------------------------

    @classmethod
    def split_host(cls, host: str) -> tuple[str, dict[str, object]]:
        """Return the bucket, and the storage options that the host part of a URL implies."""
        return host, {}

    @classmethod
    def settings(cls, options: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments of the driver for these storage options. Raises InvalidRequestError."""
        return dict(options)

    @classmethod
    def driver_class(cls, registered: type) -> type:
        """Return the class to use instead of the one that the driver registers with fsspec."""
        return registered

    @classmethod
    def hadoop_url(cls, url: str, options: Mapping[str, object]) -> str:
        """Return Hadoop's URL of the store at `url`, without a trailing slash. Raises UnsupportedStoreError."""
        return f"{cls.hadoop_scheme}://{url.split('://', 1)[1].rstrip('/')}"

    # -- requests -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, url: str) -> None:
        """Check what only an instance shows, and turn off retries below a conditional write.

        Raises UnsupportedStoreError.
        """

    def read(self, key: str) -> bytes:
        """Return a whole object by one request."""
        data: bytes = self.fs.cat_file(key)
        return data

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `[start, end)`; none if the object ends before `start`."""
        try:
            data: bytes = self.fs.cat_file(key, start=start, end=end)
        except Exception as error:
            status, code = http_status(error)
            if status == 416 or code == "InvalidRange":
                return b""
            raise
        return data

    def stat(self, key: str) -> tuple[int, datetime.datetime | None] | None:
        """Return (length, time of the last change) of an object; None for a folder."""
        info = self.fs.info(key)
        if info.get("type") != "file":
            return None
        return int(info["size"]), info.get("LastModified") or info.get("last_modified")

    def remove(self, key: str) -> None:
        self.fs.rm_file(key)

    def remove_many(self, keys: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that. They need not exist."""
        for key in keys:
            try:
                self.remove(key)
            except Exception as error:
                if self.verdict(error) is not Verdict.MISSING:
                    raise

    def names(self, folder: str, start_after: str) -> Iterator[str]:
        """Yield the names in `folder`, which ends in `/`. Names up to `start_after` may be among them."""
        bucket, _, prefix = folder.partition("/")
        for name in self.list_names(bucket, prefix, start_after):
            # The prefix itself may be an object: a folder that another tool made.
            if name.startswith(prefix) and name[len(prefix) :].strip("/"):
                yield name[len(prefix) :]

    @abstractmethod
    def list_names(self, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
        """Yield the full names of objects and folders that begin with `prefix`, one folder deep."""

    def endpoint(self) -> str:
        """Return the address of the requests, without what could be a credential."""
        try:
            parts = urlsplit(self.endpoint_url())
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        except Exception:  # another version of the driver keeps it elsewhere: the message leaves it out
            return "the endpoint"

    @abstractmethod
    def endpoint_url(self) -> str:
        """Return the URL of the requests, as the driver keeps it."""

    # -- errors -------------------------------------------------------------------------------------------------------

    @classmethod
    def verdict(cls, error: BaseException) -> Verdict:
        """Return the meaning of an error for the request.

        In doubt TRANSIENT: drivers fail in many ways after the server has acted.
        """
        status, code = http_status(error)
        if isinstance(error, FileExistsError) or status == 412 or code == "PreconditionFailed":
            return Verdict.EXISTS
        if isinstance(error, FileNotFoundError) or status == 404:
            return Verdict.MISSING
        if isinstance(error, PermissionError) or is_unknown_request(error):
            return Verdict.REFUSED
        # S3 answers a connection that was too slow with status 400 and this error.
        if status in _REFUSED_STATUS and not isinstance(error, TimeoutError):
            return Verdict.REFUSED
        # gcsfs gives no status for this error.
        if _names(error) & (cls.unsent_errors | cls.credential_errors) or str(error).startswith("Forbidden"):
            return Verdict.REFUSED
        return Verdict.TRANSIENT

    @classmethod
    def is_denied(cls, error: BaseException) -> bool:
        """Return whether the store refuses the caller's credentials, and would refuse them again."""
        status, code = http_status(error)
        if "rateLimitExceeded" in str(error) or "RateLimitExceeded" in str(error):
            # Google has answered a rate limit with status 403.
            return False
        if status in {401, 403} or code in cls.denied_codes or isinstance(error, PermissionError):
            return True
        return bool(_names(error) & cls.credential_errors) or (status is None and str(error).startswith("Forbidden"))

    @classmethod
    def is_unreachable(cls, error: BaseException) -> bool:
        """Return whether there was no connection at all: refused, unknown name, no route."""
        return bool(_names(error) & (_UNREACHABLE | cls.unreachable_errors))

    @classmethod
    def is_bucket_missing(cls, error: BaseException) -> bool:
        return http_status(error)[1] == "NoSuchBucket"


def is_unknown_request(error: BaseException) -> bool:
    """Return whether the store or its driver does not know the request."""
    wrong_call = isinstance(error, TypeError) and "argument" in str(error)
    return http_status(error)[0] == 501 or wrong_call or isinstance(error, NotImplementedError)


def http_status(error: BaseException) -> tuple[int | None, str | None]:
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


def full_name(filesystem_class: type) -> str:
    return f"{filesystem_class.__module__}.{filesystem_class.__qualname__}"


def _names(error: BaseException) -> set[str]:
    return {type(one).__name__ for one in _causes(error)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(5):
        if one is None:
            return
        yield one
        one = one.__cause__
