"""Which store does a URL mean, and is it safe for a log?

`open_object_store` builds the adapter. `probe` asks the backend itself whether it creates objects only once. A proxy or
an old server may drop the condition of a conditional write and answer "written" (PROTOCOL.md, W2).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from txlog.clock import Clock, IdGenerator
from txlog.core import names
from txlog.core.ages import MAX_CLOCK_SKEW_MS, MAX_CLOCK_STEP_MS, ClockReading
from txlog.errors import (
    ClockSkewError,
    InvalidRequestError,
    MissingObjectError,
    NotAStoreError,
    StorageError,
    StoreAccessError,
    UnknownOptionError,
    UnsupportedStoreError,
)
from txlog.storage.forks import lock_for_forks
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import shared_memory_store
from txlog.storage.object_store import ObjectStore, PutOutcome
from txlog.text import nearest

_PROBE_ATTEMPTS = 5
_PROBE_BACKOFF_MS = 200
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}\Z", re.ASCII)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


def open_object_store(url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> ObjectStore:
    """Return the store at `url`. Creates nothing and sends no request.

    These URLs are supported.

    * A plain path (`~` is the user's home) or `file://` (option `fsync`, default true).
    * `memory://NAME` (one per process).
    * `s3://`, `gs://` and `abfs://`, through fsspec: `storage_options` are passed to the driver.

    Raises UnsupportedStoreError for any other URL, with the reason. Raises NotAStoreError for a path that is a file,
    InvalidRequestError for a malformed URL, UnknownOptionError. No error repeats a credential.
    """
    options = dict(storage_options or {})
    url = spell_url(url)
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme == "file":
        path = _local_path(url) if match else os.path.expanduser(url)
        _check_options(options, {"fsync"}, "a local store")
        if os.path.exists(path) and not os.path.isdir(path):
            raise NotAStoreError(
                f"{path} is a file, and a store is a folder; name an empty location, or the root of a store"
            )
        return LocalObjectStore(path, fsync=_boolean(options.get("fsync", True), "fsync"))
    if scheme == "memory":
        name = url.split(":", 1)[1].removeprefix("//").rstrip("/")
        if not _MEMORY_NAME.match(name):
            raise InvalidRequestError(
                "memory://NAME: the name must have 1 to 200 of the characters A-Z a-z 0-9 . _ / -"
            )
        _check_options(options, set(), "a store in memory")
        return shared_memory_store(name)
    # Imported here, because local stores do not need fsspec and its drivers.
    from txlog.storage.fsspec_store import open_fsspec_store

    return open_fsspec_store(url, scheme, options)


def spell_url(url: str | os.PathLike[str]) -> str:
    """Return `url` as text; raise InvalidRequestError if it cannot name a store."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidRequestError(
            f"a store is named by a path or a URL, found {type(url).__name__} {'' if text else '(empty)'}".rstrip()
        )
    if text is not url and _SCHEME.match(text):
        # Path("s3://bucket/log") is "s3:/bucket/log": neither the intended URL nor a useful path.
        raise InvalidRequestError(
            f"{text!r} is a {type(url).__name__}, which drops a slash of a URL; give a URL as a str"
        )
    return text


def probe(store: ObjectStore, clock: Clock, ids: IdGenerator) -> None:
    """Check that the backend creates only once and that the clocks agree (W2).

    This runs once per process and place. The clocks are compared again if this machine's was set since, or has drifted,
    by more than a minute. The probe leaves no object behind. Raises UnsupportedStoreError for a backend that
    overwrites, ClockSkewError for a clock more than 15 minutes from the store's, StorageError if the backend does not
    answer.
    """
    place = store.place
    with _PROBED_LOCK:
        is_proven = place in _PROBED
        if is_proven and not clock_was_set(_PROBED[place], clock):
            return
    path = f"{names.PROBE_FOLDER}{ids.new_id()}"
    first = b"txlog probe " + ids.new_id().encode()
    offset_ms = clock_offset_ms(clock)
    try:
        began = _read(clock)
        outcome = _settled(store, path, first, clock, ids)
        took_ms = _read(clock).ms_since(began)
        # After an unknown outcome, a conflict with the process's own object is a success.
        if outcome is PutOutcome.CONFLICT and store.get(path) != first:
            raise UnsupportedStoreError(
                f"{store.url}: a new name under {names.PROBE_FOLDER!r} was reported as taken; "
                "objects cannot be created here"
            )
        for second in () if is_proven else (b"txlog probe again " + ids.new_id().encode(), b""):
            if _settled(store, path, second, clock, ids) is PutOutcome.WRITTEN or store.get(path) != first:
                raise UnsupportedStoreError(
                    f"{store.url}: the backend ignores the condition of a create "
                    f"({'empty' if not second else 'second'} object replaced the first): two writers "
                    "would overwrite each other. "
                    "hint: use a store with conditional PUT (If-None-Match)"
                )
        agrees = _clock_agrees(store, path, began, took_ms)
    finally:
        store.delete(path)
    for attempt in range(_PROBE_ATTEMPTS):
        if agrees:
            break
        offset_ms = clock_offset_ms(clock)
        agrees = _compare_again(store, clock, ids, last=attempt == _PROBE_ATTEMPTS - 1)
    with _PROBED_LOCK:
        _PROBED[place] = offset_ms


