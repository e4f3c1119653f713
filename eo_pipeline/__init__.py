"""Exactly-once, batch-incremental pipelines: Kafka to a transactional sink through Spark.

from eo_pipeline import KafkaSource, Pipeline, PostgresSink

Pipeline(name="flights", source=KafkaSource(...), sink=PostgresSink(...)).run()
"""

from eo_pipeline import _lazy

# a command needs few of the names
__all__, __getattr__ = _lazy.exports(__name__)
