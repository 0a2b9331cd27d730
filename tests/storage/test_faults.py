"""Every fault on every verb, through the real drivers: the result, the store afterwards, and the secrecy of
credentials.

Faults happen between the driver and a server, so the driver's own retries take part. `FOUND` lists the allowed
outcomes. If a driver retries below the adapter, its own success may become a conflict. The port allows this, and the
protocol settles it.
"""

from __future__ import annotations

import itertools
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from google.oauth2.credentials import Credentials

import txlog
from tests.servers import azure, gcs, s3
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.http import Request, Response
from tests.servers.start import Server, start
from txlog.cli.errors import exit_status
from txlog.errors import OutcomeUnknownError, StorageError, StoreAccessError, UnsupportedStoreError
from txlog.storage.fsspec_store import ATTEMPTS, FsspecObjectStore
from txlog.storage.object_store import PutOutcome
from txlog.storage.open import open_object_store
from txlog.testing.clock import ManualClock

WRITTEN, CONFLICT, UNKNOWN = PutOutcome.WRITTEN, PutOutcome.CONFLICT, PutOutcome.UNKNOWN
KINDS = ("s3", "gcs", "azure")
ERRORS: dict[str, Callable[..., Response]] = {"s3": s3.error, "gcs": gcs.error, "azure": azure.error}
# The options that give each driver a short timeout.
SHORT: dict[str, dict[str, object]] = {
    "s3": {"config_kwargs": {"read_timeout": 0.4}},
    "gcs": {"requests_timeout": 0.4},
    "azure": {"read_timeout": 0.4},
}
TOKEN = "ya29.secrettokensecrettokensecrettoken"
# The small server asks for no identity, so the driver must send its own.
CREDENTIALS: dict[str, dict[str, object]] = {"gcs": {"token": Credentials(TOKEN)}}
# Answers that no real object store gives.
OTHERS: dict[str, Response] = {
    "html": Response(status=502, headers={"Content-Type": "text/html"}, body=b"<html><h1>Bad Gateway</h1></html>"),
    "empty": Response(status=503),
    "garbage": Response(status=200, headers={"Content-Length\x00": "x y"}, body=b"\xff\xfe"),
}

_NUMBERS = itertools.count()


class Place:
    """A server, the proxy in front of it, a store over the proxy and another one without it."""

    def __init__(self, server: Server, proxy: FaultProxy) -> None:
        self.server, self.proxy, self.kind = server, proxy, server.kind
        self.direct = self._open(server.url, {})
        self.store = self._open(proxy.url, {})
        self.impatient = self._open(proxy.url, SHORT[self.kind])
        """This store has a short timeout."""

    def renew(self) -> None:
        """End all faults, and use each connection once, because most connections have been used before."""
        self.proxy.strike()
        for store in (self.direct, self.store, self.impatient):
            assert store.get("nothing") is None

    def answer(self, status: int, code: str = "", message: str = "") -> Response:
        """Return an error in the form of this kind of store."""
        return ERRORS[self.kind](status, code or f"Code{status}", message)

    def store_for(self, action: str) -> FsspecObjectStore:
        """Return the store that should meet such a fault."""
        return self.impatient if action == "stall" else self.store

    def _open(self, url: str, more: dict[str, object]) -> FsspecObjectStore:
        server = self.server.at(url)
        options = {**server.storage_options, **CREDENTIALS.get(self.kind, {}), **more}
        store = open_object_store(server.store_url("faults"), options)
        assert isinstance(store, FsspecObjectStore)
        # Only real servers need the pauses between attempts.
        store._clock = ManualClock()
        return store


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with start(request.param) as server, FaultProxy(server.url) as proxy:
        yield Place(server, proxy)


@pytest.fixture(autouse=True)
def _good_weather(place: Place) -> None:
    place.renew()


@pytest.fixture
def name() -> str:
    """Return the name of an object that no other test uses."""
    return f"{next(_NUMBERS):06d}/a"


# -- conditional writes -----------------------------------------------------------------------------------------------

PASSING = (409, 429, 500, 502, 503, 504)
"""Answers that mean "not now", or nothing."""
NOT_APPLIED = {UNKNOWN: None, WRITTEN: b"mine"}
APPLIED = {UNKNOWN: b"mine", CONFLICT: b"mine", WRITTEN: b"mine"}


