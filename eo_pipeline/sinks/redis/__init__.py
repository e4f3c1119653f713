"""Keys in Redis that follow Kafka topics: one script writes the rows and moves the ledger."""

from eo_pipeline.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
