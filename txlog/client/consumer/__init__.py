"""How does a program read the newest rows as they come? Kafka's consumer. The other modules are known to it alone."""

from txlog.client.consumer.consumer import Consumer
from txlog.client.consumer.iteration import awaited_text

__all__ = ["Consumer", "awaited_text"]