def store_now_ms(store: ObjectStore, clock: Clock, ids: IdGenerator) -> int | None:
    """Return a time of the store's own clock that is not later than now; None if the store has no times (W48).

    It is the time of an object which this call creates and deletes again. Raises StorageError if the backend does not
    answer, StoreAccessError if it does not let this process write.
    """
    path = f"{names.PROBE_FOLDER}{ids.new_id()}"
    _settled(store, path, b"txlog clock", clock, ids)
    try:
        return store.modified_ms(path)
    except MissingObjectError as error:
        raise StorageError(
            f"{store.url}: {path!r} was created to read the store's clock, and it is gone; try again"
        ) from error
    finally:
        # A remaining object is scratch; nothing depends on it.
        with contextlib.suppress(StorageError, StoreAccessError):
            store.delete(path)


def clock_offset_ms(clock: Clock) -> int:
    """Return the difference of the wall clock and the monotonic clock."""
    return clock.now_ms() - clock.monotonic_ms()


def clock_was_set(proven_offset_ms: int, clock: Clock) -> bool:
    """Return whether the wall clock was set, or has drifted, since it was compared."""
    return abs(clock_offset_ms(clock) - proven_offset_ms) > MAX_CLOCK_STEP_MS


def _settled(store: ObjectStore, path: str, data: bytes, clock: Clock, ids: IdGenerator) -> PutOutcome:
    for attempt in range(_PROBE_ATTEMPTS):
        if attempt:
            clock.sleep_ms(ids.jitter(_PROBE_BACKOFF_MS << attempt))
        outcome = store.put_if_absent(path, data)
        if outcome is not PutOutcome.UNKNOWN:
            return outcome
    raise StorageError(
        f"{store.url}: the backend did not answer {_PROBE_ATTEMPTS} attempts to create {path!r}; try again later"
    )


def _read(clock: Clock) -> ClockReading:
    return ClockReading(clock.now_ms(), clock.monotonic_ms())


def _compare_again(store: ObjectStore, clock: Clock, ids: IdGenerator, *, last: bool) -> bool:
    """Return whether the clocks agree, by a new object; see `_clock_agrees`."""
    path = f"{names.PROBE_FOLDER}{ids.new_id()}"
    began = _read(clock)
    try:
        _settled(store, path, b"txlog clock", clock, ids)
        return _clock_agrees(store, path, began, _read(clock).ms_since(began), last=last)
    finally:
        store.delete(path)


def _clock_agrees(store: ObjectStore, path: str, began: ClockReading, took_ms: int, *, last: bool = False) -> bool:
    """Return whether this machine's clock is at most 15 minutes from the store's (W2).

    The object at `path` was created between `began` and `took_ms` later, so the difference of the clocks is known only
    up to `took_ms`. A process that was paused in between learns nothing: False, or with `last` the error. Raises
    ClockSkewError for a clock that is certainly wrong.
    """
    theirs = store.modified_ms(path)
    if theirs is None:
        return True
    least, most = began.wall_ms - theirs, began.wall_ms - theirs + took_ms
    if least >= -MAX_CLOCK_SKEW_MS and most <= MAX_CLOCK_SKEW_MS:
        return True
    if not last and least <= MAX_CLOCK_SKEW_MS and most >= -MAX_CLOCK_SKEW_MS:
        return False
    skew = most if most > MAX_CLOCK_SKEW_MS else least
    raise ClockSkewError(
        f"{store.url}: this machine's clock is {abs(skew) // 1000} s "
        f"{'ahead of' if skew > 0 else 'behind'} the store's, and at most {MAX_CLOCK_SKEW_MS // 1000} s "
        "are allowed: what it writes would expire too early or too late. "
        "hint: synchronise it (NTP)"
    )


def _local_path(url: str) -> str:
    rest = url.split(":", 1)[1]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            raise InvalidRequestError(f"{url!r} names the host {host!r}; a local path has three slashes: file:///path")
        rest = slash + path
    if not rest.startswith("/"):
        raise InvalidRequestError(f"{url!r} is not absolute; write file:///path, or a path without 'file:'")
    return rest


def _check_options(options: Mapping[str, object], known: set[str], what: str) -> None:
    for name in options:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UnknownOptionError(f"storage option {name!r} is unknown: {what} has {listed}.{nearest(name, known)}")


def _boolean(value: object, name: str) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise UnknownOptionError(f"storage option {name!r} must be true or false, found {value!r}")
    return text in _TRUE


_PROBED_LOCK = lock_for_forks()
_PROBED: dict[str, int] = {}
"""Place -> `clock_offset_ms` when the clock was compared with the store's."""
