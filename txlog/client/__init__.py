"""What users call: store, topics, producer, consumer, admin."""
