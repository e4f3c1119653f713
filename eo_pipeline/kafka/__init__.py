"""Reading Kafka: settings, bounds, plans, losses, decoding."""