@pytest.mark.parametrize("status", PASSING)
def test_put_if_absent_answered_without_being_applied(place, name, status):
    place.proxy.strike(Fault(action="answer", answer=place.answer(status)))
    assert place.store.put_if_absent(name, b"mine") is UNKNOWN
    # There is one request: the protocol decides whether and when to retry.
    assert len(place.proxy.requests) == 1
    assert place.direct.get(name) is None
    assert place.store.put_if_absent(name, b"mine") is WRITTEN


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_put_if_absent_applied_and_answered_otherwise(place, name, status):
    place.proxy.strike(Fault(action="answer", moment="after", answer=place.answer(status)))
    assert place.store.put_if_absent(name, b"mine") is UNKNOWN
    assert len(place.proxy.requests) == 1
    assert place.direct.get(name) == b"mine"
    assert place.store.put_if_absent(name, b"mine") is CONFLICT


@pytest.mark.parametrize("answer", OTHERS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_put_if_absent_answered_by_something_else(place, name, moment, answer):
    place.proxy.strike(fault_of(place, answer, moment, 0))
    assert place.store.put_if_absent(name, b"mine") is UNKNOWN
    assert place.direct.get(name) == (b"mine" if moment == "after" else None)


def test_a_412_on_ones_own_retry(place, name):
    place.proxy.strike(Fault(action="answer", moment="after", answer=place.answer(412, "PreconditionFailed")))
    assert place.store.put_if_absent(name, b"mine") is CONFLICT
    assert place.direct.get(name) == b"mine"


@pytest.mark.parametrize(
    ("action", "moment", "found"),
    [
        ("reset", "before", NOT_APPLIED),
        ("reset", "after", APPLIED),
        ("cut", "after", APPLIED),
        ("stall", "before", NOT_APPLIED),
        ("stall", "after", APPLIED),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_put_if_absent_unanswered(place, name, action, moment, found, times):
    place.proxy.strike(Fault(action=action, moment=moment, times=times))
    outcome = place.store_for(action).put_if_absent(name, b"mine")
    assert outcome in found
    assert place.direct.get(name) == found[outcome]
    # HTTP allows at most one retry on a connection that was used before.
    assert len(place.proxy.requests) <= 2


def test_put_if_absent_that_lands_late(place, name):
    place.proxy.strike(Fault(action="late", times=2))
    assert place.store.put_if_absent(name, b"mine") is UNKNOWN
    assert place.direct.get(name) is None
    place.proxy.land()
    assert place.direct.get(name) == b"mine"


def test_put_if_absent_that_lands_late_and_loses(place, name):
    place.proxy.strike(Fault(action="late", times=2))
    assert place.store.put_if_absent(name, b"mine") is UNKNOWN
    assert place.direct.put_if_absent(name, b"other") is WRITTEN
    place.proxy.land()
    assert place.direct.get(name) == b"other"


@pytest.mark.parametrize("status", [400, 401, 403, 405])
def test_put_if_absent_refused(place, name, status):
    place.proxy.strike(Fault(action="answer", answer=place.answer(status), times=99))
    kind = StoreAccessError if status in (401, 403) else StorageError
    with pytest.raises(kind, match=f"put_if_absent '{name}' failed: .*{status}") as raised:
        place.store.put_if_absent(name, b"mine")
    assert len(place.proxy.requests) == 1
    assert place.direct.get(name) is None
    assert place.store.url in str(raised.value)


def test_a_server_that_does_not_know_the_condition(place, name):
    place.proxy.strike(Fault(action="answer", answer=place.answer(501, "NotImplemented"), times=99))
    with pytest.raises(UnsupportedStoreError, match="does not know this request"):
        place.store.put_if_absent(name, b"mine")


def test_bad_weather_for_conditional_writes(place, name):
    """Mix all faults by a seed: no name has two winners, and every object that was reported as written exists."""
    place.proxy.bad_weather(7, 0.4, every_fault(place))
    outcomes = [place.store.put_if_absent(f"{name}/{number}", b"%d" % number) for number in range(60)]
    struck = place.proxy.struck
    place.proxy.strike()
    place.proxy.land()
    assert struck > 10
    assert {WRITTEN, UNKNOWN} <= set(outcomes)
    for number, outcome in enumerate(outcomes):
        found = place.direct.get(f"{name}/{number}")
        assert found in ((b"%d" % number,) if outcome is not UNKNOWN else (b"%d" % number, None))


# -- requests that may be retried -------------------------------------------------------------------------------------

BODY = bytes(range(256)) * 40
# Verb: (a call in a folder with a, d and sub/x; its answer; the object that it changes; the new content).
VERBS: dict[str, tuple[Callable[[FsspecObjectStore, str], object], object, str, bytes | None]] = {
    "get": (lambda store, folder: store.get(f"{folder}/a"), BODY, "a", BODY),
    "get of nothing": (lambda store, folder: store.get(f"{folder}/none"), None, "none", None),
    "get_range": (lambda store, folder: store.get_range(f"{folder}/a", 10, 3000), BODY[10:3000], "a", BODY),
    "size": (lambda store, folder: store.size(f"{folder}/a"), len(BODY), "a", BODY),
    "modified_ms": (lambda store, folder: (store.modified_ms(f"{folder}/a") or 0) > 10**12, True, "a", BODY),
    "list": (lambda store, folder: store.list(f"{folder}/"), ["a", "d", "sub/"], "a", BODY),
    "list after": (lambda store, folder: store.list(f"{folder}/", "a"), ["d", "sub/"], "a", BODY),
    "write_file": (
        lambda store, folder: store.write_file(f"{folder}/w", [BODY, b"x"]),
        len(BODY) + 1,
        "w",
        BODY + b"x",
    ),
    "delete": (lambda store, folder: store.delete(f"{folder}/d"), None, "d", None),
}
ANSWERS = [("answer", moment, status) for status in PASSING for moment in ("before", "after")]
SILENCES = [("reset", "before", 0), ("reset", "after", 0), ("cut", "after", 0), ("stall", "after", 0)]
NONSENSE = [(body, moment, 0) for body in ("html", "empty", "garbage") for moment in ("before", "after")]


@pytest.fixture
def folder(place: Place) -> str:
    """Return a folder with three objects."""
    made = f"{next(_NUMBERS):06d}"
    for path in ("a", "d", "sub/x"):
        place.direct.put_if_absent(f"{made}/{path}", BODY)
    return made


@pytest.mark.parametrize(("action", "moment", "status"), [*ANSWERS, *SILENCES, *NONSENSE])
@pytest.mark.parametrize("verb", VERBS)
def test_one_fault_is_got_over(place, folder, verb, action, moment, status):
    call, expected, path, left = VERBS[verb]
    place.proxy.strike(fault_of(place, action, moment, status))
    assert call(place.store_for(action), folder) == expected
    assert place.proxy.struck == 1
    assert place.direct.get(f"{folder}/{path}") == left


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("action", ["answer", "reset"])
def test_a_fault_without_end_is_reported(place, folder, verb, action):
    place.proxy.strike(Fault(action=action, answer=place.answer(503, "SlowDown"), times=999))
    with pytest.raises(StorageError, match=rf"{verb.partition(' ')[0]} '.*' failed {ATTEMPTS} times"):
        VERBS[verb][0](place.store, folder)
    # A driver may retry a request once, on a connection that was used before.
    assert ATTEMPTS <= len(place.proxy.requests) <= 2 * ATTEMPTS


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refusal_is_not_repeated(place, folder, verb, status):
    place.proxy.strike(Fault(action="answer", answer=place.answer(status), times=999))
    kind = StorageError if status == 400 else StoreAccessError
    with pytest.raises(kind, match=rf"{verb.partition(' ')[0]} '.*' failed: "):
        VERBS[verb][0](place.store, folder)
    assert len(place.proxy.requests) <= 2


@pytest.mark.parametrize("wrong", ["key", "secret", "none"])
def test_wrong_credentials_are_refused_at_once(wrong, monkeypatch, tmp_path, caplog):
    """Through the whole library, no call retries an error that retrying cannot fix."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    code = {"key": "InvalidAccessKeyId", "secret": "SignatureDoesNotMatch", "none": ""}[wrong]
    with start("s3") as server, FaultProxy(server.url) as proxy:
        options = server.at(proxy.url).storage_options
        if wrong == "none":
            options = {name: value for name, value in options.items() if name not in ("key", "secret")}
        else:
            proxy.strike(Fault(action="answer", answer=s3.error(403, code, "no"), times=999))
        with pytest.raises(StoreAccessError, match=r"check the storage_options \(key, secret and token") as raised:
            txlog.open(server.store_url("denied"), storage_options=options)
        assert len(proxy.requests) <= 1
    assert code in str(raised.value)
    assert exit_status(raised.value) == 2


def test_a_write_whose_repetition_is_refused_stays_unknown(place):
    """The first try may have won, and the refusal of the second does not change that."""
    server = place.server.at(place.proxy.url)
    store = open_object_store(
        server.store_url("repeated"), {**server.storage_options, **CREDENTIALS.get(place.kind, {})}
    )
    with txlog.open(store.url, object_store=store) as opened:
        opened.create_topic("t")
        producer = opened.producer(linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=1)
        producer.send("t", [{"value": b"1"}]).result(10)
        place.proxy.strike(
            Fault(action="answer", moment="after", answer=place.answer(503)),
            Fault(action="answer", answer=place.answer(403), times=9999),
        )
        with pytest.raises(OutcomeUnknownError, match=r"HTTP 403|Forbidden"):
            producer.send("t", [{"value": b"2"}]).result(30)
        place.proxy.strike()
        with pytest.raises(OutcomeUnknownError):
            producer.close()


def test_an_endpoint_that_is_not_there_is_named(caplog):
    with start("s3") as server:
        gone = server
    store = open_object_store(gone.store_url("gone"), gone.storage_options)
    assert isinstance(store, FsspecObjectStore)
    store._clock = ManualClock()
    with caplog.at_level(logging.WARNING, "txlog"):
        for _ in range(6):
            with pytest.raises(StorageError, match=rf"failed 5 times \(no connection to {re.escape(gone.url)}\)"):
                store.get("a")
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert f"no connection to {gone.url}" in warned[0]


# -- secrecy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 403, 500, 503])
def test_errors_repeat_no_credential(place, folder, status, caplog):
    """This holds even if the answer of the server, or of a proxy, repeats what it received."""
    sent: list[str] = []

    def echo(request: Request) -> Any:
        headers = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
        sent.append(f"{request.target} {headers}")
        return place.answer(status, "", f"bad request {sent[-1]}")

    place.proxy.strike(Fault(action="answer", answer=echo, times=999))
    said: list[str] = []
    hidden: list[bool] = []
    with caplog.at_level(logging.INFO, "txlog"):
        for call in (
            *(found[0] for found in VERBS.values()),
            lambda store, folder: store.put_if_absent(f"{folder}/x", b"1"),
        ):
            try:
                call(place.store, folder)
            except (StorageError, StoreAccessError) as error:
                said.append("".join(traceback.format_exception_only(error)) + repr(error))
                hidden.append(error.__suppress_context__ and error.__cause__ is None)
    text = "\n".join([*said, caplog.text])
    assert len(said) >= len(VERBS)
    # A traceback would show the driver's message.
    assert all(hidden)
    for secret in (*SECRETS[place.kind], *(found for one in sent for found in CREDENTIAL.findall(one))):
        assert secret not in text
    assert any(CREDENTIAL.search(one) for one in sent)


SECRETS = {"s3": (s3.ACCESS_KEY, s3.SECRET_KEY), "gcs": (TOKEN,), "azure": (azure.ACCOUNT_KEY,)}
# Strings that were signed with a secret, as they are sent.
CREDENTIAL = re.compile(r"(?:Signature=|SharedKey \w+:|Bearer )([^\s;]{10,})")


def fault_of(place: Place, action: str, moment: Any, status: int) -> Fault:
    """Return the fault for a row of a table."""
    if action == "answer":
        return Fault(action="answer", moment=moment, answer=place.answer(status))
    if action in OTHERS:
        return Fault(action="answer", moment=moment, answer=OTHERS[action])
    return Fault(action=cast(Any, action), moment=moment)


def every_fault(place: Place) -> tuple[Fault, ...]:
    """Return every kind of fault except stalls, which take long."""
    rows = [row for row in (*ANSWERS, *SILENCES, *NONSENSE) if row[0] != "stall" and row[1:] != ("after", 409)]
    return (*(fault_of(place, *row) for row in rows), Fault(action="late"))
