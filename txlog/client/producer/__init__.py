"""How does a program write? Kafka's producer. Everything else in this folder is known to the producer alone."""

from txlog.client.producer.batches import RecordMetadata
from txlog.client.producer.producer import Producer

__all__ = ["Producer", "RecordMetadata"]
