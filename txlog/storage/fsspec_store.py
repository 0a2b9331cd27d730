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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import fsspec

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
from txlog.logs import log
from txlog.storage.backends import BY_DRIVER, BY_SCHEME, URLS
from txlog.storage.backends.backend import Backend, Verdict, full_name, http_status, is_unknown_request
from txlog.storage.object_store import Names, PutOutcome, check_folder, check_path, check_range
from txlog.text import install_text, nearest

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 5
"""Attempts of a request whose repetition is harmless, before StorageError."""
BACKOFF_MS = 100
"""Wait before the second attempt; doubled before each further one."""
WARN_MS = 2000
"""After this time without a connection the endpoint is named in the log, once until it answers again."""
SPOOL_BYTES = 32 * 2**20
"""Files up to this size are sent from memory, larger ones from a temporary file."""

_REASONS = {
    **dict.fromkeys(("hdfs", "webhdfs"), "a file on HDFS is visible, empty, while it is written"),
    **dict.fromkeys(("http", "https"), "the web can be read only"),
    **dict.fromkeys(("dbfs", "ftp", "sftp", "smb"), "its create is a check followed by a write"),
}


def open_fsspec_store(url: str, scheme: str, options: Mapping[str, object]) -> FsspecObjectStore:
    """Return the store at `url`. Sends no request.

    `scheme` is the URL's scheme in lower case; `options` are passed to the driver. Raises UnsupportedStoreError for a
    backend that cannot create atomically or whose driver is missing or too old, InvalidRequestError for a malformed
    URL.
    """
    backend = BY_SCHEME.get(scheme)
    if backend is None or "::" in url:
        reason = _REASONS.get(scheme, "txlog does not know a driver for it")
        if url.removeprefix(f"{scheme}:").isdigit():
            reason = "this is the address of a server, such as a broker of Kafka, which txlog does not need"
        if "::" in url:
            reason = "a chain of file systems hides which one writes"
        raise UnsupportedStoreError(
            f"{scheme}: this kind of store is not supported, because a log needs objects that are "
            f"created atomically: {reason}. "
            f"hint: use a local path, {', '.join(URLS[:-1])} or {URLS[-1]}"
        )
    root, implied = _parse(url, scheme, backend)
    settings = {**backend.settings({**implied, **options}), "use_listings_cache": False, "skip_instance_cache": True}
    try:
        registered = fsspec.get_filesystem_class(backend.schemes[0])
    except (ImportError, ValueError) as error:
        raise UnsupportedStoreError(
            f"{scheme}: the driver {backend.package} is not installed; {install_text(backend.extra)}"
        ) from error
    filesystem_class = backend.driver_class(registered)
    check_class(filesystem_class)
    address = f"{scheme}://{url.split('://', 1)[1].rstrip('/')}"
    place = f"{address} {hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()}"
    make = functools.partial(filesystem_class, **settings)
    return FsspecObjectStore(address, root, make, secrets=_secrets(options, backend.public_options), place=place)


