"""Keys in Redis that follow Kafka topics: one script writes the rows and moves the ledger."""

from eo_pipeline.sinks.redis.config import RedisSink

__all__ = ["RedisSink"]
