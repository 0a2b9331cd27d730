"""One broker, one client and one Spark session with the Kafka connector for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import pyspark_txlog
from tests import jars
from tests.kafka.broker import KafkaClient, running_broker, running_client


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the broker's address."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture(scope="session")
def kafka(bootstrap: str) -> Iterator[KafkaClient]:
    """Yield Kafka's own client."""
    with running_client(bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def connector() -> str:
    """Return the value of `spark.jars`: Spark's Kafka connector."""
    return ",".join(map(str, jars.fetch(jars.SPARK_CONNECTOR)))


@pytest.fixture(scope="module")
def spark(connector: str) -> Iterator[SparkSession]:
    """Yield a session that has the connector."""
    session = pyspark_txlog.session("txlog Kafka tests", config={"spark.jars": connector})
    yield session
    session.stop()