def check_class(filesystem_class: type) -> type[Backend]:
    """Return the backend of a class; raise UnsupportedStoreError unless this class is known to create atomically."""
    name = full_name(filesystem_class)
    backend = BY_DRIVER.get(name)
    if backend is None:
        raise UnsupportedStoreError(
            f"{name}: its create is not known to be atomic; txlog writes through {', '.join(sorted(BY_DRIVER))} only. "
            "(A class that wraps or replaces one of them, as obstore.fsspec.register does, may ignore the condition.)"
        )
    # The synchronous method is generated from this one and accepts anything.
    pipe_file: Callable[..., Any] = getattr(filesystem_class, "_pipe_file", None) or filesystem_class.pipe_file  # type: ignore[attr-defined]
    if backend.is_mode_named and "mode" not in inspect.signature(pipe_file).parameters:
        raise UnsupportedStoreError(
            f"{name}: this version of {backend.package} overwrites in create mode; pip install -U {backend.package}"
        )
    return backend


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
        found = self._repeating("get", path, lambda backend: backend.read(key), missing=None)
        return None if found is None else bytes(found)

    def get_range(self, path: str, start: int, end: int) -> bytes:
        check_range(start, end)
        key = self._key(path)
        if start == end:
            self.size(path)
            return b""
        return bytes(self._existing("get_range", path, lambda backend: backend.read_range(key, start, end)))

    def size(self, path: str) -> int:
        return self._stat("size", path)[0]

    def modified_ms(self, path: str) -> int | None:
        stamp = self._stat("modified_ms", path)[1]
        return None if stamp is None else int(stamp.timestamp() * 1000)

    def list(self, prefix: str, start_after: str = "") -> Names:
        folder = f"{self._root}/{check_folder(prefix)}"
        found = self._repeating("list", prefix, lambda backend: set(backend.names(folder, start_after)), missing=set())
        return sorted(name for name in found if name > start_after)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        key = self._key(path)
        if len(data) > MAX_OBJECT_BYTES:
            raise RecordTooLargeError(
                f"{self.url}: {path!r} has {len(data)} bytes; more than {MAX_OBJECT_BYTES} cannot "
                "be created by one request"
            )
        backend = self._backend()
        try:
            backend.fs.pipe_file(key, bytes(data), mode="create", **backend.create_options)
        except Exception as error:
            verdict = backend.verdict(error)
            self._note(backend, error)
            if verdict is Verdict.EXISTS:
                return PutOutcome.CONFLICT
            if verdict is Verdict.TRANSIENT:
                what = self._what("put_if_absent", path)
                log(_LOG, logging.INFO, "write_unknown", "%s has an unknown outcome: %s", what, self._text(error))
                return PutOutcome.UNKNOWN
            raise self._refusal("put_if_absent", path, error) from None
        self._note(backend)
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
        self._repeating("write_file", path, lambda backend: backend.fs.pipe_file(key, data))
        return size

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._repeating("delete", path, lambda backend: backend.remove(key), missing=None)

    def delete_many(self, paths: Sequence[str]) -> None:
        keys = [self._key(path) for path in paths]
        self._repeating("delete", paths[0], lambda backend: backend.remove_many(keys))

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _write_large(self, path: str, key: str, chunks: Iterable[bytes]) -> int:
        """Write by way of a file on disk, so that the request can be repeated."""
        with tempfile.NamedTemporaryFile(prefix="txlog-") as spool:
            written = sum(spool.write(chunk) for chunk in chunks)
            spool.flush()
            self._repeating("write_file", path, lambda backend: backend.fs.put_file(spool.name, key))
        return written

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _stat(self, verb: str, path: str) -> tuple[int, datetime.datetime | None]:
        """Return (length, time of the last change) of an object."""
        key = self._key(path)
        return self._existing(verb, path, lambda backend: backend.stat(key))

    def _existing(self, verb: str, path: str, call: Callable[[Backend], T | None]) -> T:
        found = self._repeating(verb, path, call, missing=None)
        if found is None:
            raise MissingObjectError(f"{self.url}: there is no object {path!r}")
        return found

    def _backend(self) -> Backend:
        connection = self._connection
        if connection.owner != os.getpid():
            # Replace the parent's lock, too: a thread that does not exist here may have held it at the fork.
            connection = self._connection = _Connection()
        with connection.lock:
            if connection.backend is None:
                connection.backend = self._connect()
            return connection.backend

    def _connect(self) -> Backend:
        try:
            fs = self._make()
            backend = check_class(type(fs))(fs)
            backend.prepare(self.url)
        except TxlogError:
            raise
        except Exception as error:
            _check_option(error, self.url, self._make)
            raise self._refusal("open", "", error) from None
        return backend

    def _repeating(self, verb: str, path: str, call: Callable[[Backend], T], missing: Any = ...) -> T:
        """Return the answer of a request that may be repeated.

        If the object does not exist, return `missing`, if given.
        """
        backend = self._backend()
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep_ms(self._ids.jitter(BACKOFF_MS << (attempt - 1)))
            try:
                found = call(backend)
            except Exception as error:
                verdict = backend.verdict(error)
                self._note(backend, error)
                if verdict is Verdict.MISSING and missing is not ... and not backend.is_bucket_missing(error):
                    answer: T = missing
                    return answer
                if verdict is not Verdict.TRANSIENT:
                    raise self._refusal(verb, path, error) from None
                last = error
            else:
                self._note(backend)
                return found
        there = f" (no connection to {backend.endpoint()})" if backend.is_unreachable(last) else ""
        raise StorageError(f"{self._what(verb, path)} failed {ATTEMPTS} times{there}: {self._text(last)}") from None

    def _note(self, backend: Backend, error: Exception | None = None) -> None:
        """Log once, after the first seconds, that the endpoint cannot be reached.

        Requests are repeated for longer than people wait without asking why.
        """
        connection = self._connection
        if error is None or not backend.is_unreachable(error):
            connection.lost_at_ms, connection.warned = None, False
            return
        now_ms = self._clock.monotonic_ms()
        if connection.lost_at_ms is None:
            connection.lost_at_ms = now_ms
        elif not connection.warned and now_ms - connection.lost_at_ms >= WARN_MS:
            connection.warned = True
            log(
                _LOG,
                logging.WARNING,
                "connection_lost",
                "%s: no connection to %s for %.1f s; trying again until the call's time is up (%s)",
                self.url,
                backend.endpoint(),
                (now_ms - connection.lost_at_ms) / 1000,
                self._text(error),
                store=self.url,
            )

    def _refusal(self, verb: str, path: str, error: Exception) -> TxlogError:
        what = f"{self._what(verb, path)} failed: {self._text(error)}"
        backend = _backend_of(self.url)
        if backend.is_bucket_missing(error) or (isinstance(error, FileNotFoundError) and verb in _CREATING):
            return NotAStoreError(f"{what}. The bucket or container does not exist")
        if is_unknown_request(error):
            return UnsupportedStoreError(f"{what}. The backend or its driver does not know this request")
        if backend.is_denied(error):
            return StoreAccessError(
                f"{what}. The store refuses these credentials, or they may not do this: check the storage_options "
                f"({backend.credentials}), and that they may read, list, write and delete there"
            )
        return StorageError(what)

    def _what(self, verb: str, path: str) -> str:
        return f"{self.url}: {verb} {path!r}" if path else f"{self.url}: {verb}"

    def _text(self, error: BaseException) -> str:
        """Return an error's text without anything that looks like a credential."""
        status, code = http_status(error)
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = _SIGNATURE.sub(r"\1***", text)[:300]
        known = ", ".join(str(part) for part in (f"HTTP {status}" if status else "", code or "") if part)
        return f"{type(error).__name__}{f' ({known})' if known else ''}: {text}"


