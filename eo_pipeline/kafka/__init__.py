"""Kafka: settings, clients, planned ranges, losses, marks."""
