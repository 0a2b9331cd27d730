"""The command line, in Kafka's verbs."""
