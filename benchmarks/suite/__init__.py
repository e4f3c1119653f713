"""Us and the peers on the same Kafka topic, in turn: ``make bench``, ``make bench-quick``."""