class _Connection:
    """The backend of one process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.backend: Backend | None = None
        self.lost_at_ms: int | None = None
        """The time from which there has been no connection to the endpoint; None while it answers."""
        self.warned = False

    def __reduce__(self) -> Any:
        return (_Connection, ())


_CREATING = frozenset({"put_if_absent", "write_file"})
# Credentials in URLs, connection strings and headers. Those that are not among the options may come from the
# environment.
_SIGNATURE = re.compile(
    r"((?:(?:sig|signature|AccountKey|SharedAccessSignature|AWSAccessKeyId|Credential)=|"
    r"X-Amz-[A-Za-z0-9-]+(?:=|: *)|Bearer +|SharedKey +\w+:))"
    r"[^&\s;,\"']+",
    re.IGNORECASE,
)


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
            f"{url}: storage option {name!r} is unknown to {filesystem_class.__name__}.{nearest(name, own)} There are "
            f"{', '.join(sorted(own))}"
        ) from None
    within = next((key for key, value in settings.items() if isinstance(value, Mapping) and name in value), None)
    if within is not None:
        raise UnknownOptionError(
            f"{url}: {name!r}, in storage option {within!r}, is unknown to the "
            f"driver.{nearest(name, _backend_of(url).nested_options)}"
        ) from None


def _parse(url: str, scheme: str, backend: type[Backend]) -> tuple[str, dict[str, object]]:
    """Return (bucket and prefix, options implied) of a URL. A message repeats no part that could be a credential."""
    host, _, prefix = url.split("://", 1)[-1].partition("/")
    prefix = prefix.rstrip("/")
    host, implied = backend.split_host(host)
    if not host or any(sign in host for sign in "@:") or "?" in url or "://" not in url:
        raise InvalidRequestError(
            f"{scheme}:// must be followed by a bucket and an optional prefix; credentials belong in "
            "storage_options or the environment"
        )
    return check_path(f"{host}/{prefix}" if prefix else host), implied


def _backend_of(url: str) -> type[Backend]:
    return BY_SCHEME[url.partition(":")[0].lower()]


_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '([^']+)'")
# Parameters of drivers that are not options of a store.
_NO_OPTIONS = frozenset({"self", "args", "kwargs", "loop", "asynchronous", "session"})


def _secrets(options: object, public: Collection[str], name: str = "") -> tuple[str, ...]:
    """Return every text among the options that could be a credential: all except those of `public` options."""
    if isinstance(options, Mapping):
        return tuple(secret for key, value in options.items() for secret in _secrets(value, public, str(key)))
    if isinstance(options, str) and len(options) >= 4 and name not in public:
        return (options,)
    return ()
