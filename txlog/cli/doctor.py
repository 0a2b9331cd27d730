"""`txlog doctor`: what on this machine, or between it and the store, would keep txlog from working, and what to do?

It looks at Python, Java, Spark, optional packages and the drivers of object stores. Then it looks at the store: can it
be read and written, does it create objects only once, and how far are the clocks apart? It leaves nothing behind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from txlog.cli.documents import Finding
from txlog.cli.options import STORE_ENV, Session
from txlog.cli.output import Output
from txlog.core.ages import MAX_CLOCK_SKEW_MS, MAX_CLOCK_STEP_MS
from txlog.errors import StoreAccessError, TxlogError
from txlog.text import count_text, duration_text, install_text

_OLDEST_JAVA = 17
_OLDEST_SPARK = (4, 0)
_JAVA_SECONDS = 20
_JAVA_ADVICE = f"install Java {_OLDEST_JAVA} or newer, and set JAVA_HOME to its folder"
_OPTIONAL = {
    "pandas": "Spark and to_pandas()",
    "polars": "to_polars()",
    "duckdb": "`txlog sql` (the extra sql)",
    "sqlglot": "`where` as text (the extra sql)",
    "matplotlib": "`txlog inspect` and drawings in a notebook (the extra page)",
    "pyiceberg": "Iceberg tables of a topic (the extra iceberg)",
    "prometheus-client": "metrics as Prometheus text (the extra metrics)",
}
"""Packages, and what needs them."""
_READERS = "check the credentials, and give this user the permission to list and to read objects"
_WRITERS = "give writers the permission to create and to delete objects; readers need to list and to read only"


def doctor(session: Session) -> None:
    """Look for what is wrong on this machine and with the store, and show what to do.

    Without --store only this machine is looked at. The store is written to for a moment, unless it may only be read;
    nothing is left behind. The exit status is 1 if there is a problem.
    """
    findings = [*_python(), *_java_and_spark(), *_optional(), *_drivers(), *_store(session)]

    def text(out: Output) -> None:
        out.table(("check", "state", "found"), [(each.check, each.state, each.found) for each in findings])
        advised = [each for each in findings if each.advice]
        if advised:
            out.heading("What to do")
            for each in advised:
                out.line(f"{each.check}: {each.advice}")

    session.out.show(findings, text)
    if any(each.state == "problem" for each in findings):
        raise typer.Exit(1)


def _ok(check: str, found: str) -> Finding:
    return Finding(check=check, state="ok", found=found)


def _problem(check: str, found: str, advice: str | None) -> Finding:
    return Finding(check=check, state="problem", found=found, advice=advice)


def _note(check: str, found: str, advice: str | None = None) -> Finding:
    return Finding(check=check, state="note", found=found, advice=advice)


# -- this machine -----------------------------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    yield _ok("python", f"{sys.version.split()[0]} in {sys.prefix}")
    yield _ok("pyarrow", _version_of("pyarrow") or "unknown version")
    import google_crc32c

    if google_crc32c.implementation == "c":
        yield _ok("crc32c", "compiled")
    else:
        yield _note(
            "crc32c",
            "in Python, which takes milliseconds for each record",
            "reinstall google-crc32c where a compiled wheel of it exists",
        )


def _java_and_spark() -> Iterator[Finding]:
    spark = _version_of("pyspark")
    major = re.match(r"(\d+)\.(\d+)", spark or "")
    needed = ".".join(map(str, _OLDEST_SPARK))
    if spark is None:
        yield _note("spark", "not installed; only Spark jobs need it", install_text("spark"))
    elif major is not None and (int(major[1]), int(major[2])) < _OLDEST_SPARK:
        yield _problem("spark", f"pyspark {spark}, and txlog needs {needed} or newer", install_text("spark"))
    else:
        yield _ok("spark", f"pyspark {spark}")
    found, advice = _java()
    if advice is None:
        yield _ok("java", found)
    elif spark is None:
        yield _note("java", f"{found}; only Spark needs it")
    else:
        yield _problem("java", found, advice)


def _java() -> tuple[str, str | None]:
    """Return the Java that Spark starts, and what to do if it cannot be used."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return "no Java on PATH, and JAVA_HOME is not set", _JAVA_ADVICE
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        whose = "JAVA_HOME is set, but its " if home else ""
        return f"{whose}{java} does not run ({type(error).__name__})", _JAVA_ADVICE
    banner = done.stderr or done.stdout
    number = re.search(r'version "(?:1\.)?(\d+)', banner)
    if number is None:
        return f"{java} tells no version: {banner.strip()[:80]}", _JAVA_ADVICE
    if int(number[1]) < _OLDEST_JAVA:
        return f"{java} is Java {number[1]}, and Spark needs {_OLDEST_JAVA} or newer", _JAVA_ADVICE
    return f"Java {number[1]} ({java})", None


