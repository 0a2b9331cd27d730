"""A real Kafka on loopback: one node in KRaft mode from Kafka's own JARs, and its Java client.

The client runs in a separate JVM behind py4j, which pyspark contains. So its transactions, aborts and new partitions
are exactly those of any program.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests import jars

HOST = "127.0.0.1"
START_SECONDS = 90
SMALL = ("-Xmx512m", "-XX:+UseSerialGC")
"""Options of Java for a broker that need not be fast."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send: Kafka's record, as far as the tests need it."""

    topic: str
    value: str | None
    key: str | None = None
    partition: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def running_broker(
    folder: Path, java_options: Sequence[str] = SMALL, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a broker that keeps its log in `folder`, yield its `bootstrap.servers`, and kill it at the end.

    `settings` override those of a small broker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, controller = _free_ports(2)
    properties = folder / "server.properties"
    lines = [f"{name}={value}" for name, value in {**_properties(folder, port, controller), **(settings or {})}.items()]
    properties.write_text("\n".join([*lines, ""]), encoding="utf-8")
    console = folder / "broker.log"
    java = ["java", *java_options, "-cp", class_path()]
    with console.open("ab") as out:
        command = [*java, "kafka.tools.StorageTool"]
        drawn = subprocess.run([*command, "random-uuid"], capture_output=True, text=True, check=True).stdout.split()[-1]
        subprocess.run([*command, "format", "-t", drawn, "-c", str(properties)], stdout=out, stderr=out, check=True)
        # An own process group keeps Ctrl-C away. A new session would also give the broker its own share of the
        # processor on Linux (autogroup), and benchmarks would compare two shares.
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=out, stderr=out, process_group=0)
    try:
        _wait_open(port, process, console)
        yield f"{HOST}:{port}"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


class KafkaClient:
    """Kafka's own Java client: topics, and producers with and without transactions."""

    def __init__(self, bootstrap: str, gateway: JavaGateway) -> None:
        self.bootstrap = bootstrap
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._open = ExitStack()
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._settings({}))
        self._open.callback(self._admin.close)
        self._plain: Any = None
        self._wait_ready()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic of that many partitions with one replica each."""
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
        self._admin.createTopics([new]).all().get()

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the topic's number of partitions to `total`."""
        more = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(total)
        self._admin.createPartitions({topic: more}).all().get()

    def delete_topic(self, topic: str) -> None:
        """Delete the topic with its records."""
        self._admin.deleteTopics([topic]).all().get()

    def send(self, records: Iterable[Record]) -> None:
        """Send without a transaction; return when all records are acknowledged."""
        if self._plain is None:
            self._plain = self._producer({})
            self._open.callback(self._plain.close)
        self._send_all(self._plain, records)

    @contextmanager
    def transactions(self, transactional_id: str) -> Iterator[KafkaTransactions]:
        """Yield a producer of that id."""
        producer = self._producer({"transactional.id": transactional_id})
        try:
            producer.initTransactions()
            yield KafkaTransactions(self, producer)
        finally:
            producer.close()

    def close(self) -> None:
        """End the client."""
        self._open.close()

    def _wait_ready(self) -> None:
        # A broker that listens may still be fenced, and then cannot create topics.
        deadline = time.monotonic() + START_SECONDS
        while self._admin.describeCluster().nodes().get().isEmpty():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker at {self.bootstrap} did not join its own cluster in {START_SECONDS} s")
            time.sleep(0.1)

    def _producer(self, settings: Mapping[str, str]) -> Any:
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        given = {"key.serializer": serializer, "value.serializer": serializer, "linger.ms": "0", **settings}
        return self._jvm.org.apache.kafka.clients.producer.KafkaProducer(self._settings(given))

    def _send_all(self, producer: Any, records: Iterable[Record]) -> None:
        for record in records:
            made = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(
                record.topic, record.partition, _bytes(record.key), _bytes(record.value)
            )
            for name, value in record.headers:
                made.headers().add(name, value.encode())
            producer.send(made)
        producer.flush()

    def _settings(self, settings: Mapping[str, str]) -> Any:
        made = self._jvm.java.util.Properties()
        for name, value in {"bootstrap.servers": self.bootstrap, **settings}.items():
            made.setProperty(name, value)
        return made


class KafkaTransactions:
    """One producer with a transactional.id."""

    def __init__(self, client: KafkaClient, producer: Any) -> None:
        self._client = client
        self._producer = producer

    def commit(self, records: Sequence[Record]) -> None:
        """Commit one transaction."""
        self._producer.beginTransaction()
        self._client._send_all(self._producer, records)
        self._producer.commitTransaction()

    def abort(self, records: Sequence[Record]) -> None:
        """Abort one transaction. Its records are in the log, but a read_committed consumer does not see them."""
        self._producer.beginTransaction()
        self._client._send_all(self._producer, records)
        self._producer.abortTransaction()


@contextmanager
def running_client(bootstrap: str) -> Iterator[KafkaClient]:
    """Yield a client in a separate JVM, which ends with it."""
    py4j_jar = jars.of_spark("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(py4j_jar),
        classpath=class_path(),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        client = KafkaClient(bootstrap, gateway)
        yield client
        client.close()
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(30)


def class_path() -> str:
    """Return the class path of the broker, its tools and its client."""
    # As Spark uses it, Ivy does not fetch Scala, because Spark has it.
    return os.pathsep.join(map(str, (*jars.fetch(jars.BROKER), jars.of_spark("scala-library-*.jar"))))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _properties(folder: Path, port: int, controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "log"),
        "auto.create.topics.enable": "false",
        # With one node, everything has one replica.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now. All are held until the last one is found, so that they differ."""
    with ExitStack() as held:
        found = []
        for _ in range(count):
            listener = held.enter_context(socket.socket())
            listener.bind((HOST, 0))
            found.append(int(listener.getsockname()[1]))
        return found


def _wait_open(port: int, process: subprocess.Popen[bytes], console: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    said = console.read_text(encoding="utf-8", errors="replace")[-4000:]
    raise RuntimeError(
        f"the broker did not start within {START_SECONDS} s (exit status {process.poll()}); it said:\n{said}"
    )
