"""Iceberg's own REST catalog on loopback. Its tables are files of a folder, and its database is SQLite.

Iceberg tests its REST clients with this server. Its class `RESTCatalogServer` would listen on all addresses of the
machine, and let two servers share a port. So this module starts the same servlet itself, in a separate JVM behind py4j,
which pyspark contains.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests import jars

HOST = "127.0.0.1"
START_SECONDS = 60
SMALL = ("-Xmx512m", "-XX:+UseSerialGC")
"""Options of Java for a server that need not be fast."""


@contextmanager
def rest_catalog(warehouse: Path) -> Iterator[str]:
    """Start a catalog, yield its URI, and kill it at the end.

    New tables get folders in `warehouse`, but a table may be registered from any folder. The catalog's database and log
    are files beside `warehouse`, so the next catalog of the same warehouse has the same tables.
    """
    warehouse.mkdir(parents=True, exist_ok=True)
    log = warehouse.with_name(f"{warehouse.name}-catalog.log")
    port, token, process = launch_gateway(
        jarpath=str(jars.of_spark("py4j-*.jar")),
        classpath=_class_path(),
        javaopts=[*SMALL, f"-Dorg.slf4j.simpleLogger.logFile={log}"],
        die_on_exit=True,
        # An own process group keeps Ctrl-C away.
        create_new_process_group=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        uri = f"http://{HOST}:{_start(gateway.jvm, warehouse)}"
        _wait_ready(uri, log)
        yield uri
    finally:
        gateway.close()
        process.kill()
        process.stdin.close()
        process.wait()


def _class_path() -> str:
    hadoop = (jars.of_spark("hadoop-client-api-*.jar"), jars.of_spark("hadoop-client-runtime-*.jar"))
    return os.pathsep.join(map(str, (*jars.fetch(jars.ICEBERG_REST), *hadoop)))


def _start(jvm: Any, warehouse: Path) -> int:
    """Start the server; return its port."""
    database = warehouse.with_name(f"{warehouse.name}-catalog.db")
    properties = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{database}",
        # With the first version of its schema there are no views.
        "jdbc.schema-version": "V1",
        "warehouse": warehouse.absolute().as_uri(),
    }
    iceberg, jetty = jvm.org.apache.iceberg, jvm.org.eclipse.jetty
    catalog = iceberg.CatalogUtil.buildIcebergCatalog("rest", properties, jvm.org.apache.hadoop.conf.Configuration())
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    server = jetty.server.Server(jvm.java.net.InetSocketAddress(HOST, 0))
    context = jetty.ee10.servlet.ServletContextHandler()
    context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server.setHandler(context)
    server.start()
    return int(server.getURI().getPort())


def _wait_ready(uri: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{uri}/v1/config", timeout=5) as answer:
                json.load(answer)
                return
        except (URLError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the catalog did not answer in {START_SECONDS} s; see {log}") from error
        time.sleep(0.1)