def _optional() -> Iterator[Finding]:
    for package, use in _OPTIONAL.items():
        found = _version_of(package)
        if found is None:
            yield _note(package, f"not installed; only {use} need{'' if ' and ' in use else 's'} it")
        elif package == "pandas" and not found.startswith("2.") and _version_of("pyspark") is not None:
            yield _note(package, f"{found}; Spark is tested with pandas 2", "pip install 'pandas>=2.2,<3'")
        else:
            yield _ok(package, found)


def _drivers() -> Iterator[Finding]:
    from txlog.storage.backends import BACKENDS

    for backend in BACKENDS:
        found = _version_of(backend.package)
        check = f"driver {backend.schemes[0]}"
        if found is not None:
            yield _ok(check, f"{backend.package} {found}")
        else:
            yield _note(check, f"{backend.package} is not installed; stores at {backend.schemes[0]}:// need it")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# -- the store --------------------------------------------------------------------------------------------------------


def _store(session: Session) -> Iterator[Finding]:
    if session.settings.store is None:
        yield _note("store", "no store is named", f"name one with --store URL, or in the environment as {STORE_ENV}")
        return
    try:
        store = session.open(may_be_new=True)
    except TxlogError as error:
        yield _of(error, "store")
        return
    runtime = store.runtime
    descriptor = runtime.descriptor
    if descriptor is None:
        is_folder = store.url.startswith("file:")
        untried = ". It was not written to, because that would leave folders" if is_folder else ""
        yield _note("store", f"{store.url} is empty; the first topic makes a store there{untried}")
        if is_folder:
            return
    else:
        yield _ok("store", f"{store.url}, version {descriptor.version} of the format")
        try:
            topics = count_text(len(runtime.list_topics()), "topic")
        except TxlogError as error:
            yield _of(error, "read")
        else:
            yield _ok("read", f"{topics} can be read, metadata only: `txlog fsck` looks for damage")
    try:
        runtime.ensure_writable()
    except StoreAccessError as error:
        yield _note("write", f"this user may only read: {error.problem}", error.hint or _WRITERS)
    except TxlogError as error:
        yield _of(error, "write")
    else:
        yield _ok("write", "objects can be created, only once, and deleted")
        yield from _clock(session)


def _clock(session: Session) -> Iterator[Finding]:
    from txlog.storage.open import store_now_ms

    runtime = session.open(may_be_new=True).runtime
    before_ms = runtime.clock.now_ms()
    try:
        theirs = store_now_ms(runtime.store, runtime.clock, runtime.ids)
    except TxlogError as error:
        yield _of(error, "clock")
        return
    took_ms = runtime.clock.now_ms() - before_ms
    if theirs is None:
        yield _ok("clock", "this machine's; the store has no clock of its own")
        return
    error_ms = max(before_ms - theirs, theirs - before_ms - took_ms, 0)
    found = f"{duration_text(error_ms)} from the store's; {duration_text(MAX_CLOCK_SKEW_MS)} are allowed"
    advice = "synchronise this machine's clock (NTP)"
    yield _ok("clock", found) if error_ms <= MAX_CLOCK_STEP_MS else _note("clock", found, advice)


def _of(error: TxlogError, check: str) -> Finding:
    return _problem(check, error.problem, error.hint or (_READERS if isinstance(error, StoreAccessError) else None))
