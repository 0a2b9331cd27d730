"""Where do Kafka, Delta, Iceberg and Trino come from? From Maven, through the client that Spark contains (Ivy).

The tests need only pip's pyspark and Java. Fetched files stay in a folder of the user's cache, or in the folder that
`TXLOG_TEST_JARS` names, and are not fetched again. Only this module names versions.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

KAFKA = "4.3.1"
CONNECTOR = "4.2.0"
DELTA = "4.4.0"
ICEBERG = "1.11.0"
JETTY = "12.1.12"
# Maven has no archive of a newer one.
TRINO = "476"


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What to fetch: `group:artifact:version`, with its dependencies or without.

    `:classifier` or `@extension` at the end names another file than the JAR.
    """

    coordinates: Sequence[str]
    transitive: bool
    only: str = ""
    """A string that the names of the wanted files contain; the other files are part of Spark."""


BROKER = Artifacts(
    # The broker needs this binding to log its errors.
    (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    transitive=True,
)
"""A broker."""

TOOLS = Artifacts((f"org.apache.kafka:kafka-tools:{KAFKA}",), transitive=False)
"""Kafka's command line, beside the broker's JARs; with it come the tools that measure."""

SPARK_CONNECTOR = Artifacts(
    (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
        # The version of this Spark does not resolve, and this one works with it.
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        f"org.apache.kafka:kafka-clients:{KAFKA}",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    transitive=False,
)
"""Spark's Kafka source and sink; their other dependencies are part of Spark."""

DELTA_LAKE = Artifacts((f"io.delta:delta-spark_4.2_2.13:{DELTA}",), transitive=True, only=r"^io\.(delta|unitycatalog)_")
"""Delta on Spark."""

ICEBERG_REST = Artifacts(
    (
        f"org.apache.iceberg:iceberg-core:{ICEBERG}",
        # Iceberg's REST server is a part of its tests.
        f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
        f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
        "org.xerial:sqlite-jdbc:3.50.3.0",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
    transitive=True,
)
"""Iceberg's REST catalog, its web server and its database. Hadoop is part of Spark."""

TRINO_SERVER = Artifacts((f"io.trino:trino-server:{TRINO}@tar.gz",), transitive=False)
"""Trino with all its plugins, 821 MB."""


def fetch(wanted: Artifacts) -> tuple[Path, ...]:
    """Return the files, in the order of a class path.

    Raises RuntimeError with Ivy's report if a file cannot be fetched.
    """
    key = hashlib.sha256(repr((tuple(wanted.coordinates), wanted.transitive)).encode()).hexdigest()[:16]
    folder = cache_folder() / key
    listing = folder / "files.txt"
    if not listing.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = _resolve(wanted, folder)
        # The file is renamed when it is complete, so that a killed run leaves no file that looks complete.
        partial = folder / f"files.{os.getpid()}.txt"
        partial.write_text("\n".join(found), encoding="utf-8")
        partial.rename(listing)
    files = tuple(Path(line) for line in listing.read_text(encoding="utf-8").splitlines())
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise RuntimeError(f"the cache {folder} lacks {', '.join(missing)}; remove that folder to fetch it again")
    return tuple(file for file in files if re.search(wanted.only, file.name))


def of_spark(pattern: str) -> Path:
    """Return the only JAR of pyspark with a name like that."""
    (file,) = (Path(pyspark.__file__).parent / "jars").glob(pattern)
    return file


def cache_folder() -> Path:
    """Return the folder that keeps JARs between runs."""
    given = os.environ.get("TXLOG_TEST_JARS")
    return Path(given) if given else Path.home() / ".cache" / "txlog" / "jars"


def _resolve(wanted: Artifacts, folder: Path) -> list[str]:
    report = folder / "ivy.log"
    gateway = launch_gateway(SparkConf())
    try:
        jvm = gateway.jvm
        stream = jvm.java.io.PrintStream(str(report))
        maven, nothing = jvm.org.apache.spark.util.MavenUtils, jvm.scala.Option.apply(None)
        settings = maven.buildIvySettings(nothing, jvm.scala.Option.apply(str(folder)), False, stream)
        try:
            if any(coordinate.count(":") > 2 or "@" in coordinate for coordinate in wanted.coordinates):
                return _resolve_named(jvm, settings, wanted, folder, stream)
            # In Scala, a default argument is a method with this name.
            none_excluded = getattr(maven, "resolveMavenCoordinates$default$5")()
            found = maven.resolveMavenCoordinates(
                ",".join(wanted.coordinates), settings, nothing, wanted.transitive, none_excluded, False, stream
            )
            return str(found.mkString("\n")).splitlines()
        except Exception as error:
            raise RuntimeError(
                f"{', '.join(wanted.coordinates)} cannot be fetched; Ivy's report is in {report}"
            ) from error
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


def _resolve_named(jvm: Any, settings: Any, wanted: Artifacts, folder: Path, stream: Any) -> list[str]:
    """Ask Ivy itself, because Spark's coordinates have no classifier and no extension."""
    module = folder / "ivy.xml"
    files: dict[str, list[str]] = {}
    for coordinate in wanted.coordinates:
        # All files of a module are in one element, because of two elements Ivy takes the files of one.
        path, _, extension = coordinate.partition("@")
        group, artifact, version, *classifier = path.split(":")
        marks = "".join(f' m:classifier="{each}"' for each in classifier)
        files.setdefault(f'org="{group}" name="{artifact}" rev="{version}"', []).append(
            f'<artifact name="{artifact}" type="{extension or "jar"}"{marks}/>'
        )
    how = f'conf="default->default" transitive="{str(wanted.transitive).lower()}"'
    dependencies = "".join(f"<dependency {key} {how}>{''.join(each)}</dependency>" for key, each in files.items())
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="txlog" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>",
        encoding="utf-8",
    )
    # Ivy prints each place where it looks in vain.
    jvm.java.lang.System.setOut(stream)
    report = jvm.org.apache.ivy.Ivy.newInstance(settings).resolve(jvm.java.io.File(str(module)))
    if report.hasError():
        raise RuntimeError(", ".join(map(str, report.getAllProblemMessages())))
    return [str(each.getLocalFile()) for each in report.getAllArtifactsReports()]
